"""The verbs of a leaf's agent, each a small function. None starts a program, takes a path or shows a
secret."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.leaf.commands.overrides import Overrides
from agent.leaf.commands.setting_verbs import setting_verbs
from agent.leaf.commands.verb import CommandError, CommandHandler, Reply, no_arguments

_MAX_REPORT: Final = 24 * 1024


@dataclass(frozen=True, slots=True)
class Controls:
    """What the verbs may do to the agent. `status` is what `/status` shows; `flush` seals all open batches
    and says how many there were; `reload` plans a reload, blocks, and raises `CommandError`; it is None where
    the agent has no configuration file."""

    status: Callable[[], Mapping[str, Any]]
    flush: Callable[[], int]
    settings: Overrides
    reload: Callable[[], Reply] | None = None


def make_verbs(controls: Controls) -> dict[str, CommandHandler]:
    """The verbs by name."""

    async def ping(args: Mapping[str, Any]) -> Reply:
        no_arguments(args)
        return Reply("here")

    async def status(args: Mapping[str, Any]) -> Reply:
        no_arguments(args)
        return Reply(report(controls.status()))

    async def flush(args: Mapping[str, Any]) -> Reply:
        no_arguments(args)
        return Reply(f"{controls.flush()} open batches sealed")

    async def reload(args: Mapping[str, Any]) -> Reply:
        no_arguments(args)
        if controls.reload is None:
            raise CommandError("this agent was not started by `petiole run`, so it has no configuration file")
        return await asyncio.to_thread(controls.reload)

    return {
        "ping": CommandHandler(ping, harmless=True),
        "status": CommandHandler(status, harmless=True),
        "flush": CommandHandler(flush, harmless=True),
        "reload": CommandHandler(reload),
        **setting_verbs(controls.settings),
    }


def report(status: Mapping[str, Any]) -> str:
    """The status as JSON that fits into a reading: a part that is too long for it says so."""
    parts = {name: json.dumps(value, separators=(",", ":")) for name, value in status.items()}
    room = _MAX_REPORT
    for name, text in sorted(parts.items(), key=lambda part: len(part[1])):
        if len(text) > room:
            parts[name] = json.dumps(f"left out: {len(text)} characters; see /status on the machine")
        room -= len(parts[name])
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in parts.items()) + "}"
