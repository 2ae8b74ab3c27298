"""Values that commands set for a time, and the setters that apply them. Each value has an end, after which
the configured one holds again, also after a restart; none outlives the state file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from agent.base import logs
from agent.base.clock import ClockReader
from agent.base.supervisor import Switch
from agent.base.wait import event_within
from agent.config import Config
from agent.leaf.publish.publisher import Publisher
from agent.leaf.state import Setting, StateFile

LINK: Final = "link"
Value = str | float | bool
Setter = Callable[[Value | None, float], None]
"""Makes a value hold for so many seconds; None makes the configured one hold."""
_LOOK_SECONDS: Final = 60.0

log = structlog.get_logger("commands")


class CommandError(Exception):
    """The verb could not be carried out; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Now: epoch seconds, and seconds since the start of this boot, also of those asleep."""

    wall: float
    boot: str
    since_boot: float


def this_moment() -> Callable[[], Moment]:
    """The clocks of this machine."""
    boot = ClockReader().read().boot
    return lambda: Moment(time.time(), boot, time.clock_gettime(time.CLOCK_BOOTTIME))


def seconds_left(setting: Setting, now: Moment) -> float:
    """How long a setting still holds; not above 0 when it does not. After a reboot only the wall clock tells,
    and where that is behind the time at which the value was set, the value holds no more."""
    if setting.boot == now.boot:
        return setting.deadline - now.since_boot
    return setting.until - now.wall if now.wall >= setting.since else 0.0


class Overrides:
    """The values that hold instead of configured ones; `levers` make them hold, by name."""

    def __init__(self, state: StateFile, levers: Mapping[str, Setter], now: Callable[[], Moment]) -> None:
        self._state, self._levers, self._now = state, levers, now
        self._changed = asyncio.Event()

    @property
    def names(self) -> frozenset[str]:
        """What can be set."""
        return frozenset(self._levers)

    def restore(self) -> None:
        """Make hold what was set before and has not ended."""
        now = self._now()
        for name, setting in list(self._state.current.settings.items()):
            left = seconds_left(setting, now)
            if left > 0 and name in self._levers:
                self._levers[name](setting.value, left)
                log.info("set by a command", setting=name, value=setting.value, seconds_left=round(left))
            else:
                del self._state.current.settings[name]
                self._state.mark()

    def take(self, levers: Mapping[str, Setter]) -> None:
        """Go on with other levers: what holds goes on holding, what there is no lever for any more ends."""
        self._levers = levers
        self.restore()

    async def put(self, values: Mapping[str, Value], seconds: float) -> None:
        """Make these values hold for a time. Raises `CommandError`, and then nothing has changed."""
        now = self._now()
        until, deadline = now.wall + seconds, now.since_boot + seconds
        added = {name: Setting(value, now.wall, until, now.boot, deadline) for name, value in values.items()}
        await self._save(self._state.current.settings | added)
        for name, value in values.items():
            self._levers[name](value, seconds)

    async def drop(self, name: str) -> bool:
        """Make the configured value hold; False where it does already. Raises `CommandError`, and then
        nothing has changed."""
        settings = dict(self._state.current.settings)
        held = settings.pop(name, None) is not None
        if held:
            await self._save(settings)
        self._levers[name](None, 0.0)
        return held

    def shown(self) -> dict[str, Any]:
        """What `/status` shows of them."""
        now = self._now()
        return {
            name: {"value": one.value, "seconds_left": round(max(0.0, seconds_left(one, now)))}
            for name, one in self._state.current.settings.items()
        }

    async def run(self) -> None:
        """End each setting in its time, until cancelled."""
        while True:
            self._changed.clear()
            nearest = self._expire()
            await event_within(self._changed, None if nearest is None else min(nearest, _LOOK_SECONDS))

    def _expire(self) -> float | None:
        """End what is over; returns the seconds until the next one is."""
        now = self._now()
        left = {name: seconds_left(one, now) for name, one in self._state.current.settings.items()}
        for name in [name for name, seconds in left.items() if seconds <= 0]:
            del self._state.current.settings[name]
            self._state.mark()
            self._levers[name](None, 0.0)
            log.info("the configured value is back", setting=name)
        return min((seconds for seconds in left.values() if seconds > 0), default=None)

    async def _save(self, settings: dict[str, Setting]) -> None:
        before = self._state.current.settings
        self._state.current.settings = settings
        try:
            await self._state.save()
        except OSError as error:
            self._state.current.settings = before
            raise CommandError(
                f"the state file cannot be written ({error}), so nothing was changed"
            ) from None
        self._changed.set()


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
