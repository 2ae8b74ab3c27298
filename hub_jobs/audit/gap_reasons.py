"""Sequences that never came, of the hub's stream and of the leaves', and why as far as that can be told.

What is known: `discarded` is the leaf's own word. Whether the hub ever held a message of a leaf is told by
the hub sequences beside it: without a hole between them it was never there. A hole in the hub's own sequences
has the reason that the stream's limits gave when the hole was found; nobody says which of several it was, nor
that it was none of them but a hand. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from hub_jobs.ingest.gap_notes import GapReason
from hub_jobs.tables.ranges import History, Range, size, text, union

_SAID: Final = {
    GapReason.DISCARDED: "were discarded at the edge",
    GapReason.EXPIRED: "expired at the hub: its stream had a max_age, which the hub's agent sets back to 0",
    GapReason.LIMIT: "went at the hub by a limit of its stream, which should refuse new messages instead",
    GapReason.NOT_SOURCED: "were never at the hub: its source passed them over",
    GapReason.REMOVED: "were in bronze, and bronze no longer has them",
    GapReason.STORE_LOST: "stood in a store of the leaf that was lost before the hub had them",
    GapReason.UNREADABLE: "are in a file of bronze that can't be read",
    GapReason.UNKNOWN: "are gone, why is not known",
}


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequences of `name`, a `hub` stream with its incarnation or a `source` (a leaf's stream and identity),
    that never came. With a reason that is meant to be, or before the first that came, they are no loss of
    their own; what was promised of them is counted by the ledgers."""

    kind: str
    name: str
    ranges: Sequence[Range]
    why: GapReason
    detail: str = ""
    lost: bool = True

    def __str__(self) -> str:
        verb = "are not in bronze" if self.kind == "hub" else "never came"
        detail = f"; {self.detail}" if self.detail else ""
        what = (
            f"{'hub stream' if self.kind == 'hub' else 'source'} {self.name}: sequences {text(self.ranges)}"
        )
        if self.why in (GapReason.DISCARDED, GapReason.REMOVED, GapReason.UNREADABLE):
            return f"{what} {_SAID[self.why]}{detail}"
        return f"{what} {verb}: {self.why}, they {_SAID[self.why]}{detail}"

    def as_json(self) -> dict[str, Any]:
        """The gap as it stands in a report."""
        return {**asdict(self), "ranges": [list(one) for one in self.ranges], "why": str(self.why)}


class Neighbours(NamedTuple):
    """Where the hub held the messages of a source that stand before and behind a hole: a sequence of each of
    its streams and incarnations that held them."""

    before: Mapping[History, int]
    behind: Mapping[History, int]


def of_source(
    name: str, hole: Range, beside: Neighbours, hub: Mapping[History, Sequence[tuple[Range, GapReason]]]
) -> Gap:
    """Why a hole of a source is there, `hub` being the holes of each stream and incarnation of the hub."""
    both = sorted(beside.before.keys() & beside.behind.keys())
    if not both:
        return Gap("source", name, [hole], GapReason.UNKNOWN, "the hub's stream is another one behind them")
    low, high = sorted((beside.before[both[0]], beside.behind[both[0]]))
    between = [(one, why) for one, why in hub.get(both[0], ()) if low < one[0] and one[1] < high]
    gone = size(one for one, _ in between)
    if not gone:
        return Gap("source", name, [hole], GapReason.NOT_SOURCED)
    reasons = {why for _, why in between}
    if gone >= size([hole]) and len(reasons) == 1:
        return Gap("source", name, [hole], reasons.pop(), "with the messages of the hub's stream there")
    return Gap("source", name, [hole], GapReason.UNKNOWN, "fewer are gone from the hub's stream there")


def joined(gaps: Sequence[Gap]) -> list[Gap]:
    """Those that differ in nothing but their ranges as one."""
    found: dict[tuple[str, str, GapReason, str, bool], list[Range]] = {}
    for one in gaps:
        found.setdefault((one.kind, one.name, one.why, one.detail, one.lost), []).extend(one.ranges)
    return [
        Gap(kind, name, union(ranges), why, detail, lost)
        for (kind, name, why, detail, lost), ranges in found.items()
    ]
