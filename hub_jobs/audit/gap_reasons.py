"""Explains why sequences of hub and leaf streams never arrived.

A leaf reports its discards. When the hub sequences around a hole are contiguous, the hub never held it;
otherwise the reason is the stream's limits at ingest. A purge by hand can't be told from a limit.

A leaf store restored from an older copy reuses sequences under one identity. A source delivers in stream
order: below a ledger record that knows of the lost end, both messages or the new one arrived; a message above
it that arrived earlier is old. When a record is the first to know of several ends, the store of a missing
message may be unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from agent.contract.ranges import Range, intersection, size, text, union, without
from hub_jobs.audit.ledgers import LostEnd, LostStores, Place, Source
from hub_jobs.tables.delta import Table
from hub_jobs.tables.gap_notes import GapReason
from hub_jobs.tables.ranges import History
from hub_jobs.tables.scan import Condition, rows


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequences of `name` that never arrived: a `hub` stream's history, or a `source` (leaf stream and
    identity).

    A gap with a deliberate reason, or before the first arrival, is no loss; ledgers count its promises.
    """

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
            return f"{what} {self.why.said}{detail}"
        return f"{what} {verb}: {self.why}, they {self.why.said}{detail}"


class Neighbours(NamedTuple):
    """Hub sequences of the source messages before and after a hole, per history."""

    before: Mapping[History, int]
    behind: Mapping[History, int]


def of_source(
    name: str, hole: Range, beside: Neighbours, hub: Mapping[History, Sequence[tuple[Range, GapReason]]]
) -> Gap:
    """Explain a hole of a source; `hub` has the holes of each hub history."""
    both = sorted(beside.before.keys() & beside.behind.keys())
    if not both:
        return Gap("source", name, [hole], GapReason.UNKNOWN, "the hub's stream is another one behind them")
    low, high = sorted((beside.before[both[0]], beside.behind[both[0]]))
    between = [(span, why) for span, why in hub.get(both[0], ()) if low < span[0] and span[1] < high]
    gone = size(span for span, _ in between)
    if not gone:
        return Gap("source", name, [hole], GapReason.NOT_SOURCED)
    reasons = {why for _, why in between}
    if gone >= size([hole]) and len(reasons) == 1:
        return Gap("source", name, [hole], reasons.pop(), "with the messages of the hub's stream there")
    return Gap("source", name, [hole], GapReason.UNKNOWN, "fewer are gone from the hub's stream there")


def joined(gaps: Sequence[Gap]) -> list[Gap]:
    """Merge gaps that differ only in ranges."""
    found: dict[tuple[str, str, GapReason, str, bool], list[Range]] = {}
    for gap in gaps:
        found.setdefault((gap.kind, gap.name, gap.why, gap.detail, gap.lost), []).extend(gap.ranges)
    return [
        Gap(kind, name, union(ranges), why, detail, lost)
        for (kind, name, why, detail, lost), ranges in found.items()
    ]


def missing_of_restored(
    bronze: Table, source: Source, lost: LostStores
) -> Iterator[tuple[LostEnd, list[Range]]]:
    """Yield the sequences of each lost end, in record order, whose old message never arrived."""
    before: Place = (0, 0)
    for place, tails in sorted(lost.ends(source).items()):
        ends = [(tail.kept + 1, tail.last) for tail in tails]
        came = _came(ends, _messages(bronze, source, ends, before, place), before, place)
        for tail, end in zip(tails, ends, strict=True):
            yield tail, without([end], came)
        before = place


def _came(ends: Sequence[Range], messages: Mapping[int, int], before: Place, place: Place) -> list[Range]:
    """Return the sequences whose old messages all arrived, by the number of distinct messages between two
    records.
    """

    def old(seq: int) -> int:
        stores = sum(first <= seq <= last for first, last in ends)
        return stores - (seq <= before[1])

    found = [(seq, seq) for seq, count in messages.items() if count >= old(seq) + (seq <= place[1])]
    several = union(*(intersection([first], [second]) for first, second in combinations(ends, 2)))
    return union(found, without([(1, before[1])], several) if before[1] else [])


def _messages(
    bronze: Table, source: Source, ends: Sequence[Range], before: Place, place: Place
) -> dict[int, int]:
    """Count distinct messages per sequence that arrived between two places."""
    where: list[Condition] = [
        ("source_stream", "=", source[0]),
        ("source_identity", "=", source[1]),
        ("source_seq", ">=", min(first for first, _ in ends)),
        ("source_seq", "<=", max(last for _, last in ends)),
    ]
    here = pa.scalar(before[0]), pa.scalar(place[0])
    found = rows(bronze, ("source_seq", "digest", "arrived"), where)
    moment = pc.cast(found["arrived"], "int64")
    found = found.filter(pc.and_(pc.greater(moment, here[0]), pc.less_equal(moment, here[1])))
    counted = found.group_by("source_seq").aggregate([("digest", "count_distinct")])
    return dict(zip(*(counted[name].to_pylist() for name in counted.column_names), strict=True))
