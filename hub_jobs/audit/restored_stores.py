"""Which messages stood only in a leaf's store that an older one replaced, as far as bronze tells.

The leaf's stream uses their sequences again, under the same identity, so a sequence that came says not which
message came. But a source delivers what the stream holds in its order: of what stands below a ledger record
that knows of the end, both messages came or the new one alone; what stands above it and arrived before it is
an old one. Where a record is the first to know of several ends, a sequence may have had an old message in
each of these stores; of fewer that came nobody can say whose they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.audit.evictions import both
from hub_jobs.audit.ledgers import Lost, LostEnd, Place, Source
from hub_jobs.tables import Condition, Table
from hub_jobs.tables.ranges import Range, union, without
from hub_jobs.tables.scan import rows


def missing(bronze: Table, source: Source, lost: Lost) -> Iterator[tuple[LostEnd, list[Range]]]:
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
    several = union(*(both([one], [other]) for one, other in combinations(ends, 2)))
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
