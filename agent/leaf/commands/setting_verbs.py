"""The verbs that set something for a time: what may be set, to what, and for how long. Outputs, programs,
paths and keys are not among it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from agent.config import Seconds
from agent.leaf.commands.overrides import Overrides, Value
from agent.leaf.commands.verb import ArgumentError, CommandError, CommandHandler, Reply, no_arguments, only

LINK: Final = "link"
_INPUT: Final = "input."
_LONGEST: Final = 30 * 86400.0
_MAX_LINGER: Final = 5.0
_LEVELS: Final = ("debug", "info", "warning", "error")
_SWITCH: Final = {"on": True, "off": False}


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


def _need_link(settings: Overrides) -> None:
    if LINK not in settings.names:
        raise CommandError("this agent does not keep its link itself, so it cannot hold it")


def _for(args: Mapping[str, Any]) -> float:
    if "for" not in args:
        raise ArgumentError('for is missing; say for how long, such as for = "1h"')
    return _duration("for", args["for"], 1.0, _LONGEST)


def _duration(name: str, value: object, least: float, most: float) -> float:
    try:
        seconds = float(Seconds.parse(value))
    except ValueError:
        seconds = 0.0
    if not least <= seconds <= most:
        raise ArgumentError(f'{name} is {value!r:.80}; give text such as "10m", {least:g} s to {most:g} s')
    return seconds


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


_CHECKS: Final[Mapping[str, Callable[[object], Value]]] = {
    "log_level": _level,
    "linger": _linger,
    "rate_limit": _rate,
}


def _checked(name: str, value: object) -> Value:
    return _on(name, value) if name.startswith(_INPUT) else _CHECKS[name](value)
