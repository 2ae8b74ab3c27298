"""Records why sequences were missing from the hub's stream when ingest passed them.

The commit notes the ranges and the reason. The log is kept for a week, so transactions keep the reasons too:
numbered spans per history, each with one reason.
"""

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
    from hub_jobs.source.streams import HubStream

GAPS_NOTE: Final = "petiole.gaps"
"""The missing sequences of a bronze commit, as ranges."""

GAP_REASON_NOTE: Final = "petiole.gaps.why"
"""The history of a gap, and the reason by the stream's limits."""

_SPANS: Final = "gaps"
"""The prefix of the bronze transactions that keep spans."""

_NEARLY_FULL: Final = 0.9


class GapReason(StrEnum):
    """Why sequences never came: the word in bronze, and the audit's words for it."""

    said: str

    DISCARDED = "discarded", "were discarded at the edge"
    EXPIRED = (
        "expired",
        "expired at the hub: its stream had a max_age, which the hub's agent sets back to 0",
    )
    LIMIT = "hub limit", "went at the hub by a limit of its stream, which should refuse new messages instead"
    NOT_SOURCED = "not sourced", "were never at the hub: its source passed them over"
    OTHER_LAKE = (
        "other lake",
        "are in the lake behind which the hub purged before this one was adopted; this one never had them",
    )
    REMOVED = "removed", "were in bronze, and bronze no longer has them"
    STORE_LOST = "store lost", "stood in a store of the leaf that was lost before the hub had them"
    UNREADABLE = "unreadable", "are in a file of bronze that can't be read"
    UNKNOWN = "unknown", "are gone, why is not known"

    def __new__(cls, word: str, said: str = "") -> GapReason:
        member = str.__new__(cls, word)
        member._value_, member.said = word, said
        return member


def reason_by_limits(info: HubStream) -> GapReason:
    """Return why the stream's present limits remove messages."""
    limits = info.limits
    full = 0 < limits.max_messages <= info.messages or 0 < limits.max_bytes * _NEARLY_FULL <= info.bytes
    by_limit = limits.max_per_subject > 0 or (limits.discards_old and full)
    by_age = limits.max_age_ns > 0
    if by_limit == by_age:
        return GapReason.UNKNOWN
    return GapReason.LIMIT if by_limit else GapReason.EXPIRED


ReasonSpan = tuple[Range, GapReason]


def notes_of(history: History, gaps: Sequence[Range], why: GapReason) -> dict[str, str] | None:
    """Return the commit notes for gaps of a history, None without gaps."""
    if not gaps:
        return None
    return {GAPS_NOTE: json.dumps(gaps), GAP_REASON_NOTE: json.dumps([*history, why])}


def offsets_of(bronze: Table, history: History, gaps: Sequence[Range], why: GapReason) -> dict[str, int]:
    """Return the transactions of the same commit."""
    offsets: dict[str, int] = {}
    if gaps:
        spans = list(_spans(bronze.offset, history))
        number = len(spans)
        if not spans or spans[-1][1] is not why:
            number += 1
            offsets[_first(history, number)] = gaps[0][0]
        offsets[_last(history, number, why)] = gaps[-1][1]
    return offsets


def noted(bronze: Table, histories: Iterable[History]) -> dict[History, list[ReasonSpan]]:
    """Return the gap reasons per history: from the log as far back as it reaches, then from the spans."""
    found: dict[History, list[ReasonSpan]] = {history: [] for history in histories}
    for history, gaps, why in _in_log(bronze):
        if history in found:
            found[history] += [(gap, why) for gap in gaps]
    for history, spans in found.items():
        spans += _spans(bronze.offset, history)
    return found


def _in_log(bronze: Table) -> Iterator[tuple[History, list[Range], GapReason]]:
    for commit in bronze.delta.history():
        if GAPS_NOTE in commit and GAP_REASON_NOTE in commit:
            stream, created, why = json.loads(commit[GAP_REASON_NOTE])
            yield (
                (stream, created),
                [(first, last) for first, last in json.loads(commit[GAPS_NOTE])],
                GapReason(why),
            )


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
    return f"{_SPANS}:{HUB_DOMAIN}/{history[0]}@{history[1]}#{number}"


def _last(history: History, number: int, why: GapReason) -> str:
    return f"{_first(history, number)}:{why}"
