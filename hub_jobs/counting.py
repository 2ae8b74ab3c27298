"""What the audit reads of the tables: file by file, a row group in memory at a time. Up to `HERE_ROWS` rows
the driver reads the files itself, on all cores and without a Spark session; beyond that they are Spark's
tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs import tasks
from hub_jobs.tables import Condition, Table
from hub_jobs.tables.places import Place, parquet_file
from hub_jobs.tables.scan import batches, file_paths, files
from hub_jobs.transforms import counted, ledgers
from hub_jobs.transforms.counted import BATCH, TEXTS, Counted, Offsets, Share
from hub_jobs.transforms.ledgers import Run, Spoken
from hub_jobs.transforms.ranges import Range

HERE_ROWS: Final = 200_000_000
"""Rows of all tables that are still read without Spark, some ten seconds a hundred million and core."""
_ROWS_AT_ONCE: Final = 4_000_000
"""Rows of bronze whose accounts the driver holds at once, about 300 bytes each."""

Key = tuple[Run, int]
"""A run and the number of a batch."""

Work = TypeVar("Work")
Result = TypeVar("Result")

_COLUMNS: Final = {
    "bronze": counted.BRONZE_COLUMNS,
    "readings": counted.READINGS_COLUMNS,
    "quarantine": counted.QUARANTINE_COLUMNS,
}


@dataclass(frozen=True, slots=True)
class Part:
    """What of the tables is counted: of a `domain` (None: of all) the batches and messages whose moment is
    from `since` on and before `until`, in microseconds since 1970."""

    domain: str | None = None
    since: int | None = None
    until: int | None = None

    @property
    def where(self) -> list[Condition]:
        """Which rows of each table are looked at."""
        return [] if self.domain is None else [("domain", "=", self.domain)]

    @property
    def is_span(self) -> bool:
        """Whether only a span of time is counted."""
        return self.since is not None or self.until is not None

    def within(self, moment: int) -> bool:
        """Whether a moment is in the span."""
        after = self.since is None or moment >= self.since
        return after and (self.until is None or moment < self.until)

    def chosen(self, rows: pa.Table) -> pa.Table:
        """The rows that are of the domain."""
        return (
            rows
            if self.domain is None
            else rows.filter(pc.fill_null(pc.equal(rows["domain"].cast(pa.string()), self.domain), False))
        )

    def spanned(self, held: Counted) -> Counted:
        """What was counted of bronze, as far as it is of the span."""
        if not self.is_span:
            return held
        first = np.iinfo(np.int64).min if self.since is None else self.since
        end = np.iinfo(np.int64).max if self.until is None else self.until
        own = (pc.field("moment") >= first) & (pc.field("moment") < end)
        return held._replace(batches=held.batches.filter(own), direct=held.direct.filter(own))


ALL: Final = Part()


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables, each as it was at one moment: everything that `readings` should hold is in the other two,
    which are None before the first refine. `offsets` say up to which hub sequence each stream and incarnation
    is refined."""

    bronze: Table
    readings: Table | None
    quarantine: Table | None
    offsets: Offsets
    part: Part = ALL

    @property
    def there(self) -> list[Table]:
        """Those that exist."""
        return [one for one in (self.bronze, self.readings, self.quarantine) if one is not None]

    @property
    def shares(self) -> list[Share]:
        """The parts in which they are to be counted, one after the other."""
        of = -(-_rows(self.bronze) // _ROWS_AT_ONCE) or 1
        return [Share(which, of) for which in range(of)]


@dataclass(frozen=True, slots=True)
class Piece:
    """A file of a table, and what of it is to be counted."""

    table: str
    path: Place
    offsets: Mapping[tuple[str, str], int]
    share: Share
    part: Part


def count(tables: Tables, share: Share) -> dict[str, Counted]:
    """What the rows of a share come to, by table."""
    work = [
        Piece(table.name, path, dict(tables.offsets), share, tables.part)
        for table in tables.there
        for path in file_paths(table, tables.part.where)
    ]
    done = list(zip(work, _each(tables, _count, work), strict=True))
    return {
        name: counted.merged(name, [one for piece, one in done if piece.table == name]) for name in _COLUMNS
    }


def spoken(tables: Tables) -> Spoken:
    """What the ledger records in bronze say."""
    found = Spoken()
    work = [(path, tables.part) for path in file_paths(tables.bronze, tables.part.where)]
    for one in _each(tables, _spoken, work):
        found.join(one)
    return found


def places(tables: Tables, wanted: Sequence[Key]) -> dict[Key, list[int]]:
    """The places of some batches that are taken, in readings or in quarantine."""
    found: dict[Key, list[int]] = {one: [] for one in wanted}
    where: list[Condition] = [
        ("run", "in", sorted({run for (_, _, run), _ in wanted})),
        ("n", "in", sorted({n for _, n in wanted})),
    ]
    for table, place in ((tables.readings, "index"), (tables.quarantine, "line")):
        if table is None:
            continue
        for rows in batches(table, [*BATCH, "n", place], where):
            columns = [rows[name].to_pylist() for name in (*BATCH, "n", place)]
            for domain, cls, run, n, at in zip(*columns, strict=True):
                if at is not None and (taken := found.get(((domain, cls, run), n))) is not None:
                    taken.append(at)
    return found


def moments(tables: Tables, wanted: Sequence[Run]) -> dict[Run, tuple[list[int], list[int]]]:
    """Of some runs the numbers of their batches, in order, and when each was sealed, in
    microseconds since 1970."""
    where: list[Condition] = [("run", "in", sorted({one[2] for one in wanted}))]
    parts = []
    for rows in batches(tables.bronze, [*BATCH, "n", "arrived", "headers"], where):
        table = pa.Table.from_batches([rows])
        moment, _ = counted.moments(table)
        parts.append(table.select([*BATCH, "n"]).append_column("moment", pa.array(moment)))
    if not parts:
        return {}
    found = pa.concat_tables(parts).group_by([*BATCH, "n"]).aggregate([("moment", "min")]).sort_by("n")
    return {
        key: (mine["n"].to_pylist(), mine["moment_min"].to_pylist())
        for key in wanted
        if (mine := found.filter(_of_run(*key))).num_rows
    }


def kept_readings(tables: Tables, key: Run, came: Sequence[Range]) -> int:
    """How many readings the batches of a run hold that arrived, of these numbers. Dead letters, which are
    numbered too, are no readings."""
    where: list[Condition] = [(name, "=", one) for name, one in zip(BATCH, key, strict=True)]
    where += [("n", ">=", came[0][0]), ("n", "<=", came[-1][1])]
    held: dict[int, int] = {}
    for rows in batches(tables.bronze, ["n", "count", "subject"], where):
        kinds = pc.split_pattern(rows["subject"], ".")
        for n, size, kind in zip(
            rows["n"].to_pylist(), rows["count"].to_pylist(), kinds.to_pylist(), strict=True
        ):
            if kind[3] == "_batch" and any(first <= n <= last for first, last in came):
                held[n] = max(held.get(n, 0), size or 0)
    return sum(held.values())


def kept_messages(tables: Tables, stream: str, identity: str, came: Sequence[Range]) -> int:
    """How many direct messages of a source arrived, of these sequences."""
    where: list[Condition] = [("source_stream", "=", stream), ("source_identity", "=", identity)]
    where += [("source_seq", ">=", came[0][0]), ("source_seq", "<=", came[-1][1])]
    held: set[int] = set()
    for rows in batches(tables.bronze, ["n", "subject", "source_seq"], where):
        direct = counted.is_direct(pa.Table.from_batches([rows]))
        held.update(rows["source_seq"].filter(pa.array(direct)).to_pylist())
    return sum(any(first <= seq <= last for first, last in came) for seq in held)


def _of_run(domain: str, cls: str, run: str) -> pc.Expression:
    return (pc.field("domain") == domain) & (pc.field("class") == cls) & (pc.field("run") == run)


def _each(tables: Tables, task: Callable[[Work], Result], work: Sequence[Work]) -> list[Result]:
    if not work:
        return []
    if sum(map(_rows, tables.there)) <= HERE_ROWS:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(task, work))
    from hub_jobs.session import session

    return tasks.run(session("audit"), task, work)


def _rows(table: Table) -> int:
    found = files(table)
    return sum(found["num_records"].to_pylist()) if found.num_rows else 0


def _count(piece: Piece) -> Counted:
    columns = _COLUMNS[piece.table]
    parts: list[Counted] = []
    for rows in map(piece.part.chosen, _row_groups(piece.path, columns)):
        if piece.table == "readings":
            parts.append(counted.readings(rows, piece.share))
        elif piece.table == "bronze":
            parts.append(piece.part.spanned(counted.bronze(rows, piece.offsets, piece.share)))
        else:
            parts.append(counted.quarantine(rows, piece.offsets, piece.share))
    return counted.merged(piece.table, parts)


def _spoken(work: tuple[Place, Part]) -> Spoken:
    path, part = work
    found = Spoken()
    for rows in map(part.chosen, _row_groups(path, ledgers.COLUMNS)):
        subject = rows["subject"].cast(pa.string())
        said = pc.and_(pc.ends_with(subject, "._ledger"), pc.is_valid(rows["class"]))
        for row in rows.filter(said).to_pylist():
            found.hear(row)
    return found


def _row_groups(path: Place, columns: Sequence[str]) -> Iterator[pa.Table]:
    texts = [name for name in columns if name in TEXTS]
    with parquet_file(path, read_dictionary=texts, memory_map=True) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=list(columns), use_threads=False)
