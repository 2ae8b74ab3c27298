"""Handles commands by verb. Argument errors name argument, value and remedy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from agent.config import Seconds
from agent.leaf.commands.overrides import LINK, CommandError, Overrides, Value

_INPUT: Final = "input."
_LONGEST: Final = 30 * 86400.0
_MAX_LINGER: Final = 5.0
_LEVELS: Final = ("debug", "info", "warning", "error")
_SWITCH: Final = {"on": True, "off": False}
_MAX_REPORT: Final = 24 * 1024


class ArgumentError(ValueError):
    """Invalid argument; nothing was done."""


class Reply(Struct, frozen=True):
    """A handler's result."""

    text: str
    then: Callable[[], None] | None = None
    """Called after the answer is stored."""


class CommandHandler(Struct, frozen=True):
    """Handles one verb."""

    act: Callable[[Mapping[str, Any]], Awaitable[Reply]]
    """Raises `ArgumentError` or `CommandError`."""
    harmless: bool = False
    """Changes nothing, so it runs with a wrong clock and a full disk."""


class AgentControls(Struct, frozen=True):
    """The agent's operations for handlers."""

    status: Callable[[], Mapping[str, Any]]
    """Returns the contents of `/status`."""
    flush: Callable[[], int]
    """Seals all open batches and returns their number."""
    overrides: Overrides
    reload: Callable[[], Reply] | None = None
    """Plans a reload; blocks, raises `CommandError`. None without configuration file."""


def make_handlers(controls: AgentControls) -> dict[str, CommandHandler]:

    async def ping(args: Mapping[str, Any]) -> Reply:
        only(args)
        return Reply("here")

    async def status(args: Mapping[str, Any]) -> Reply:
        only(args)
        return Reply(report(controls.status()))

    async def flush(args: Mapping[str, Any]) -> Reply:
        only(args)
        return Reply(f"{controls.flush()} open batches sealed")

    async def reload(args: Mapping[str, Any]) -> Reply:
        only(args)
        if controls.reload is None:
            raise CommandError("this agent was not started by `petiole run`, so it has no configuration file")
        return await asyncio.to_thread(controls.reload)

    return {
        "ping": CommandHandler(ping, harmless=True),
        "status": CommandHandler(status, harmless=True),
        "flush": CommandHandler(flush, harmless=True),
        "reload": CommandHandler(reload),
        **setting_handlers(controls.overrides),
    }


def setting_handlers(overrides: Overrides) -> dict[str, CommandHandler]:
    """Return the handlers of temporary settings by verb. Outputs, programs, paths and keys can't be set."""

    async def set_(args: Mapping[str, Any]) -> Reply:
        seconds = _for(args)
        names = overrides.names - {LINK}
        values = {}
        for name in args.keys() - {"for"}:
            if name not in names:
                raise ArgumentError(f"{name!r:.80} cannot be set; take one of {', '.join(sorted(names))}")
            values[name] = _checked(name, args[name])
        if not values:
            raise ArgumentError(f"nothing is set; give one of {', '.join(sorted(names))}")
        await overrides.put(values, seconds)
        return Reply(f"{', '.join(sorted(values))} set for {seconds:g} s")

    async def pause_link(args: Mapping[str, Any]) -> Reply:
        only(args, "for")
        seconds = _for(args)
        await overrides.put({LINK: "paused"}, seconds)
        return Reply(f"link paused for {seconds:g} s; readings are stored here meanwhile")

    async def resume_link(args: Mapping[str, Any]) -> Reply:
        only(args)
        was_paused = await overrides.drop(LINK)
        return Reply("link resumed" if was_paused else "link was not paused")

    return {
        "set": CommandHandler(set_),
        "pause-link": CommandHandler(pause_link),
        "resume-link": CommandHandler(resume_link),
    }


def report(status: Mapping[str, Any]) -> str:
    """Return the status as JSON that fits a reading, with notes for too long parts."""
    parts = {name: json.dumps(value, separators=(",", ":")) for name, value in status.items()}
    room = _MAX_REPORT
    for name, text in sorted(parts.items(), key=lambda part: len(part[1])):
        if len(text) > room:
            parts[name] = json.dumps(f"left out: {len(text)} characters; see /status on the machine")
        room -= len(parts[name])
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in parts.items()) + "}"


def only(args: Mapping[str, Any], name: str | None = None) -> None:
    """Reject all other arguments."""
    if others := args.keys() - {name}:
        takes = "no arguments; leave them out" if name is None else f"only {name!r}; leave the rest out"
        raise ArgumentError(f"{', '.join(map(repr, sorted(others)))[:200]}: this verb takes {takes}")


def _for(args: Mapping[str, Any]) -> float:
    if "for" not in args:
        raise ArgumentError("for is missing; say for how long, such as for=1h")
    return _duration("for", args["for"], 1.0, _LONGEST)


def _checked(name: str, value: object) -> Value:
    return _on(name, value) if name.startswith(_INPUT) else _CHECKS[name](value)


def _level(value: object) -> Value:
    if isinstance(value, str) and value in _LEVELS:
        return value
    raise ArgumentError(f"log_level is {value!r:.80}; give one of {', '.join(_LEVELS)}")


def _linger(value: object) -> Value:
    return _duration("linger", value, 0.001, _MAX_LINGER)


def _rate(value: object) -> Value:
    if isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= 1e9:
        return float(value)
    raise ArgumentError(f"rate_limit is {value!r:.80}; give readings a second, 1 to 1000000000")


def _on(name: str, value: object) -> Value:
    on = _SWITCH.get(value) if isinstance(value, str) else value
    if isinstance(on, bool):
        return on
    raise ArgumentError(f"{name} is {value!r:.80}; give on or off")


def _duration(name: str, value: object, least: float, most: float) -> float:
    try:
        seconds = float(Seconds.parse(value))
    except ValueError:
        seconds = 0.0
    if not least <= seconds <= most:
        raise ArgumentError(f'{name} is {value!r:.80}; give text such as "10m", {least:g} s to {most:g} s')
    return seconds


_CHECKS: Final[Mapping[str, Callable[[object], Value]]] = {
    "log_level": _level,
    "linger": _linger,
    "rate_limit": _rate,
}
