"""Why sequences were gone from the hub's stream when ingest found the gap, as bronze tells it.

The commit that passes a gap notes its ranges and the reason. A table's log is kept for a week, and the gap
stays for as long as the lake does, so the reason stands in transactions too, which no checkpoint forgets:
of each history numbered spans with one reason each, so that their number grows with changes of the reason,
not with gaps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Final

from agent.contract import HUB_DOMAIN
from agent.contract.ranges import Range
from hub_jobs.tables.delta import Table
from hub_jobs.tables.ranges import History

if TYPE_CHECKING:
    from hub_jobs.source.streams import StreamInfo

GAPS_NOTE: Final = "petiole.gaps"
"""Of a commit of bronze: the sequences that were gone, as ranges."""

GAP_REASON_NOTE: Final = "petiole.gaps.why"
"""And of which history, and the reason that the stream's limits gave then."""

_SPANS_KEPT: Final = "gaps"
"""The transaction of bronze that says that spans are kept: what earlier releases noted is among them."""

_NEARLY_FULL: Final = 0.9


class GapReason(StrEnum):
    """Why sequences never came."""

    DISCARDED = "discarded"
    EXPIRED = "expired"
    LIMIT = "hub limit"
    NOT_SOURCED = "not sourced"
    OTHER_LAKE = "other lake"
    REMOVED = "removed"
    STORE_LOST = "store lost"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"


def reason_by_limits(info: StreamInfo) -> GapReason:
    """Why messages are gone from a stream of the hub, by the limits that it has now."""
    limits = info.limits
    full = 0 < limits.max_messages <= info.messages or 0 < limits.max_bytes * _NEARLY_FULL <= info.bytes
    by_limit = limits.max_per_subject > 0 or (limits.discards_old and full)
    by_age = limits.max_age_ns > 0
    if by_limit == by_age:
        return GapReason.UNKNOWN
    return GapReason.LIMIT if by_limit else GapReason.EXPIRED


ReasonSpan = tuple[Range, GapReason]


def notes_of(history: History, gaps: Sequence[Range], why: GapReason) -> dict[str, str] | None:
    """What the history of bronze says of the commit that passes these gaps."""
    if not gaps:
        return None
    return {GAPS_NOTE: json.dumps(gaps), GAP_REASON_NOTE: json.dumps([*history, why])}


def offsets_of(bronze: Table, history: History, gaps: Sequence[Range], why: GapReason) -> dict[str, int]:
    """The transactions that the same commit carries; the first such commit carries what the log still tells
    of earlier ones."""
    found = [(history, gaps, why)] if gaps else []
    if bronze.offset(_SPANS_KEPT) is not None:
        return _offsets(bronze, found)
    return {_SPANS_KEPT: 1, **_offsets(bronze, [*reversed(list(_in_log(bronze))), *found])}


def noted(bronze: Table, histories: Iterable[History]) -> dict[History, list[ReasonSpan]]:
    """The reasons of gaps of each history: what its commits noted, as far back as the log goes, and behind
    it the spans in which these and all older gaps are."""
    found: dict[History, list[ReasonSpan]] = {history: [] for history in histories}
    for history, gaps, why in _in_log(bronze):
        if history in found:
            found[history] += [(gap, why) for gap in gaps]
    for history, spans in found.items():
        spans += _spans(bronze.offset, history)
    return found


def _in_log(bronze: Table) -> Iterator[tuple[History, list[Range], GapReason]]:
    """What commits noted, the newest first."""
    for commit in bronze.delta.history():
        if GAPS_NOTE in commit and GAP_REASON_NOTE in commit:
            stream, created, why = json.loads(commit[GAP_REASON_NOTE])
            yield (
                (stream, created),
                [(first, last) for first, last in json.loads(commit[GAPS_NOTE])],
                GapReason(why),
            )


def _offsets(bronze: Table, found: Iterable[tuple[History, Sequence[Range], GapReason]]) -> dict[str, int]:
    offsets: dict[str, int] = {}

    def offset(app_id: str) -> int | None:
        return offsets.get(app_id, bronze.offset(app_id))

    for history, gaps, why in found:
        spans = list(_spans(offset, history))
        number = len(spans)
        if not spans or spans[-1][1] is not why:
            number += 1
            offsets[_first(history, number)] = gaps[0][0]
        offsets[_last(history, number, why)] = gaps[-1][1]
    return offsets


def _spans(offset: Callable[[str], int | None], history: History) -> Iterator[ReasonSpan]:
    for number in count(1):
        first = offset(_first(history, number))
        if first is None:
            return
        for why in GapReason:
            last = offset(_last(history, number, why))
            if last is not None:
                yield (first, last), why


def _first(history: History, number: int) -> str:
    return f"{_SPANS_KEPT}:{HUB_DOMAIN}/{history[0]}@{history[1]}#{number}"


def _last(history: History, number: int, why: GapReason) -> str:
    return f"{_first(history, number)}:{why}"
