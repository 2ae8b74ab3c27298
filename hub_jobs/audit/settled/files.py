"""Finds the files of a table with settled rows, through all commits since the last audit.

An audit stores each table's version and a digest of its file names. New files are read, whenever their rows
arrived. A file that replaced settled files stays settled when a job merged the same rows, by the log's
counts; for other commits both sides are read and must hold the same places. Any other missing, changed or
short file raises `UnsettledError`, and everything is read.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from hub_jobs.audit import file_sums
from hub_jobs.audit.rows import count_rows
from hub_jobs.audit.rows.pieces import UnsettledError
from hub_jobs.tables import commits
from hub_jobs.tables.delta import Table
from hub_jobs.tables.parquet import is_own
from hub_jobs.tables.parquet_reading import UnreadableError, parquet_file
from hub_jobs.tables.places import Place, delta_options
from hub_jobs.tables.ranges import Numbers, marks
from hub_jobs.tables.scan import bounds, files
from hub_jobs.tables.spaces import HUB_KEY, SOURCE_KEY
from hub_jobs.times import micros

_NEVER: Final = np.iinfo(np.int64).max
"""Marks rows whose arrival the log does not tell."""
_SAME: Final[Mapping[str, Sequence[str]]] = {
    "bronze": (
        *(*HUB_KEY, "arrived", "subject", "digest", "domain"),
        *(*SOURCE_KEY, "class", "run", "n", "count"),
    ),
    "readings": (*count_rows.READINGS_COLUMNS, "arrived"),
    "quarantine": (*count_rows.QUARANTINE_COLUMNS, "arrived"),
}
"""Columns that must agree for rows to have the same places."""


class TableMark(NamedTuple):
    """A table version and a digest of its file names."""

    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class _File:
    """A file by the log: arrivals (microseconds since 1970), rows and bytes."""

    path: str
    first: int
    last: int
    rows: int
    size: int


@dataclass(slots=True)
class _Commit:
    """Files added and removed by a commit."""

    added: list[_File] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    keeps_rows: bool = True
    """Whether the commit claims, as the jobs do, that it only moved rows."""


def mark_of(table: Table) -> TableMark:
    """Return the mark of a snapshot, for `settled_files`."""
    return TableMark(table.delta.version(), _digest(commits.active(table.delta)))


def settled_files(table: Table, mark: TableMark, until: int) -> dict[str, bool]:
    """Return paths of files with rows before `until` that are settled, and whether all their rows are.

    Raises `UnsettledError`.
    """
    every = {file.path: file for file in _listed(_marked(table, mark))}
    known = {path: file for path, file in every.items() if file.first < until}
    for version in range(mark.version + 1, table.delta.version() + 1):
        entries = commits.entries(table.path, version)
        if entries is None:
            raise UnsettledError(f"the log of {table.name} no longer has version {version}")
        commit = _commit_of(entries)
        every |= {file.path: file for file in commit.added}
        touched = [path for path in commit.removed if path in known]
        if not touched:
            continue
        if commits.is_expiry(entries):
            _check_expired(table, [known[path] for path in touched])
        else:
            _check_same(table, commit, known, every, until)
            known |= {file.path: file for file in commit.added}
        for path in touched:
            del known[path]
    _check_there(table, known)
    return {path: is_own(path) and file.last < until for path, file in known.items()}


def expired(table: Table, known: Mapping[str, bool], since: int, first: int) -> tuple[list[str], list[str]]:
    """Return settled files whose rows all arrived before `since`, in two lists: from `first` on, and below.

    No row can have arrived before `first`, so the arrivals of the second list are unknown.
    """
    old = [file for file in _listed(table) if known.get(file.path) and file.last < since]
    return [file.path for file in old if file.last >= first], [file.path for file in old if file.last < first]


def late(table: Table, known: Mapping[str, bool], until: int) -> set[str]:
    """Return unsettled files with rows that arrived before `until`."""
    return {file.path for file in _listed(table) if file.path not in known and file.first < until}


def _marked(table: Table, mark: TableMark) -> Table:
    delta = table.delta
    if delta.version() < mark.version:
        raise UnsettledError(f"{table.name} is older than it was: its version is {delta.version()}")
    if delta.version() > mark.version:
        try:
            options = delta_options(table.path)
            delta = DeltaTable(str(table.path), version=mark.version, storage_options=options)
        except (DeltaError, OSError) as error:
            raise UnsettledError(f"the log of {table.name} no longer has version {mark.version}") from error
    if _digest(commits.active(delta)) != mark.digest:
        raise UnsettledError(f"version {mark.version} of {table.name} is not what it was")
    return Table(table.path.parent, table.name, delta)


def _digest(paths: Iterable[str]) -> str:
    return blake2b("\n".join(sorted(paths)).encode(), digest_size=16).hexdigest()


def _listed(table: Table) -> list[_File]:
    found = files(table)
    names = ("path", "min.arrived", "max.arrived", "num_records", "size_bytes")
    return [
        _File(path, *_span(first, last), rows or 0, size)
        for path, first, last, rows, size in zip(*(bounds(found, name) for name in names), strict=True)
    ]


def _commit_of(entries: Iterable[Mapping[str, Any]]) -> _Commit:
    found = _Commit()
    ours = False
    for entry in entries:
        if add := entry.get("add"):
            stats = json.loads(add.get("stats") or "{}")
            ends = (stats.get(name, {}).get("arrived") for name in ("minValues", "maxValues"))
            span = _span(*(None if end is None else datetime.fromisoformat(end) for end in ends))
            found.added.append(_File(add["path"], *span, stats.get("numRecords", 0), add["size"]))
        if remove := entry.get("remove"):
            found.removed.append(remove["path"])
        ours = ours or commits.is_marked(entry)
        action = entry.get("add") or entry.get("remove") or {"dataChange": False}
        found.keeps_rows = found.keeps_rows and not action.get("dataChange", True)
    found.keeps_rows = found.keeps_rows and ours
    return found


def _span(first: datetime | None, last: datetime | None) -> tuple[int, int]:
    return (0, _NEVER) if first is None or last is None else (micros(first), micros(last))


def _check_expired(table: Table, gone: Iterable[_File]) -> None:
    since = table.kept_since or 0
    for file in gone:
        if file.last >= since:
            raise UnsettledError(
                f"{table.name}: file {file.path} was deleted for an age that it does not have"
            )


def _check_same(
    table: Table, commit: _Commit, known: Mapping[str, _File], every: Mapping[str, _File], until: int
) -> None:
    """Raise unless added files hold the rows of removed ones, with settled rows still distinguishable."""
    for path in commit.removed:
        if path not in known and (path not in every or every[path].first < until):
            raise UnsettledError(f"{table.name}: late rows were written together with settled ones")
    if commit.keeps_rows:
        before = sum(known[path].rows if path in known else every[path].rows for path in commit.removed)
        if before == sum(file.rows for file in commit.added):
            return
    try:
        same = _places(table, commit.removed) == _places(table, [file.path for file in commit.added])
    except UnreadableError as error:
        raise UnsettledError(f"{table.name} was changed, and what it held can't be read: {error}") from error
    if not same:
        raise UnsettledError(f"rows of {table.name} that were settled have come or gone")


_SECRET: Final = secrets.token_bytes(16)


def _places(table: Table, paths: Sequence[str]) -> tuple[int, int]:
    """Return the rows of files and a sum that only the same places yield."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = list(pool.map(partial(_places_of, _SAME[table.name]), [table.path / path for path in paths]))
    return sum(rows for rows, _ in parts), sum(total for _, total in parts) % (1 << 64)


def _places_of(columns: Sequence[str], path: Place) -> tuple[int, int]:
    count = total = 0
    texts = [name for name in columns if name in count_rows.TEXTS]
    with parquet_file(path, read_dictionary=texts) as file:
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, columns=list(columns), use_threads=False)
            found = np.zeros(rows.num_rows, np.int64)
            for name in columns:
                found = marks(found ^ _numbers(rows[name]))
            count += rows.num_rows
            total += int(found.view(np.uint64).sum(dtype=np.uint64))
    return count, total


def _numbers(column: pa.ChunkedArray) -> Numbers:
    if pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type):
        found: Numbers = pc.fill_null(column.cast(pa.int64()), -1).to_numpy()
        return found
    return file_sums.hashed(column, _SECRET)


def _check_there(table: Table, known: Mapping[str, _File]) -> None:
    """Raise unless every file exists with the log's length."""
    sizes = _sizes(table.path)
    for path, file in known.items():
        if is_own(path) and sizes.get(path) != file.size:
            raise UnsettledError(f"{table.name}: file {path} is gone, or not as long as it was")


def _sizes(at: Place) -> dict[str, int]:
    if isinstance(at, Path):
        with os.scandir(at) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}
    return {found.base_name: found.size for found in at.store.get_file_info(fs.FileSelector(at.key))}
