"""The table `seen`: what bronze holds, as ranges (see `cache`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from hub_jobs.tables import cache
from hub_jobs.tables.dedup_keys import ID_COLUMNS, SeenNumbers
from hub_jobs.tables.delta import Table
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import batches, rows
from hub_jobs.tables.schemas import SEEN
from hub_jobs.tables.stream_history import StreamHistory


def load(
    lake: Place, bronze: Table, upto: Sequence[StreamHistory], note: cache.Note = cache.unsaid
) -> SeenNumbers:
    """What bronze holds of each incarnation up to its `done`. Raises as `cache.load`."""
    table, known = cache.load(lake, "seen", upto, note)
    seen = _of(known)
    for one, after in cache.behind(table, upto):
        for ids in identities(bronze, one, after):
            seen.add(ids)
    return seen


def save(lake: Place, seen: SeenNumbers, upto: Sequence[StreamHistory]) -> None:
    """Keep it for the next run."""
    flat = [(name, first, last) for name, ranges in seen.spaces.items() for first, last in ranges]
    columns = zip(*flat, strict=True) if flat else ((), (), ())
    cache.save(lake, "seen", pa.table([pa.array(column) for column in columns], schema=SEEN), upto)


def identities(bronze: Table, one: StreamHistory, after: int) -> Iterator[pa.Table]:
    """The identities of an incarnation's rows above `after` and up to its `done`, a bounded piece at a
    time."""
    done = one.done or 0
    if done <= after:
        return
    for batch in batches(bronze, ID_COLUMNS, one.rows(after, done)):
        yield pa.Table.from_batches([batch])


def read(table: Table) -> SeenNumbers:
    """What the table says, whatever bronze holds."""
    return _of(rows(table, SEEN.names))


def _of(known: pa.Table) -> SeenNumbers:
    spaces: dict[str, list[tuple[int, int]]] = {}
    for row in known.to_pylist():
        spaces.setdefault(row["space"], []).append((row["first"], row["last"]))
    return SeenNumbers(spaces)
