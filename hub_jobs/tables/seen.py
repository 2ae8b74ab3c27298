"""Keeps the table `seen`: the messages that bronze holds, as numbers in `spaces`. A cache (see `cache`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.tables import cache, seen_files
from hub_jobs.tables.delta import Table, ensure_table
from hub_jobs.tables.parquet_reading import UnreadableError
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import CodedRanges, Numbers
from hub_jobs.tables.scan import batches, rows
from hub_jobs.tables.schemas import SEEN
from hub_jobs.tables.spaces import ID_COLUMNS, Placed, Places, SeenNumbers, numbers_in
from hub_jobs.tables.stream_history import StreamHistory, open_bronze

_MOST_FILES: Final = 16
"""Loose files of `seen` from which a run merges them."""
_RANGES: Final = ("space", "first", "last")
_Read = TypeVar("_Read")


class SeenTable:
    """The rows of `seen` and additions. Rows stay on disk; a question reads the files that may answer it.

    `remake` returns the identities of bronze rows when a file of `seen` is damaged.
    """

    def __init__(
        self,
        table: Table | None = None,
        remake: Callable[[], Iterator[pa.Table]] = lambda: iter(()),
        note: cache.Note = cache.unsaid,
    ) -> None:
        self._table, self._remake, self._note = table, remake, note
        self._added: list[pa.Table] = []

    def add(self, ids: pa.Table) -> None:
        """Add rows of bronze by their `ID_COLUMNS`."""
        self.add_placed(Places.of(ids))

    def add_placed(self, places: Places) -> None:
        self._added += map(_ranges_in, places)

    def ranges(self, names: Sequence[str]) -> CodedRanges:
        """Return the known ranges of spaces, coded by their position in `names`. Raises `UnreadableError`."""
        wanted = pa.array(names, pa.string())
        return self._reread(lambda rows: _coded(map(partial(_of_spaces, wanted), rows)), wanted, _RANGES)

    def numbers(self) -> SeenNumbers:
        """Return all known numbers. Raises `UnreadableError`."""
        return self._reread(lambda rows: numbers_in(pa.concat_tables([SEEN.empty_table(), *rows])))

    def save(self, lake: Place, upto: Sequence[StreamHistory]) -> None:
        """Store additions in a new file, or merge many loose files. Replaces the table after a conflict."""
        table, offsets = self._table, cache.offsets_of(upto)
        try:
            if table is not None and len(seen_files.loose(table)) >= _MOST_FILES:
                return seen_files.with_loose(lake, table, self._added, offsets)
        except UnreadableError as error:
            self._damaged(error)
        if self._table is not None:
            cache.save(lake, "seen", seen_files.merged(self._added), upto, beside=self._table)
            if ensure_table(lake, "seen").delta.version() == self._table.delta.version() + 1:
                return None
        return seen_files.replace_all(lake, self._reread(seen_files.merged), upto)

    def _reread(
        self,
        use: Callable[[Iterable[pa.Table]], _Read],
        spaces: pa.Array | None = None,
        columns: Sequence[str] = SEEN.names,
    ) -> _Read:
        if self._table is not None:
            table = self._table if spaces is None else seen_files.about(self._table, spaces)
            try:
                return use(chain(batches(table, columns), self._added))
            except UnreadableError as error:
                self._damaged(error)
        return use(self._added)

    def _damaged(self, error: UnreadableError) -> None:
        cache.note_damage("seen", error, self._note)
        self._table = None
        for ids in self._remake():
            self.add(ids)


def load(
    lake: Place, bronze: Table, upto: Sequence[StreamHistory], note: cache.Note = cache.unsaid
) -> SeenTable:
    """Return the messages of bronze up to `done` of each history. Raises `TableError`
    and `UnreadableError`.
    """

    def missing(bronze: Table, table: Table | None) -> Iterator[pa.Table]:
        for history, after in cache.behind(table, upto):
            yield from identities(bronze, history, after)

    def remake() -> Iterator[pa.Table]:
        newest = open_bronze(lake)  # a later pass no longer has the snapshot of this one
        return iter(()) if newest is None else missing(newest, None)

    table = cache.current(lake, "seen", upto)
    seen = SeenTable(table, remake, note)
    for ids in missing(bronze, table):
        seen.add(ids)
    return seen


def read(table: Table) -> SeenNumbers:
    """Return the table's numbers without regard to bronze. Raises `UnreadableError`."""
    return numbers_in(rows(table, SEEN.names))


def identities(bronze: Table, history: StreamHistory, after: int) -> Iterator[pa.Table]:
    """Yield the identities of a history's rows above `after` up to `done`, in bounded pieces with dictionary
    texts.
    """
    done = history.done or 0
    if done <= after:
        return
    yield from batches(bronze, ID_COLUMNS, history.rows(after, done), coded=True)


def _of_spaces(wanted: pa.Array, known: pa.Table) -> tuple[Numbers, Numbers, Numbers]:
    codes = pc.index_in(known["space"], value_set=wanted)
    found = pc.is_valid(codes)
    first, last = (pc.filter(known[name], found).to_numpy() for name in ("first", "last"))
    return pc.filter(codes, found).to_numpy().astype(np.int64), first, last


def _coded(pieces: Iterable[tuple[Numbers, Numbers, Numbers]]) -> CodedRanges:
    nothing = np.zeros(0, dtype=np.int64)
    columns = zip((nothing, nothing, nothing), *pieces, strict=True)
    return CodedRanges.of(*map(np.concatenate, columns))


def _ranges_in(placed: Placed) -> pa.Table:
    has_place = placed.codes >= 0
    numbers = placed.numbers[has_place]
    return seen_files.rows_of(placed.names, CodedRanges.of_numbers(placed.codes[has_place], numbers))
