"""Moments as microseconds since 1970, which is how the tables and the log compare them; and times and lengths
of time as people write and read them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

HOUR: Final = 3_600_000_000
"""In microseconds."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_PERIODS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}
_LENGTHS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def micros(moment: datetime) -> int:
    """A moment in microseconds since 1970."""
    return (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND


def at_micros(moment: int) -> datetime:
    """The inverse of `micros`, in UTC."""
    return _EPOCH + moment * _MICROSECOND


def back(moment: datetime, by: timedelta) -> datetime:
    """A moment so long before another, and not before there were years."""
    return moment - min(by, moment - datetime.min.replace(tzinfo=UTC))


def moment(text: str) -> datetime:
    """An RFC 3339 time with an offset, in UTC. Raises `ArgumentTypeError`, for argparse."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write 2026-11-21T06:00:00Z") from error
    if found.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no offset; write 2026-11-21T06:00:00Z")
    try:
        return found.astimezone(UTC)
    except OverflowError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is outside of the years 1 to 9999") from error


def period(text: str) -> float:
    """The seconds from one run of a job to the next, such as `500ms`, `30s`, `5m` or `1h`. Raises
    `ArgumentTypeError`, for argparse."""
    if (found := _length(text, _PERIODS)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write 500ms, 30s, 5m or 1h")
    return found


def stretch(text: str) -> timedelta:
    """A length of time such as `90s`, `15m`, `12h` or `7d`. Raises `ArgumentTypeError`, for argparse."""
    if (found := _length(text, _LENGTHS)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length of time; write 90s, 15m, 12h or 7d")
    return timedelta(seconds=found)


def _length(text: str, units: Mapping[str, float]) -> float | None:
    """The seconds of a whole number from 1 on with one of these units, None of any other text."""
    found = re.fullmatch(rf"([0-9]{{1,6}})({'|'.join(units)})", text)
    return int(found[1]) * units[found[2]] if found is not None and int(found[1]) else None


def short(seconds: float) -> str:
    """A length of time by its two largest units: `0.25s`, `45s`, `12m`, `1h56m`, `3d4h`."""
    if seconds < 10:
        return f"{round(seconds, 3):.3g}s"
    left = round(seconds)
    parts = []
    for unit, length in reversed(_LENGTHS.items()):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return "".join(parts)
