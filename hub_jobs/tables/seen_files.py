"""Orders the files of `seen` by run, so that a pass touches only the files of its runs.

Runs are UUIDv7, so active runs are in the newest files. A run is in one ordered file only. Loose files of
recent passes name no run; when many exist they are merged into the ordered files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.tables import cache
from hub_jobs.tables.delta import ConflictError, Table, ensure_table
from hub_jobs.tables.parquet import PartFile, write_rows
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import CodedRanges
from hub_jobs.tables.scan import bounds, files, rows
from hub_jobs.tables.schemas import SEEN
from hub_jobs.tables.stream_history import StreamHistory

FILE_ROWS: Final = 250_000
"""Rows of a file: about five weeks of 10,000 leaves that restart weekly."""
_RUN_CHARACTERS: Final = 36


class SeenFile(NamedTuple):
    """An ordered file: its path, first and last run; "" stands for other spaces."""

    path: str
    first: str
    last: str


def runs_of_spaces(spaces: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the run of each space, "" for spaces of other kinds."""
    run = pc.utf8_slice_codeunits(spaces, -_RUN_CHARACTERS)
    return pc.if_else(pc.starts_with(spaces, "batch/"), run, "")


def in_order(table: Table) -> list[SeenFile]:
    """Return the ordered files, sorted by run."""
    found = files(table)
    columns = (bounds(found, name) for name in ("path", "min.run", "max.run", "null_count.run"))
    named = [
        SeenFile(path, first, last)
        for path, first, last, nulls in zip(*columns, strict=True)
        if None not in (first, last) and nulls == 0
    ]
    return sorted(named, key=lambda file: file.first)


def loose(table: Table) -> list[str]:
    """Return the paths of loose files."""
    ordered = {file.path for file in in_order(table)}
    return [path for path in files(table)["path"].to_pylist() if path not in ordered]


def about(table: Table, spaces: pa.Array) -> Table:
    """Return the table without files that hold none of these spaces."""
    runs = np.unique(np.array(runs_of_spaces(spaces).to_pylist(), dtype=object))
    chosen = Table(table.path.parent, table.name, table.delta)
    for file in in_order(table):
        at = np.searchsorted(runs, file.first)
        if at == runs.size or runs[at] > file.last:
            chosen.aside.add(file.path)
    return chosen


def with_loose(lake: Place, table: Table, added: Sequence[pa.Table], offsets: Mapping[str, int]) -> None:
    """Merge the loose files and new rows into the ordered files. Ignores a conflict. Raises
    `UnreadableError`.
    """
    ordered, gone = in_order(table), loose(table)
    new = sorted_rows(merged([_only(table, gone), *added]))
    written: list[PartFile] = []
    for file, part in _shares(ordered, new):
        if file is not None:
            gone.append(file.path)
            part = sorted_rows(merged([_only(table, [file.path]), part]))
        written += _write(lake, part)
    with suppress(ConflictError):
        table.rewrite(written, gone, offsets, changed=True)


def replace_all(lake: Place, found: pa.Table, upto: Sequence[StreamHistory]) -> None:
    """Replace the table by sorted rows that hold each history up to `done`. Ignores a conflict."""
    table = ensure_table(lake, "seen")
    offsets = cache.all_offsets(lake, upto)
    with suppress(ConflictError):
        table.commit(_write(lake, sorted_rows(found)), offsets, replace=True)


def sorted_rows(found: pa.Table) -> pa.Table:
    """Return rows with their runs, sorted by run."""
    at = SEEN.names.index("run")
    named = found.set_column(at, SEEN.field("run"), runs_of_spaces(found["space"]))
    return named.sort_by([("run", "ascending"), ("space", "ascending"), ("first", "ascending")])


def _write(lake: Place, ordered: pa.Table) -> list[PartFile]:
    runs = ordered["run"].to_numpy()
    starts = np.searchsorted(runs, runs[::FILE_ROWS]) if runs.size else np.zeros(0, dtype=np.int64)
    edges = [*np.unique(starts).tolist(), ordered.num_rows]
    written: list[PartFile] = []
    for first, end in pairwise(edges):
        written += write_rows(lake, "seen", ordered.slice(first, end - first))
    return written


def _only(table: Table, paths: Sequence[str]) -> pa.Table:
    chosen = Table(table.path.parent, table.name, table.delta)
    chosen.aside.update(set(files(table)["path"].to_pylist()) - set(paths))
    return rows(chosen, SEEN.names)


def _shares(ordered: Sequence[SeenFile], new: pa.Table) -> Iterator[tuple[SeenFile | None, pa.Table]]:
    """Assign sorted rows to the last file that begins before their run; earlier rows go to the first."""
    if not ordered:
        yield None, new
        return
    runs = new["run"].to_numpy()
    firsts = np.array([file.first for file in ordered], dtype=object)
    places = np.maximum(np.searchsorted(firsts, runs, side="right") - 1, 0)
    edges = np.searchsorted(places, np.arange(len(ordered) + 1))
    for at, file in enumerate(ordered):
        if edges[at] < edges[at + 1]:
            yield file, new.slice(edges[at], edges[at + 1] - edges[at])


def merged(known: Iterable[pa.Table]) -> pa.Table:
    """Return the same numbers in the fewest ranges."""
    given = pa.concat_tables([SEEN.empty_table(), *known])
    spaces = given["space"].combine_chunks().dictionary_encode()
    codes = spaces.indices.to_numpy().astype(np.int64)
    ranges = CodedRanges.of(codes, given["first"].to_numpy(), given["last"].to_numpy())
    return rows_of(spaces.dictionary, ranges)


def rows_of(names: pa.Array | Sequence[str], ranges: CodedRanges) -> pa.Table:
    """Return ranges as rows of `seen`; codes index `names`."""
    spaces = pa.array(names, pa.string()).take(pa.array(ranges.codes))
    unordered = pa.nulls(len(spaces), pa.string())
    return pa.table([spaces, pa.array(ranges.first), pa.array(ranges.last), unordered], schema=SEEN)
