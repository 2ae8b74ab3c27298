"""Reads settled rows again whose batch or direct message has new rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa

from hub_jobs.audit.rows.count_rows import RowCounts, Share
from hub_jobs.audit.rows.pieces import ArrivedSpan, FileShare, UnsettledError
from hub_jobs.audit.rows.scan import AuditTables, counted
from hub_jobs.tables.delta import Table
from hub_jobs.tables.grouping import by_code, coded
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import Mask, Numbers, contains
from hub_jobs.tables.scan import Condition, file_paths
from hub_jobs.tables.spaces import BATCH_KEY, HUB_KEY, SOURCE_KEY

_MOST: Final = 100_000
"""Batches and messages to look up; above this everything is read."""

_Numbers = dict[tuple[str, ...], Numbers]


@dataclass(slots=True)
class _Keys:
    """Batch numbers by run, and message sequences by source."""

    batches: _Numbers = field(default_factory=dict)
    places: _Numbers = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(found.size for numbers in (self.batches, self.places) for found in numbers.values())


def settled_too(
    tables: AuditTables, new: Mapping[str, RowCounts], share: Share
) -> dict[str, RowCounts] | None:
    """Count the settled rows of keys with new rows, None without such. Raises `UnsettledError` for many."""
    if not tables.past.until:
        return None
    keys = _Keys()
    for counts in new.values():
        _add(keys.batches, counts.batches, BATCH_KEY)
        _add(keys.places, counts.direct, SOURCE_KEY)
    keys.batches = _settled(tables, "batch", keys.batches)
    keys.places = _settled(tables, "source", keys.places)
    named: _Numbers = {}
    for table in (new["quarantine"].named, new["quarantine"].other):
        _add(named, table, HUB_KEY)
    named = _settled(tables, "hub", named)
    if named:
        rows = _counted(tables, share, {"bronze": _where(named, HUB_KEY)})["bronze"]
        _add(keys.batches, _chosen(rows.batches, HUB_KEY, named), BATCH_KEY)
        _add(keys.places, _chosen(rows.direct, HUB_KEY, named), SOURCE_KEY)
    if not len(keys):
        return None
    if len(keys) > _MOST:
        raise UnsettledError(f"of {len(keys)} messages that were settled more has come")
    wanted = [*_where(keys.batches, BATCH_KEY), *_where(keys.places, SOURCE_KEY)]
    found = _counted(tables, share, {table.name: wanted for table in tables.existing})
    return {name: _of_keys(counts, keys) for name, counts in found.items()}


def _add(numbers: _Numbers, rows: pa.Table, key: tuple[str, ...]) -> None:
    *columns, number = key
    (codes,), names = coded([rows], columns)
    for name, mine in zip(names, by_code(codes, rows[number].to_numpy(), len(names)), strict=True):
        if None not in name:
            owner = tuple(map(str, name))
            numbers[owner] = np.union1d(numbers.get(owner, mine), mine)


def _settled(tables: AuditTables, kind: str, numbers: _Numbers) -> _Numbers:
    found = {
        key: values[contains(tables.past.ranges.ranges("/".join([kind, *key])), values)]
        for key, values in numbers.items()
    }
    return {key: values for key, values in found.items() if values.size}


def _where(numbers: _Numbers, key: tuple[str, ...]) -> list[list[Condition]]:
    *columns, number = key
    return [
        [
            *((column, "=", value) for column, value in zip(columns, owner, strict=True)),
            (number, ">=", int(values.min())),
            (number, "<=", int(values.max())),
        ]
        for owner, values in numbers.items()
    ]


def _counted(
    tables: AuditTables, share: Share, wanted: Mapping[str, list[list[Condition]]]
) -> dict[str, RowCounts]:
    work = [
        piece
        for table in tables.existing
        for piece in _pieces(tables, table, share, wanted.get(table.name, []))
    ]
    return counted(tables, work)


def _pieces(
    tables: AuditTables, table: Table, share: Share, wanted: Iterable[list[Condition]]
) -> Iterator[FileShare]:
    settled = {table.path / name for name in tables.past.files(table.name)}
    paths: set[Place] = {path for where in wanted for path in file_paths(table, where)}
    of = replace(tables.whole(table, share), span=ArrivedSpan(end=tables.past.until), old=True)
    for path in sorted(paths & settled):
        yield replace(of, path=path)


def _of_keys(found: RowCounts, keys: _Keys) -> RowCounts:
    return found._replace(
        batches=_chosen(found.batches, BATCH_KEY, keys.batches),
        direct=_chosen(found.direct, SOURCE_KEY, keys.places),
    )


def _chosen(rows: pa.Table, key: tuple[str, ...], wanted: _Numbers) -> pa.Table:
    *columns, number = key
    (codes,), names = coded([rows], columns)
    values = rows[number].to_numpy()
    mask: Mask = np.zeros(rows.num_rows, np.bool_)
    for code, name in enumerate(names):
        if (numbers := wanted.get(tuple(map(str, name)))) is not None:
            mine = codes == code
            mask |= mine & np.isin(values, numbers)
    return rows.filter(pa.array(mask))
