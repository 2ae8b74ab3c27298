"""Which messages bronze holds, as numbers in spaces, and the table `seen` that caches them (see `cache`).

A space is a run's batches, a source's sequences or one history of a hub's stream; it is named by a text.
Numbers are kept as ranges, so that a million messages of one run cost two numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.tables import cache, seen_files
from hub_jobs.tables.delta import Table, ensure_table
from hub_jobs.tables.grouping import by_code
from hub_jobs.tables.parquet_reading import UnreadableError
from hub_jobs.tables.placed_rows import Placed, Places
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import CodedRanges, Numbers, Range, runs_of, union, without
from hub_jobs.tables.scan import batches, rows
from hub_jobs.tables.schemas import SEEN
from hub_jobs.tables.stream_history import StreamHistory

_LOOSE: Final = 1_000_000
_MOST_FILES: Final = 16
"""Loose files of `seen` from which on a run puts them in order."""
_RANGES: Final = ("space", "first", "last")
_Read = TypeVar("_Read")

ID_COLUMNS: Final = (
    "stream",
    "created",
    "seq",
    "domain",
    "class",
    "run",
    "n",
    "source_stream",
    "source_identity",
    "source_seq",
    "digest",
)
"""The columns of bronze that say which message a row is."""


class SeenNumbers:
    """The numbers that are known, by space."""

    def __init__(self, spaces: Mapping[str, Iterable[Range]] | None = None) -> None:
        self.spaces: dict[str, list[Range]] = {name: union(ranges) for name, ranges in (spaces or {}).items()}

    def ranges(self, space: str) -> list[Range]:
        """What is known of a space."""
        return self.spaces.get(space, [])

    def add(self, ids: pa.Table) -> None:
        """Take in rows of bronze, of which `ids` has the `ID_COLUMNS`."""
        for placed in Places.of(ids):
            parts = by_code(placed.codes, placed.numbers, len(placed.names))
            for name, numbers in zip(placed.names, parts, strict=True):
                self.spaces[name] = union(self.ranges(name), runs_of(numbers))


class Joining:
    """Puts together what is known, part by part. Ranges that meet become one as they come, so that no more of
    them are held than there are in the end, or about."""

    def __init__(self) -> None:
        self._loose: dict[str, list[Range]] = {}
        self._held = self._size = 0

    def add(self, part: SeenNumbers) -> None:
        """Take in a part."""
        for space, ranges in part.spaces.items():
            self._loose.setdefault(space, []).extend(ranges)
            self._size += len(ranges)
        if self._size > max(2 * self._held, _LOOSE):
            self._loose = {space: union(ranges) for space, ranges in self._loose.items()}
            self._held = self._size = sum(map(len, self._loose.values()))

    def seen(self) -> SeenNumbers:
        """All of it."""
        return SeenNumbers(self._loose)


def joined(*parts: SeenNumbers) -> SeenNumbers:
    """What is known together."""
    joining = Joining()
    for part in parts:
        joining.add(part)
    return joining.seen()


def lacking(some: SeenNumbers, others: SeenNumbers) -> SeenNumbers:
    """What is in the one and not in the other."""
    found = {space: without(ranges, others.ranges(space)) for space, ranges in some.spaces.items()}
    return SeenNumbers({space: ranges for space, ranges in found.items() if ranges})


class SeenTable:
    """What bronze holds: the rows of the table `seen`, and what is added to them. The rows stay on disk, and
    a question reads those files once that may hold its answer, a piece at a time: there is a row for each run
    of each leaf that ever was.
    `remake` gives the identities of the rows of bronze that the table is about, for the case that a file of
    it is damaged, which is noted."""

    def __init__(
        self,
        table: Table | None = None,
        remake: Callable[[], Iterator[pa.Table]] = lambda: iter(()),
        note: cache.Note = cache.unsaid,
    ) -> None:
        self._table, self._remake, self._note = table, remake, note
        self._added: list[pa.Table] = []

    def add(self, ids: pa.Table) -> None:
        """Take in rows of bronze, of which `ids` has the `ID_COLUMNS`."""
        self.add_placed(Places.of(ids))

    def add_placed(self, places: Places) -> None:
        """Take in rows of bronze."""
        self._added += map(_ranges_in, places)

    def ranges(self, names: Sequence[str]) -> CodedRanges:
        """What is known of these spaces; the code of each is its place among them. Raises
        `UnreadableError`."""
        wanted = pa.array(names, pa.string())
        return self._reread(lambda rows: _coded(map(partial(_of_spaces, wanted), rows)), wanted, _RANGES)

    def numbers(self) -> SeenNumbers:
        """All of it. Raises `UnreadableError`."""
        return self._reread(lambda rows: numbers_in(pa.concat_tables([SEEN.empty_table(), *rows])))

    def save(self, lake: Place, upto: Sequence[StreamHistory]) -> None:
        """Keep it for the next run. What was added goes into a file of its own, or with many of these among
        the others. If another program changed the table meanwhile, all of it replaces what is there."""
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
    """What bronze holds of each history up to its `done`. Raises `TableError` and `UnreadableError`."""

    def missing(table: Table | None) -> Iterator[pa.Table]:
        for history, after in cache.behind(table, upto):
            yield from identities(bronze, history, after)

    table = cache.current(lake, "seen", upto)
    seen = SeenTable(table, partial(missing, None), note)
    for ids in missing(table):
        seen.add(ids)
    return seen


def read(table: Table) -> SeenNumbers:
    """What the table says, whatever bronze holds. Raises `UnreadableError`."""
    return numbers_in(rows(table, SEEN.names))


def identities(bronze: Table, history: StreamHistory, after: int) -> Iterator[pa.Table]:
    """The identities of a history's rows above `after` and up to its `done`, a bounded piece at a time, with
    texts as dictionaries."""
    done = history.done or 0
    if done <= after:
        return
    yield from batches(bronze, ID_COLUMNS, history.rows(after, done), coded=True)


def numbers_in(known: pa.Table) -> SeenNumbers:
    """The numbers of ranges that have the columns of `seen`."""
    spaces: dict[str, list[tuple[int, int]]] = {}
    columns = (known[name].to_pylist() for name in ("space", "first", "last"))
    for space, first, last in zip(*columns, strict=True):
        spaces.setdefault(space, []).append((first, last))
    return SeenNumbers(spaces)


def _of_spaces(wanted: pa.Array, known: pa.Table) -> tuple[Numbers, Numbers, Numbers]:
    """Codes, first and last numbers of the rows of these spaces."""
    codes = pc.index_in(known["space"], value_set=wanted)
    found = pc.is_valid(codes)
    first, last = (pc.filter(known[name], found).to_numpy() for name in ("first", "last"))
    return pc.filter(codes, found).to_numpy().astype(np.int64), first, last


def _coded(pieces: Iterable[tuple[Numbers, Numbers, Numbers]]) -> CodedRanges:
    nothing = np.zeros(0, dtype=np.int64)
    columns = zip((nothing, nothing, nothing), *pieces, strict=True)
    return CodedRanges.of(*map(np.concatenate, columns))


def _ranges_in(placed: Placed) -> pa.Table:
    """The rows of `seen` for numbers."""
    has_place = placed.codes >= 0
    numbers = placed.numbers[has_place]
    return seen_files.rows_of(placed.names, CodedRanges.of_numbers(placed.codes[has_place], numbers))


def batch_space(domain: str, cls: str, run: str) -> str:
    """The space of a run's batches."""
    return f"batch/{domain}/{cls}/{run}"


def hub_space(stream: str, created: str) -> str:
    """The space of one history of a stream of the hub."""
    return f"hub/{stream}/{created}"


def source_space(stream: str, identity: str) -> str:
    """The space of a source's messages."""
    return f"source/{stream}/{identity}"
