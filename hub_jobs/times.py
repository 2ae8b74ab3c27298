"""Moments and stretches of time as they stand on the command lines of jobs, and as people read them. Pure."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta
from typing import Final

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_FORM: Final = re.compile(r"([0-9]{1,6})([smhd])\Z")


def moment(text: str) -> datetime:
    """An RFC 3339 time with an offset, in UTC. Raises `ArgumentTypeError`, for argparse."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 2026-11-21T06:00:00Z") from error
    if found.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no offset; write 2026-11-21T06:00:00Z")
    try:
        return found.astimezone(UTC)
    except OverflowError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is outside of the years 1 to 9999") from error


def stretch(text: str) -> timedelta:
    """A length of time such as `90s`, `15m`, `12h` or `7d`. Raises `ArgumentTypeError`, for argparse."""
    found = _FORM.match(text)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time; write 90s, 15m, 12h or 7d")
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])


def back(moment: datetime, by: timedelta) -> datetime:
    """A moment so long before another, and not before there were years."""
    return moment - min(by, moment - datetime.min.replace(tzinfo=UTC))


def short(seconds: float) -> str:
    """A length of time by its two largest units: `0.25s`, `45s`, `12m`, `1h56m`, `3d4h`."""
    if seconds < 10:
        return f"{round(seconds, 3):.3g}s"
    left = round(seconds)
    parts = []
    for unit, length in reversed(_UNITS.items()):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return "".join(parts)
