"""Applies a changed configuration to the running agent, and makes the hub forget a leaf."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from agent.base import machine
from agent.cli.query import AdminStatusError, status_of
from agent.config import Config, members_digest, users_digest
from agent.contract import COMMANDS, FLEET_BUCKET, command_consumer
from agent.jetstream import JetStream, JetStreamError
from agent.jetstream.connection import EXPECTED, connected

SECONDS: Final = 30.0
_LEAF_SECONDS: Final = 0.01
"""For each leaf of a hub: its server looks at all of them, and its registrar reads them back."""
_POLL: Final = 0.1
_CONNECT_SECONDS: Final = 5.0


class NotAppliedError(Exception):
    """The agent has not applied the configuration; the text says what to do."""


async def apply_members(config: Config) -> dict[str, Any] | None:
    """Have the hub's agent reload, and return what it then says of the fleet; None if no agent runs. Raises
    `NotAppliedError` or `OSError`."""
    pid = machine.running(config.state_dir)
    if pid is None:
        return None
    os.kill(pid, signal.SIGHUP)
    digest = members_digest(config.leaf)
    fleet: dict[str, Any] = {}
    seconds = SECONDS + len(config.leaf) * _LEAF_SECONDS
    try:
        async with asyncio.timeout(seconds):
            while not (fleet.get("configured") == digest and fleet.get("links_settled")):
                await asyncio.sleep(_POLL)
                fleet = fleet_of(config)
    except TimeoutError:
        raise NotAppliedError(
            f"the hub's agent (process {pid}) has not taken the change in within {seconds:.0f} s; see its log"
        ) from None
    return fleet


async def apply_users(config: Config) -> bool:
    """Have the agent reload its users; False if no agent runs. Raises `NotAppliedError` or `OSError`."""
    pid = machine.running(config.state_dir)
    if pid is None:
        return False
    os.kill(pid, signal.SIGHUP)
    digest = users_digest(config.user)
    running = ""
    seconds = SECONDS + len(config.leaf) * _LEAF_SECONDS
    try:
        async with asyncio.timeout(seconds):
            while running != digest:
                await asyncio.sleep(_POLL)
                running = _users_of(config)
    except TimeoutError:
        raise NotAppliedError(
            f"the agent (process {pid}) has not taken the change in within {seconds:.0f} s; see its log"
        ) from None
    return True


def _users_of(config: Config) -> str:
    try:
        return str(status_of(config.admin).get("users"))
    except AdminStatusError:
        return ""


def fleet_of(config: Config) -> dict[str, Any]:
    """What the hub's agent says of the fleet; empty where it does not answer."""
    try:
        return dict(status_of(config.admin).get("fleet", {}))
    except AdminStatusError:
        return {}


async def forget_leaf(config: Config, seed: Path, domain: str) -> None:
    """Remove what the hub remembers of a leaf: its record and the consumer of its commands. Its readings
    stay. Raises `NotAppliedError`."""

    async def work(js: JetStream) -> None:
        subject = f"$KV.{FLEET_BUCKET}.{domain}"
        await js.api(f"STREAM.PURGE.KV_{FLEET_BUCKET}", {"filter": subject})
        await js.delete_consumer(COMMANDS, command_consumer(domain))

    await _at_hub(config, seed, work)


async def _at_hub(config: Config, seed: Path, work: Callable[[JetStream], Awaitable[None]]) -> None:
    url = f"nats://{config.nats.listen}"
    try:
        async with asyncio.timeout(_CONNECT_SECONDS) as connecting, connected(url, seed, "registrar") as link:
            connecting.reschedule(None)
            await work(JetStream(link.nc))
    except (*EXPECTED, JetStreamError) as error:
        raise NotAppliedError(
            f"the hub's server at {url} cannot be asked to forget it ({str(error) or type(error).__name__}); "
            f"say the same again when it runs"
        ) from None


def unsent(fleet: dict[str, Any], domain: str) -> int | None:
    """How many messages a leaf announced that the hub does not hold; None if unknown."""
    classes = fleet.get("leaves", {}).get(domain, {}).get("classes", {}).values()
    announced = [row for row in classes if row.get("last") is not None]
    return sum(max(0, held["last"] - held["cursor"]) for held in announced) if announced else None
