"""Why sequences of the hub's and of the leaves' streams never came, as far as that is known.

`discarded` is the leaf's own word. The hub sequences around a hole tell whether the hub ever held it: without
a hole between them it did not. A hole in the hub's sequences has the reason that the limits of the stream
gave when ingest found it; which of two limits it was, or a purge by hand, is unknown.

A leaf's store that was restored from an older copy uses sequences again, under the same identity, so that a
sequence that came does not say which message came. But a source delivers what the stream holds in its order:
below a ledger record that knows of the lost end, both messages came or the new one alone; what stands above
it and arrived before it is an old one. Where a record is the first to know of several ends, a sequence may
have had an old message in each of these stores; whose they are is unknown when fewer came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from agent.contract.ranges import Range, intersection, size, text, union, without
from hub_jobs.audit.ledgers import LostEnd, LostStores, Place, Source
from hub_jobs.tables.delta import Table
from hub_jobs.tables.gap_notes import GapReason
from hub_jobs.tables.ranges import History
from hub_jobs.tables.scan import Condition, rows

_SAID: Final = {
    GapReason.DISCARDED: "were discarded at the edge",
    GapReason.EXPIRED: "expired at the hub: its stream had a max_age, which the hub's agent sets back to 0",
    GapReason.LIMIT: "went at the hub by a limit of its stream, which should refuse new messages instead",
    GapReason.NOT_SOURCED: "were never at the hub: its source passed them over",
    GapReason.OTHER_LAKE: "are in the lake behind which the hub purged before this one was adopted; this one "
    "never had them",
    GapReason.REMOVED: "were in bronze, and bronze no longer has them",
    GapReason.STORE_LOST: "stood in a store of the leaf that was lost before the hub had them",
    GapReason.UNREADABLE: "are in a file of bronze that can't be read",
    GapReason.UNKNOWN: "are gone, why is not known",
}


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequences of `name`, a `hub` stream with its history or a `source` (a leaf's stream and identity),
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


class Neighbours(NamedTuple):
    """Where the hub held the messages of a source that stand before and behind a hole: a sequence of each of
    its histories that held them."""

    before: Mapping[History, int]
    behind: Mapping[History, int]


def of_source(
    name: str, hole: Range, beside: Neighbours, hub: Mapping[History, Sequence[tuple[Range, GapReason]]]
) -> Gap:
    """Why a hole of a source is there, `hub` being the holes of each history of the hub."""
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
    """Those that differ in nothing but their ranges as one."""
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
    """Of each end that records of a source know to be gone, by the order of these records, the sequences of
    which an old message never came."""
    before: Place = (0, 0)
    for place, tails in sorted(lost.ends(source).items()):
        ends = [(tail.kept + 1, tail.last) for tail in tails]
        came = _came(ends, _messages(bronze, source, ends, before, place), before, place)
        for tail, end in zip(tails, ends, strict=True):
            yield tail, without([end], came)
        before = place


def _came(ends: Sequence[Range], messages: Mapping[int, int], before: Place, place: Place) -> list[Range]:
    """The sequences of which all old messages came, by how many messages of each arrived between two records
    that know of ends. What stands below the first of these in the stream came, of one store."""

    def old(seq: int) -> int:
        stores = sum(first <= seq <= last for first, last in ends)
        return stores - (seq <= before[1])

    found = [(seq, seq) for seq, count in messages.items() if count >= old(seq) + (seq <= place[1])]
    several = union(*(intersection([first], [second]) for first, second in combinations(ends, 2)))
    return union(found, without([(1, before[1])], several) if before[1] else [])


def _messages(
    bronze: Table, source: Source, ends: Sequence[Range], before: Place, place: Place
) -> dict[int, int]:
    """How many different messages of each sequence arrived behind one place and up to another."""
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
