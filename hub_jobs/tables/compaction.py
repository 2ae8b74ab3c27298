"""Rewrites files of a table: merges small files, drops rows, or rewrites foreign files. It does not commit.

Spark needs about two milliseconds per file and query. Only small neighbours are merged, so a row is rewritten
few times and files keep narrow bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.tables.delta import Table
from hub_jobs.tables.parquet import MAX_FILE_BYTES, PartFile, PartWriter, are_own
from hub_jobs.tables.parquet_reading import fitted_groups, parquet_columns, with_more
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import History, Numbers
from hub_jobs.tables.scan import Condition, file_paths, files
from hub_jobs.tables.stream_history import file_histories

FEW: Final = 8
"""Merge this many small files even when the result is small."""
_GROUP_ROWS: Final = 65_536
_GROUP_BYTES: Final = 32 * 1024**2
_SORTED_ROWS: Final = 1_000_000
_SORTED_BYTES: Final = 256 * 1024**2

_NEIGHBOURS: Final = {
    "bronze": (("min.stream", "min.created"), "min.seq"),
    "readings": ((), "min.arrived"),
    "quarantine": ((), "min.arrived"),
    "audit": ((), "min.at"),
    "audit_hours": ((), "min.at"),
    "gaps": ((), "min.at"),
    "rollup_1m": ((), "min.window"),
    "rollup_1h": ((), "min.window"),
    "rollup_1d": ((), "min.window"),
}
"""Per table: the columns on which merged files must agree, and the ordering column. A file of bronze holds
one stream history.
"""


class Small(NamedTuple):
    """A small file: its group, its order in the group, its path and its bytes."""

    key: tuple[str, ...]
    place: Any
    path: str
    size: int


class Dropped(NamedTuple):
    """The replacement files after rows were dropped, and the number of dropped rows."""

    kept: list[PartFile]
    replaced: list[str]
    rows: int


def groups(files: Iterable[Small], target: int = MAX_FILE_BYTES) -> list[list[Small]]:
    """Return the groups of files to merge, each in order.

    Joins neighbours below half the target until they reach it. The rest is merged when it becomes large
    enough or has many files.
    """
    found = []
    small = sorted(file for file in files if file.size < target // 2)
    for _, like in groupby(small, key=lambda file: file.key):
        for group in _filled(like, target):
            size = sum(file.size for file in group)
            if len(group) > 1 and (size >= target // 2 or len(group) >= FEW):
                found.append(group)
    return found


def _filled(like: Iterable[Small], target: int) -> Iterator[list[Small]]:
    group: list[Small] = []
    size = 0
    for file in like:
        if group and size + file.size > target:
            yield group
            group, size = [], 0
        group.append(file)
        size += file.size
    if group:
        yield group


def small_files(table: Table) -> list[Small]:
    """Return the files that `groups` may merge; empty for a table that is always replaced whole."""
    if table.name not in _NEIGHBOURS:
        return []
    found = files(table)
    found = found.filter(pc.less(found["size_bytes"], MAX_FILE_BYTES // 2))
    names, order = _NEIGHBOURS[table.name]
    if not found.num_rows or order not in found.column_names:
        return []
    rows = found.select([*names, order, "path", "size_bytes"]).to_pylist()
    return [
        Small(tuple(str(row[name]) for name in names), row[order], row["path"], row["size_bytes"])
        for row in rows
        if row[order] is not None
    ]


def rewrite(
    lake: Place,
    table: Table,
    paths: Sequence[str],
    change: Callable[[pa.Table], pa.Table] = lambda rows: rows,
) -> list[PartFile]:
    """Write the rows of files, in order, into new files, with a row group or two in memory. Missing columns
    are null.
    """
    with PartWriter(lake, table.name) as writer:
        for rows in _gathered(table, paths, _GROUP_ROWS, _GROUP_BYTES):
            writer.write(change(rows))
    return writer.files


def compacted(lake: Place, table: Table, paths: Sequence[str]) -> list[PartFile]:
    """Merge files into new files. Readings are sorted by series and time, a million rows at once, so
    that a query of one device reads few row groups.
    """
    if table.name != "readings":
        return rewrite(lake, table, paths)
    with PartWriter(lake, table.name) as writer:
        for rows in _gathered(table, paths, _SORTED_ROWS, _SORTED_BYTES):
            inorder = _by_series(rows)
            # Fewer rows a row group where they are large.
            step = max(1, min(_GROUP_ROWS, _SORTED_BYTES // 4 * rows.num_rows // max(rows.nbytes, 1)))
            for at in range(0, inorder.size, step):
                writer.write(rows.take(pa.array(inorder[at : at + step])))
    return writer.files


def _gathered(table: Table, paths: Sequence[str], most_rows: int, most_bytes: int) -> Iterator[pa.Table]:
    gathered: list[pa.Table] = []
    count = size = 0
    for rows in _rows(table, paths):
        gathered.append(rows)
        count, size = count + rows.num_rows, size + rows.nbytes
        if count >= most_rows or size >= most_bytes:
            yield pa.concat_tables(gathered)
            gathered, count, size = [], 0, 0
    if gathered:
        yield pa.concat_tables(gathered)


def _by_series(rows: pa.Table) -> Numbers:
    columns = [pc.fill_null(rows["ts"].cast(pa.int64()), 0).to_numpy()]
    for name in ("metric", "device", "domain"):
        coded = rows[name].combine_chunks().dictionary_encode("encode")
        ranks = np.empty(len(coded.dictionary), np.int64)
        ranks[pc.array_sort_indices(coded.dictionary).to_numpy()] = np.arange(ranks.size)
        columns.append(ranks[coded.indices.to_numpy()])
    found: Numbers = np.lexsort(columns)
    return found


def without(
    lake: Place,
    table: Table,
    gone: Callable[[pa.Table], pa.Array],
    columns: Sequence[str],
    where: Sequence[Condition] = (),
) -> Dropped:
    """Rewrite files without unwanted rows.

    `gone` marks such rows by the given columns; `where` excludes files by their bounds.
    """

    def kept(rows: pa.Table) -> pa.Table:
        return rows.filter(pc.invert(gone(rows)))

    replaced = []
    count = 0
    for path in file_paths(table, where):
        content = parquet_columns(path, list(columns))
        rest = kept(content).num_rows
        if rest < content.num_rows:
            replaced.append(path.name)
            count += content.num_rows - rest
    return Dropped(
        [file for path in replaced for file in rewrite(lake, table, [path], kept)], replaced, count
    )


def _rows(table: Table, paths: Sequence[str]) -> Iterator[pa.Table]:
    schema = with_more(table.schema, pa.schema(table.delta.schema().to_arrow()))
    for path in paths:
        yield from fitted_groups(table.path / path, schema)


def foreign_files(table: Table) -> list[str]:
    """Return the paths of files that other programs wrote.

    Their bounds are unreliable: delta-rs 1.6.6 cuts times to milliseconds and omits NaN and infinity; DuckDB
    and PyArrow write none. Types may differ, and a file may mix histories.
    """
    found = files(table)
    paths: list[str] = found.filter(pc.invert(are_own(found["path"])))["path"].to_pylist()
    return paths


def healed(lake: Place, table: Table, path: str) -> list[PartFile]:
    """Rewrite a file in the jobs' form; bronze gets one file per history."""
    if table.name != "bronze":
        return rewrite(lake, table, [path])
    histories = sorted(
        file_history.history for file_history in file_histories(table) if file_history.path == path
    )
    return [file for history in histories for file in rewrite(lake, table, [path], partial(_of, history))]


def _of(history: History, rows: pa.Table) -> pa.Table:
    stream, created = history
    return rows.filter(pc.and_(pc.equal(rows["stream"], stream), pc.equal(rows["created"], created)))
