"""Which messages bronze holds, as numbers in spaces, and the table `seen` that caches them.

A space is a run's batches, a source's sequences or one history of a hub's stream; it is named by a text.
Numbers are kept as ranges, so that a million messages of one run cost two numbers.

`load_cached`, `behind` and `save_cached` keep this table and `clocks`: both are a pure function of `bronze`
up to the sequences that they carry as transactions. So they are rolled forward when they are behind, made
again when they are ahead, lost or damaged, and replaced as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.tables.delta import ConflictError, Table, ensure_table, open_table
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.places import Place, UnreadableError
from hub_jobs.tables.ranges import Numbers, Range, runs_of, union, without
from hub_jobs.tables.scan import batches, rows
from hub_jobs.tables.schemas import SCHEMAS, SEEN
from hub_jobs.tables.stream_history import StreamHistory

Note = Callable[[str], None]


def unsaid(_: str) -> None:
    """For a caller that only looks: the job that makes the table again says so."""


def load_cached(
    lake: Place, name: str, upto: Sequence[StreamHistory], note: Note
) -> tuple[Table | None, pa.Table]:
    """The table and its rows. No table and no rows when it holds more of a history than its `done`, or
    when a file of it is damaged, which is noted. Raises `TableError`, and `UnreadableError` where a file is
    there and was not given out."""
    nothing = SCHEMAS[name].empty_table()
    table = open_table(lake, name)
    if table is None or any(_held(table, history) > (history.done or 0) for history in upto):
        return None, nothing
    try:
        return table, rows(table, SCHEMAS[name].names)
    except UnreadableError as error:
        if not error.damaged:
            raise
        note(f"{error}; the table {name} is made again from bronze")
        return None, nothing


def behind(table: Table | None, upto: Sequence[StreamHistory]) -> Iterator[tuple[StreamHistory, int]]:
    """Each history with the sequence up to which the table holds it; from the beginning without one."""
    for history in upto:
        yield history, 0 if table is None else _held(table, history)


def save_cached(lake: Place, name: str, rows: pa.Table, upto: Sequence[StreamHistory]) -> None:
    """Keep the rows for the next run, in the place of all others. A writer that was faster is as good."""
    table = ensure_table(lake, name)
    with PartWriter(lake, name) as writer:
        writer.write(rows)
    try:
        table.commit(writer.files, {history.refined: history.done or 0 for history in upto}, replace=True)
    except ConflictError:
        return


def _held(table: Table, history: StreamHistory) -> int:
    return table.offset(history.refined) or 0


_LOOSE: Final = 1_000_000

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
        for placed in (by_batch(ids), by_source(ids), _by_hub(ids)):
            for name, numbers in _grouped(placed):
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


def load(lake: Place, bronze: Table, upto: Sequence[StreamHistory], note: Note = unsaid) -> SeenNumbers:
    """What bronze holds of each history up to its `done`. Raises as `load_cached`."""
    table, known = load_cached(lake, "seen", upto, note)
    seen = _of(known)
    for history, after in behind(table, upto):
        for ids in identities(bronze, history, after):
            seen.add(ids)
    return seen


def save(lake: Place, seen: SeenNumbers, upto: Sequence[StreamHistory]) -> None:
    """Keep it for the next run."""
    flat = [(name, first, last) for name, ranges in seen.spaces.items() for first, last in ranges]
    columns = zip(*flat, strict=True) if flat else ((), (), ())
    save_cached(lake, "seen", pa.table([pa.array(column) for column in columns], schema=SEEN), upto)


def read(table: Table) -> SeenNumbers:
    """What the table says, whatever bronze holds."""
    return _of(rows(table, SEEN.names))


def identities(bronze: Table, history: StreamHistory, after: int) -> Iterator[pa.Table]:
    """The identities of a history's rows above `after` and up to its `done`, a bounded piece at a
    time."""
    done = history.done or 0
    if done <= after:
        return
    for batch in batches(bronze, ID_COLUMNS, history.rows(after, done)):
        yield pa.Table.from_batches([batch])


def _of(known: pa.Table) -> SeenNumbers:
    spaces: dict[str, list[tuple[int, int]]] = {}
    for row in known.to_pylist():
        spaces.setdefault(row["space"], []).append((row["first"], row["last"]))
    return SeenNumbers(spaces)


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows in spaces: `names` of the spaces, and for every row the index of its space and its number there.
    A row that has no place has the index -1."""

    names: list[str]
    codes: Numbers
    numbers: Numbers


def by_batch(ids: pa.Table) -> Placed:
    """Batches by their number in their run."""
    return _placed(ids, "batch", ("domain", "class", "run"), "n")


def by_source(ids: pa.Table) -> Placed:
    """All messages by their sequence in the stream they were sourced from. Of two streams of one name the
    identity differs."""
    return _placed(ids, "source", ("source_stream", "source_identity"), "source_seq")


def _by_hub(ids: pa.Table) -> Placed:
    return _placed(ids, "hub", ("stream", "created"), "seq")


def batch_space(domain: str, cls: str, run: str) -> str:
    """The space of a run's batches."""
    return f"batch/{domain}/{cls}/{run}"


def hub_space(stream: str, created: str) -> str:
    """The space of one history of a stream of the hub."""
    return f"hub/{stream}/{created}"


def source_space(stream: str, identity: str) -> str:
    """The space of a source's messages."""
    return f"source/{stream}/{identity}"


def _placed(ids: pa.Table, kind: str, columns: tuple[str, ...], number: str) -> Placed:
    parts = [ids[name].combine_chunks() if isinstance(ids, pa.Table) else ids[name] for name in columns]
    names = pc.binary_join_element_wise(kind, *parts, "/", null_handling="emit_null")
    names = pc.if_else(pc.is_valid(ids[number]), names, pa.scalar(None, pa.string()))
    encoded = names.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes = pc.fill_null(encoded.indices, -1).to_numpy().astype(np.int64)
    numbers = pc.fill_null(ids[number], 0).to_numpy()
    return Placed(encoded.dictionary.to_pylist(), codes, numbers)


def _grouped(placed: Placed) -> Iterator[tuple[str, Numbers]]:
    order = np.argsort(placed.codes, kind="stable")
    codes, numbers = placed.codes[order], placed.numbers[order]
    edges = np.searchsorted(codes, np.arange(len(placed.names) + 1))
    for index, name in enumerate(placed.names):
        yield name, numbers[edges[index] : edges[index + 1]]
