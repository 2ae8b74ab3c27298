"""Converts times of payloads to RFC 3339. No I/O except the zones of this machine.

A local time that a clock change repeats is read as its first pass; a time that the change skips, as if the
clock had not been changed. Both are marked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from agent import contract
from agent.contract.reading import is_time

UNITS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_EPOCH: Final = datetime(1970, 1, 1)
_LEAST, _MOST = -62_135_596_800 * 10**9, (contract.EPOCH_LIMIT + 1) * 10**9
_MAX_TEXT: Final = 64
_DIRECTIVE: Final = re.compile(r"%(.)", re.DOTALL)
_LOCAL: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,9})?\Z")
_is_time: Final = lru_cache(maxsize=256)(is_time)
"""All records of a payload have one time, often."""
REPEATED, SKIPPED = "repeated", "skipped"


class TimeError(ValueError):
    """A time can't be read; the text has fault and remedy."""


class OffsetError(TimeError):
    """A time has no offset, and its zone is unknown."""


class Stamp(NamedTuple):
    """RFC 3339 text, and the mark of a doubtful local time."""

    ts: str
    mark: str | None = None


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone. Raises `TimeError`."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise TimeError(
            f"{name!r:.60} is no time zone of this machine; write it as Europe/Berlin, and install tzdata"
        ) from None


def reader(format_: str, zone: ZoneInfo | None) -> Callable[[Any, Any], Stamp]:
    """Return the function that converts a time and its nanoseconds (0 without). It raises `TimeError`.

    Raises `TimeError` for an unusable format.
    """
    if format_ in UNITS:
        unit = UNITS[format_]
        return lambda value, nanos: Stamp(written(_ns(value, unit) + _nanos(nanos)))
    if format_ == "rfc3339":
        return lambda value, nanos: _rfc3339(value, zone)
    if "%" not in format_:
        raise TimeError(
            f"{format_!r:.60} is no format; write s, ms, us, ns, rfc3339, or a text as %Y-%m-%d %H:%M:%S"
        )
    directives = set(_DIRECTIVE.findall(format_))
    if "Z" in directives:
        # `strptime` reads names of zones, and drops them.
        raise TimeError(
            f"{format_!r:.60} has %Z, which gives no offset; write %z, or the name as text and zone"
        )
    if ("I" in directives) != ("p" in directives):
        # `strptime` reads %I without %p as the morning, and heeds no %p beside %H.
        raise TimeError(f"{format_!r:.60} has one of %I and %p; write both, or %H")
    try:
        tried = datetime.strptime(datetime(2026, 1, 2, tzinfo=UTC).strftime(format_), format_)
    except (ValueError, OverflowError, re.error) as error:
        raise TimeError(
            f"{format_!r:.60} is not read back ({error}); write it as %Y-%m-%d %H:%M:%S"
        ) from None
    if (tried.year, tried.month, tried.day) != (2026, 1, 2):
        raise TimeError(f"{format_!r:.60} has no date; write it as %Y-%m-%d %H:%M:%S")
    if tried.tzinfo is None and zone is None and "%z" not in format_:
        raise TimeError(f"{format_!r:.60} has no offset; add %z, or set zone")
    return lambda value, nanos: _strptime(value, format_, zone)


def written(ns: int) -> str:
    """Return nanoseconds since 1970 as RFC 3339. Raises `TimeError`."""
    if not _LEAST <= ns < _MOST:
        raise TimeError("time is outside of the years 1 to 9999; see time_format")
    second, rest = divmod(ns, 10**9)
    text = (_EPOCH + timedelta(seconds=second)).isoformat()
    return f"{text}.{rest:09d}".rstrip("0") + "Z" if rest else text + "Z"


def _ns(value: Any, unit: int) -> int:
    kind = type(value)
    if kind is int:
        # The range is checked before multiplication can grow it without bound.
        return value * unit if -_MOST <= value <= _MOST else _MOST
    if kind is float:
        # A double of seconds holds a quarter of a microsecond at most.
        return round(value * unit / 1000) * 1000 if abs(value) < _MOST / unit else _MOST
    if kind is str and len(value) <= _MAX_TEXT:
        try:
            number = Decimal(value.strip())
        except InvalidOperation:
            number = Decimal("nan")
        if number.is_finite() and abs(number.adjusted()) < _MAX_TEXT:
            return int(number * unit)
    raise TimeError(f"time {value!r:.60} is no number; see time_format")


def _nanos(value: Any) -> int:
    if value is None:
        return 0
    if type(value) is int and 0 <= value < 10**9:
        return value
    raise TimeError(f"time_nanos {value!r:.60} is no number of nanoseconds below a second")


def _rfc3339(value: Any, zone: ZoneInfo | None) -> Stamp:
    if type(value) is str and len(value) <= _MAX_TEXT:
        if _is_time(value):
            return Stamp(value)
        if zone is not None and (match := _LOCAL.match(value)) is not None:
            try:
                local = datetime.fromisoformat(f"{match[1]}T{match[2]}")
            except ValueError:
                raise TimeError(f"time {value!r:.60} is not in the calendar") from None
            return _in_zone(local, match[3] or "", zone)
        if _LOCAL.match(value) is not None:
            raise OffsetError(f"time {value!r:.60} has no offset; set zone")
    raise TimeError(f"time {value!r:.60} is not RFC 3339; see time_format")


def _strptime(value: Any, format_: str, zone: ZoneInfo | None) -> Stamp:
    try:
        if type(value) is not str or len(value) > _MAX_TEXT:
            raise ValueError("no short text")
        moment = datetime.strptime(value, format_)
        fraction = f".{moment.microsecond:06d}".rstrip("0").rstrip(".")
        whole = moment.replace(microsecond=0)
        if moment.tzinfo is not None:
            utc = whole.astimezone(UTC).replace(tzinfo=None)
            return Stamp(f"{utc.isoformat()}{fraction}Z")
    except (ValueError, OverflowError):
        raise TimeError(f"time {value!r:.60} is not as {format_!r:.60}") from None
    if zone is None:
        raise OffsetError(f"time {value!r:.60} has no offset; set zone")
    return _in_zone(whole, fraction, zone)


def _in_zone(local: datetime, fraction: str, zone: ZoneInfo) -> Stamp:
    first, second = (local.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    assert first is not None
    assert second is not None
    try:
        utc = local - first
    except OverflowError:
        raise TimeError("time is outside of the years 1 to 9999") from None
    mark = None if first == second else REPEATED if first > second else SKIPPED
    return Stamp(f"{utc.isoformat()}{fraction}Z", mark)
