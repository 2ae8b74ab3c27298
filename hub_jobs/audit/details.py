"""Which readings of a batch are not those of its payload, and in what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from hub_jobs.audit.count_rows import BATCH
from hub_jobs.audit.lookups import Key
from hub_jobs.audit.scan import AuditTables
from hub_jobs.refine.readings import Refiner
from hub_jobs.tables import Condition
from hub_jobs.tables.places import UnreadableError
from hub_jobs.tables.scan import batches
from hub_jobs.tables.schemas import BRONZE

LOOKED_AT: Final = 50
"""Batches that are looked at reading by reading."""
_NAMED: Final = 3
_COLUMNS: Final = ("ts", "device", "metric", "value", "text", "tags")
_AT_ONCE: Final = 16

Reading = dict[str, Any]


def of_batches(tables: AuditTables, keys: Sequence[Key]) -> Iterator[str]:
    """Sentences about the first readings that differ, a few of each batch."""
    wanted = set(keys[:LOOKED_AT])
    if not wanted or tables.readings is None:
        return
    where: list[Condition] = [
        ("run", "in", sorted({run for (_, _, run), _ in wanted})),
        ("n", "in", sorted({n for _, n in wanted})),
    ]
    due: dict[Key, dict[int, Reading]] = {}
    there: dict[Key, dict[int, Reading]] = {}
    try:
        for rows in batches(tables.bronze, BRONZE.names, where, _AT_ONCE):
            for row in _plain(rows):
                if _key(row) in wanted and row["payload"] is not None:
                    due.setdefault(_key(row), _decoded(row))
        for rows in batches(tables.readings, [*BATCH, "n", "index", "ts_original", *_COLUMNS], where):
            for row in rows.to_pylist():
                if _key(row) in wanted:
                    there.setdefault(_key(row), {})[row["index"]] = _reading(row)
    except UnreadableError:
        return  # that it can't be read is told elsewhere
    for key in sorted(wanted & due.keys()):
        yield from _differences(key, due[key], there.get(key, {}))


def _differences(key: Key, due: dict[int, Reading], there: dict[int, Reading]) -> Iterator[str]:
    (domain, cls, run), n = key
    found = [
        f"{domain}, class {cls}, run {run}, batch {n}, index {at}: {name} is {there[at][name]}, "
        f"and {one[name]} in its payload"
        for at, one in sorted(due.items())
        if at in there
        for name in _COLUMNS
        if there[at][name] != one[name]
    ]
    yield from found[:_NAMED]
    if len(found) > _NAMED:
        yield f"{domain}, class {cls}, run {run}, batch {n}: and {len(found) - _NAMED} more differences"


def _plain(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    table = pa.Table.from_batches([rows])
    at = table.column_names.index("arrived")
    found: list[dict[str, Any]] = table.set_column(
        at, "arrived", table["arrived"].cast(pa.int64())
    ).to_pylist()
    return found


def _decoded(row: dict[str, Any]) -> dict[int, Reading]:
    refiner = Refiner()
    tables = [*refiner.take(row), refiner.drain()]
    return {one["index"]: _reading(one) for table in tables for one in table.to_pylist()}


def _reading(row: dict[str, Any]) -> Reading:
    """A reading with the time that the clock had said."""
    ts = row["ts"] if row["ts_original"] is None else row["ts_original"]
    return {name: row[name] for name in _COLUMNS} | {"ts": ts, "tags": dict(row["tags"] or ())}


def _key(row: dict[str, Any]) -> Key:
    return (row["domain"], row["class"], row["run"]), row["n"]
