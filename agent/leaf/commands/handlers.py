"""The handlers of commands, each a small function by its verb. None starts a program, takes a path or shows a
secret. Errors about arguments name the argument, its value and what to give instead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.config import Seconds
from agent.leaf.commands.overrides import LINK, CommandError, Overrides, Value

_INPUT: Final = "input."
_LONGEST: Final = 30 * 86400.0
_MAX_LINGER: Final = 5.0
_LEVELS: Final = ("debug", "info", "warning", "error")
_SWITCH: Final = {"on": True, "off": False}
_MAX_REPORT: Final = 24 * 1024


class ArgumentError(ValueError):
    """An argument is not one of the verb; nothing was done."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a verb did. `then` is called once the answer is stored."""

    text: str
    then: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class CommandHandler:
    """`act` carries it out; raises `ArgumentError` or `CommandError`. One that is `harmless` changes nothing,
    so it is run whatever the clock says and although nothing can be written."""

    act: Callable[[Mapping[str, Any]], Awaitable[Reply]]
    harmless: bool = False


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


def setting_verbs(settings: Overrides) -> dict[str, CommandHandler]:
    """The verbs by name."""

    async def set_(args: Mapping[str, Any]) -> Reply:
        seconds = _for(args)
        known = settings.names - {LINK}
        values = {}
        for name in args.keys() - {"for"}:
            if name not in known:
                raise ArgumentError(f"{name!r:.80} cannot be set; take one of {', '.join(sorted(known))}")
            values[name] = _checked(name, args[name])
        if not values:
            raise ArgumentError(f"nothing is set; give one of {', '.join(sorted(known))}")
        await settings.put(values, seconds)
        return Reply(f"{', '.join(sorted(values))} set for {seconds:g} s")

    async def pause_link(args: Mapping[str, Any]) -> Reply:
        only(args, "for")
        seconds = _for(args)
        _need_link(settings)
        await settings.put({LINK: "held"}, seconds)
        return Reply(f"the link is held for {seconds:g} s; readings are stored here meanwhile")

    async def resume_link(args: Mapping[str, Any]) -> Reply:
        no_arguments(args)
        _need_link(settings)
        held = await settings.drop(LINK)
        return Reply("the link is let go" if held else "the link was not held")

    return {
        "set": CommandHandler(set_),
        "pause-link": CommandHandler(pause_link),
        "resume-link": CommandHandler(resume_link),
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


def _need_link(settings: Overrides) -> None:
    if LINK not in settings.names:
        raise CommandError("this agent does not keep its link itself, so it cannot hold it")


def no_arguments(args: Mapping[str, Any]) -> None:
    """Refuse all arguments."""
    if args:
        raise ArgumentError(f"{_names(args)}: this verb takes no arguments; leave them out")


def only(args: Mapping[str, Any], known: str) -> None:
    """Refuse all arguments but one."""
    if unknown := args.keys() - {known}:
        raise ArgumentError(f"{_names(unknown)}: this verb takes only {known!r}; leave the rest out")


def _names(args: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(args)))[:200]


def _for(args: Mapping[str, Any]) -> float:
    if "for" not in args:
        raise ArgumentError('for is missing; say for how long, such as for = "1h"')
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
