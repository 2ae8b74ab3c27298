"""The table `seen`: what bronze holds, as ranges. A cache that is a pure function of bronze up to the
sequences it carries as transactions: rolled forward when it is behind, made again when it is ahead or
lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from hub_jobs.incarnations import Incarnation
from hub_jobs.tables.delta import ConflictError, Table, ensure_table, open_table
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.scan import batches, rows
from hub_jobs.tables.schemas import SEEN
from hub_jobs.transforms.spaces import ID_COLUMNS, Seen


def load(lake: Path, bronze: Table, upto: Sequence[Incarnation]) -> Seen:
    """What bronze holds of each incarnation up to its `done`."""
    table = open_table(lake, "seen")
    if table is None or any((table.offset(one.refined) or 0) > (one.done or 0) for one in upto):
        seen, table = Seen(), None
    else:
        seen = _read(table)
    for one in upto:
        after = 0 if table is None else table.offset(one.refined) or 0
        for ids in identities(bronze, one, after):
            seen.add(ids)
    return seen


def save(lake: Path, seen: Seen, upto: Sequence[Incarnation]) -> None:
    """Keep it for the next run. A writer that was faster is as good."""
    table = ensure_table(lake, "seen")
    flat = [(name, first, last) for name, ranges in seen.spaces.items() for first, last in ranges]
    columns = zip(*flat, strict=True) if flat else ((), (), ())
    with PartWriter(lake, "seen") as writer:
        writer.write(pa.table([pa.array(column) for column in columns], schema=SEEN))
    try:
        table.commit(writer.files, {one.refined: one.done or 0 for one in upto}, replace=True)
    except ConflictError:
        return


def identities(bronze: Table, one: Incarnation, after: int) -> Iterator[pa.Table]:
    """The identities of an incarnation's rows above `after` and up to its `done`, a bounded piece at a
    time."""
    done = one.done or 0
    if done <= after:
        return
    where = [
        ("stream", "=", one.stream),
        ("created", "=", one.created),
        ("seq", ">", after),
        ("seq", "<=", done),
    ]
    for batch in batches(bronze, ID_COLUMNS, where):
        yield pa.Table.from_batches([batch])


def _read(table: Table) -> Seen:
    spaces: dict[str, list[tuple[int, int]]] = {}
    for row in rows(table, SEEN.names).to_pylist():
        spaces.setdefault(row["space"], []).append((row["first"], row["last"]))
    return Seen(spaces)
