"""Applies changed leaves and users to a running agent, and forgets leaves; prints failures and exits."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import typer

from agent.base import machine
from agent.base.wait import timeout
from agent.cli.configuration import Edit, end
from agent.cli.members.edit import MemberError
from agent.cli.query import AdminStatusError, own_server, status_of
from agent.config import Config, ConfigError, cell_of_leaf, cells, load, members_digest, users_digest
from agent.contract import COMMANDS, FLEET_BUCKET, Exit, command_consumer
from agent.hub.fleet_rows import behind_of
from agent.jetstream import STREAM_NOT_FOUND, JetStream, JetStreamError, unless_refused
from agent.jetstream.connection import EXPECTED
from agent.jetstream.info import reason_of
from agent.leaf.inputs import OPTIONS

SECONDS: Final = 30.0
_LEAF_SECONDS: Final = 0.01
"""Time per leaf, which server and registrar both examine."""
_POLL: Final = 0.1
_CONNECT_SECONDS: Final = 5.0


class NotAppliedError(Exception):
    """The agent did not apply the configuration; the text has the remedy."""


def edited_or_end(edit: Edit, change: Callable[[str], str]) -> str:
    """Return the edited text, or exit."""
    try:
        return change(edit.text)
    except UnicodeDecodeError as error:
        end([f"{edit.path}: byte {error.start} is not UTF-8; save the file as UTF-8"])
    except MemberError as error:
        end([f"{edit.path}: {error}"])


def loaded_or_end(path: Path, text: str) -> Config:
    """Return the configuration of a text, or exit."""
    try:
        return load(path, OPTIONS, text)
    except ConfigError as error:
        end(error.problems)


def apply_or_end(whose: str, config: Config, apply: Coroutine[Any, Any, bool], done: str) -> None:
    """Apply a stored change and print `done`, or that it waits for a start; exit on refusal."""
    try:
        taken = asyncio.run(apply)
    except (NotAppliedError, OSError) as error:
        end([str(error)], Exit.UNREACHABLE)
    waits = f"the change is in the file, and {whose} applies it when it starts: none runs with the state"
    typer.echo(done if taken else f"{waits} directory {config.state_dir}")


async def apply_members(config: Config) -> bool:
    """Reload the hub's leaves; False without agent. Raises `NotAppliedError` or `OSError`."""
    digest = members_digest(config.leaf)

    def applied() -> bool:
        fleet = fleet_of(config)
        return fleet.get("configured") == digest and bool(fleet.get("links_settled"))

    return await _reloaded(config, "the hub's agent", applied)


async def apply_users(config: Config) -> bool:
    """Reload the users; False without agent. Raises `NotAppliedError` or `OSError`."""
    digest = users_digest(config.user)
    return await _reloaded(config, "the agent", lambda: _status(config).get("users") == digest)


async def _reloaded(config: Config, whose: str, applied: Callable[[], bool]) -> bool:
    """Reload the agent and wait until `applied`; False without agent."""
    pid = machine.running(config.state_dir)
    if pid is None:
        return False
    os.kill(pid, signal.SIGHUP)
    seconds = SECONDS + len(config.leaf) * _LEAF_SECONDS
    try:
        async with timeout(seconds):
            while True:
                await asyncio.sleep(_POLL)
                if applied():
                    return True
    except TimeoutError:
        raise NotAppliedError(
            f"{whose} (process {pid}) has not taken the change in within {seconds:.0f} s; see its log"
        ) from None


def _status(config: Config) -> dict[str, Any]:
    try:
        return status_of(config)
    except AdminStatusError:
        return {}


def fleet_of(config: Config) -> dict[str, Any]:
    """Return the hub's fleet, {} without answer."""
    return dict(_status(config).get("fleet", {}))


async def forget_leaf(config: Config, domain: str) -> bool:
    """Delete a leaf's record and command consumer, not its readings; returns whether a record existed.

    Raises `NotAppliedError`.
    """
    try:
        async with timeout(_CONNECT_SECONDS) as connecting, own_server(config) as link:
            connecting.reschedule(None)
            js = JetStream(link.nc)
            record = {"filter": f"$KV.{FLEET_BUCKET}.{domain}"}
            answer = await js.api(f"STREAM.PURGE.KV_{FLEET_BUCKET}", record)
        async with timeout(_CONNECT_SECONDS), own_server(config, cell_of_leaf(config, domain)) as link:
            await JetStream(link.nc).delete_consumer(COMMANDS, command_consumer(domain))
        return bool(answer["purged"])
    except EXPECTED as error:
        raise NotAppliedError(
            f"the hub's server at {config.nats.url} cannot be asked to forget it ({reason_of(error)}); "
            "say the same again when it runs"
        ) from None


async def commanded(config: Config) -> set[str]:
    """The leaves for which commands are stored that have not expired. Raises `NotAppliedError`."""
    from agent.cli.command import expires  # with the libraries of the commands that ask a server
    from agent.jetstream.readers import StoredHeaders, read_headers

    found = set[str]()

    def take(stored: StoredHeaders) -> None:
        if expires(stored) > time.time():
            found.add(stored.subject.split(".")[1])

    try:
        for cell in cells(config):
            async with timeout(SECONDS), own_server(config, cell) as link:
                with unless_refused(STREAM_NOT_FOUND):
                    await read_headers(link.nc, JetStream(link.nc), COMMANDS, {"deliver_policy": "all"}, take)
    except (*EXPECTED, JetStreamError) as error:
        raise NotAppliedError(
            f"the hub's server at {config.nats.url} does not say which leaves have commands "
            f"({reason_of(error)}); say the same again when it runs"
        ) from None
    return found


def unsent(fleet: dict[str, Any], domain: str) -> int | None:
    """Return a leaf's announced messages missing at the hub, None if unknown."""
    classes = fleet.get("leaves", {}).get(domain, {}).get("classes", {}).values()
    lags = [lag for row in classes if (lag := behind_of(row)) is not None]
    return sum(lags) if lags else None
