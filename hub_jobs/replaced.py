"""Which messages stood only in a leaf's store that an older one replaced, as far as bronze tells.

The leaf's stream uses their sequences again, under the same identity, so a sequence that came says not which
message came. But a source delivers what the stream holds in its order: of what stands below a ledger record
that knows of the end, both messages came or the new one alone; what stands above it and arrived before it is
an old one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.tables import Condition, Table
from hub_jobs.tables.scan import rows
from hub_jobs.transforms.ledgers import Lost, Place, Source, Tail
from hub_jobs.transforms.ranges import Range, union, without


def missing(bronze: Table, source: Source, lost: Lost) -> Iterator[tuple[Tail, list[Range]]]:
    """Of each end that records of a source know to be gone, oldest first, the sequences whose old message
    never came."""
    told = sorted((places[source], tail) for tail, places in lost.tails.items() if source in places)
    before: Place = (0, 0)
    for place, tail in told:
        _, kept, last = tail
        yield tail, without([(kept + 1, last)], _came(bronze, source, (kept + 1, last), before, place))
        before = place


def _came(bronze: Table, source: Source, asked: Range, before: Place, place: Place) -> list[Range]:
    """The sequences of a range whose old message came. `before` is the place of the first record that knew of
    the end before this: what stands below it in the stream came."""
    where: list[Condition] = [
        ("source_stream", "=", source[0]),
        ("source_identity", "=", source[1]),
        ("source_seq", ">=", asked[0]),
        ("source_seq", "<=", asked[1]),
    ]
    columns = ("source_seq", "digest", "arrived")
    here = pa.scalar(before[0]), pa.scalar(place[0])
    found = rows(bronze, columns, where)
    moment = pc.cast(found["arrived"], "int64")
    found = found.filter(pc.and_(pc.greater(moment, here[0]), pc.less_equal(moment, here[1])))
    counted = found.group_by("source_seq").aggregate([("digest", "count_distinct")])
    came = [
        (seq, seq)
        for seq, messages in zip(*(counted[name].to_pylist() for name in counted.column_names), strict=True)
        if messages > (seq <= place[1])
    ]
    return union([*came, *([(1, before[1])] if before[1] else [])])
