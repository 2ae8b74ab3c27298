"""Filters of a query that narrow what is read from the server. Pure: no Spark, no network.

They only narrow: every filter is applied by Spark again, so what is passed over here costs time, never rows.
Time bounds rest on the server's search by time, which takes its clock not to have gone back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LITERAL: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*\Z")
_MAX_SUBJECTS: Final = 64
"""More subjects than this are cheaper to sift here than on the server."""


@dataclass(frozen=True, slots=True)
class RangeFilter:
    """Sequences `first` to `last` and moments from `since` to before `until` (ns since 1970), None where
    there is no bound; `subjects` empty: all."""

    first: int = 1
    last: int | None = None
    since: int | None = None
    until: int | None = None
    subjects: tuple[str, ...] = ()


def narrowed(limits: RangeFilter, operator: str, column: str, value: Any) -> RangeFilter:
    """The limits after one more filter, as they were where it says nothing that can be used. `operator` is
    `=`, `>`, `>=`, `<`, `<=`, `in` or `prefix`."""
    narrow = _BY_COLUMN.get(column)
    return limits if narrow is None else narrow(limits, operator, value)


def _by_sequence(limits: RangeFilter, operator: str, value: Any) -> RangeFilter:
    if not isinstance(value, int) or isinstance(value, bool):
        return limits
    if operator in ("=", ">", ">="):
        limits = replace(limits, first=max(limits.first, value + (operator == ">")))
    if operator in ("=", "<", "<="):
        last = value - (operator == "<")
        limits = replace(limits, last=last if limits.last is None else min(limits.last, last))
    return limits


def _by_time(limits: RangeFilter, operator: str, value: Any) -> RangeFilter:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return limits
    # A row shows its time cut to microseconds: it equals `value` for a thousand nanoseconds.
    start = (value - _EPOCH) // timedelta(microseconds=1) * 1000
    if operator in ("=", ">", ">="):
        since = start + 1000 * (operator == ">")
        limits = replace(limits, since=since if limits.since is None else max(limits.since, since))
    if operator in ("=", "<", "<="):
        until = start + 1000 * (operator != "<")
        limits = replace(limits, until=until if limits.until is None else min(limits.until, until))
    return limits


def _by_subject(limits: RangeFilter, operator: str, value: Any) -> RangeFilter:
    if limits.subjects:
        return limits  # one list is enough; Spark applies the other
    wanted: tuple[str, ...] = ()
    if operator == "=":
        wanted = (value,)
    elif operator == "in":
        wanted = tuple(value)
    elif operator == "prefix" and isinstance(value, str) and value.endswith("."):
        return replace(limits, subjects=(f"{value}>",)) if _LITERAL.match(value[:-1]) else limits
    usable = 0 < len(wanted) <= _MAX_SUBJECTS and all(
        isinstance(subject, str) and _LITERAL.match(subject) for subject in wanted
    )
    return replace(limits, subjects=tuple(dict.fromkeys(wanted))) if usable else limits


_BY_COLUMN: Final[dict[str, Callable[[RangeFilter, str, Any], RangeFilter]]] = {
    "seq": _by_sequence,
    "timestamp": _by_time,
    "subject": _by_subject,
}
