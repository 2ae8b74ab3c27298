"""Converts moments to microseconds since 1970, and parses and formats times and durations."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

HOUR: Final = 3_600_000_000
"""An hour in microseconds."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_PERIODS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}
_LENGTHS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def micros(moment: datetime) -> int:
    """Return a moment in microseconds since 1970."""
    return (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND


def at_micros(moment: int) -> datetime:
    """Invert `micros`, in UTC."""
    return _EPOCH + moment * _MICROSECOND


def back(moment: datetime, by: timedelta) -> datetime:
    """Subtract a duration, not below year 1."""
    return moment - min(by, moment - datetime.min.replace(tzinfo=UTC))


def moment(text: str) -> datetime:
    """Parse an RFC 3339 time with offset to UTC. Raises `ArgumentTypeError`."""
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
    """Parse an interval such as `500ms`, `30s`, `5m` or `1h` to seconds. Raises `ArgumentTypeError`."""
    if (found := _length(text, _PERIODS)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write 500ms, 30s, 5m or 1h")
    return found


def stretch(text: str) -> timedelta:
    """Parse a duration such as `90s`, `15m`, `12h` or `7d`. Raises `ArgumentTypeError`."""
    if (found := _length(text, _LENGTHS)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length of time; write 90s, 15m, 12h or 7d")
    return timedelta(seconds=found)


def _length(text: str, units: Mapping[str, float]) -> float | None:
    found = re.fullmatch(rf"([0-9]{{1,6}})({'|'.join(units)})", text)
    return int(found[1]) * units[found[2]] if found is not None and int(found[1]) else None


def short(seconds: float) -> str:
    """Format a duration by its two largest units: `0.25s`, `45s`, `12m`, `1h56m`, `3d4h`."""
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
