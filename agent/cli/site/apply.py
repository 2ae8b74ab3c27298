"""Applies a changed configuration to the running agent, and makes the hub forget a leaf."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any, Final, TypeVar

from agent.base import machine
from agent.cli.query import AdminStatusError, own_server, status_of
from agent.config import Config, members_digest, users_digest
from agent.contract import COMMANDS, FLEET_BUCKET, command_consumer
from agent.jetstream import JetStream
from agent.jetstream.connection import EXPECTED
from agent.jetstream.info import reason_of

SECONDS: Final = 30.0
_LEAF_SECONDS: Final = 0.01
"""For each leaf of a hub: its server looks at all of them, and its registrar reads them back."""
_POLL: Final = 0.1
_CONNECT_SECONDS: Final = 5.0

T = TypeVar("T")


class NotAppliedError(Exception):
    """The agent has not applied the configuration; the text says what to do."""


async def apply_members(config: Config) -> dict[str, Any] | None:
    """Have the hub's agent reload, and return what it then says of the fleet; None if no agent runs. Raises
    `NotAppliedError` or `OSError`."""
    digest = members_digest(config.leaf)

    def applied() -> dict[str, Any] | None:
        fleet = fleet_of(config)
        return fleet if fleet.get("configured") == digest and fleet.get("links_settled") else None

    return await _reloaded(config, "the hub's agent", applied)


async def apply_users(config: Config) -> bool:
    """Have the agent reload its users; False if no agent runs. Raises `NotAppliedError` or `OSError`."""
    digest = users_digest(config.user)
    return bool(await _reloaded(config, "the agent", lambda: _status(config).get("users") == digest))


async def _reloaded(config: Config, whose: str, applied: Callable[[], T | None]) -> T | None:
    """Have the agent reload, and return what `applied` does once that is true; None if no agent runs."""
    pid = machine.running(config.state_dir)
    if pid is None:
        return None
    os.kill(pid, signal.SIGHUP)
    seconds = SECONDS + len(config.leaf) * _LEAF_SECONDS
    try:
        async with asyncio.timeout(seconds):
            while True:
                await asyncio.sleep(_POLL)
                if answer := applied():
                    return answer
    except TimeoutError:
        raise NotAppliedError(
            f"{whose} (process {pid}) has not taken the change in within {seconds:.0f} s; see its log"
        ) from None


def _status(config: Config) -> dict[str, Any]:
    try:
        return status_of(config.admin)
    except AdminStatusError:
        return {}


def fleet_of(config: Config) -> dict[str, Any]:
    """What the hub's agent says of the fleet; empty where it does not answer."""
    return dict(_status(config).get("fleet", {}))


async def forget_leaf(config: Config, domain: str) -> None:
    """Remove what the hub remembers of a leaf: its record and the consumer of its commands. Its readings
    stay. Raises `NotAppliedError`."""
    try:
        async with asyncio.timeout(_CONNECT_SECONDS) as connecting, own_server(config) as link:
            connecting.reschedule(None)
            js = JetStream(link.nc)
            await js.api(f"STREAM.PURGE.KV_{FLEET_BUCKET}", {"filter": f"$KV.{FLEET_BUCKET}.{domain}"})
            await js.delete_consumer(COMMANDS, command_consumer(domain))
    except EXPECTED as error:
        raise NotAppliedError(
            f"the hub's server at {config.nats.url} cannot be asked to forget it ({reason_of(error)}); "
            "say the same again when it runs"
        ) from None


def unsent(fleet: dict[str, Any], domain: str) -> int | None:
    """How many messages a leaf announced that the hub does not hold; None if unknown."""
    classes = fleet.get("leaves", {}).get(domain, {}).get("classes", {}).values()
    announced = [row for row in classes if row.get("last") is not None]
    return sum(max(0, held["last"] - held["cursor"]) for held in announced) if announced else None
