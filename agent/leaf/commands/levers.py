"""What each setting moves: from a name that a command may set to the part of the agent that it changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from agent.base import logs
from agent.base.supervisor import Switch
from agent.config import Config
from agent.leaf.commands.overrides import Setter, Value
from agent.leaf.commands.setting_verbs import LINK
from agent.leaf.publish.publisher import Publisher


class LinkControl(Protocol):
    """Whoever keeps the link."""

    def hold(self, seconds: float) -> None:
        """Let nothing cross the link for so long."""

    def release(self) -> None:
        """Let the link flow again."""


def make_levers(
    config: Config, publisher: Publisher, switches: Mapping[str, Switch], link: LinkControl | None
) -> dict[str, Setter]:
    """The levers by name; the link's is there when somebody keeps the link."""

    def log_level(value: Value | None, _seconds: float) -> None:
        logs.set_level(config.log.level if value is None else str(value))

    def linger(value: Value | None, _seconds: float) -> None:
        publisher.set_linger(config.publish.linger if value is None else float(value))

    def rate_limit(value: Value | None, _seconds: float) -> None:
        publisher.limit_rate(None if value is None else float(value))

    levers: dict[str, Setter] = {"log_level": log_level, "linger": linger, "rate_limit": rate_limit}
    levers |= {f"input.{name}": _switch(one) for name, one in switches.items()}
    if link is not None:
        levers[LINK] = _link(link)
    return levers


def _switch(one: Switch) -> Setter:
    return lambda value, _seconds: one.turn(value is None or bool(value))


def _link(link: LinkControl) -> Setter:
    return lambda value, seconds: link.release() if value is None else link.hold(seconds)
