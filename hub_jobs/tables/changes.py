"""Finds what changed in a table since a version, from its log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pyarrow.compute as pc

from hub_jobs.tables import commits
from hub_jobs.tables.delta import Table
from hub_jobs.tables.parquet_reading import parquet_columns
from hub_jobs.tables.places import Place
from hub_jobs.tables.schemas import TIME


def changed_files(table: Table, version: int | None) -> list[Place] | None:
    """Return the files whose rows were added or removed after a version, up to this snapshot.

    Excludes files that were compacted or expired; removed files stay on disk until a vacuum. None means that
    everything may have changed: the log or the files are gone, or no version is given.
    """
    if version is None or version > table.delta.version():
        return None
    found: dict[Place, None] = {}
    for number in range(version + 1, table.delta.version() + 1):
        entries = commits.entries(table.path, number)
        if entries is None:
            return None
        if commits.is_expiry(entries):
            continue
        for entry in entries:
            action = entry.get("add") or entry.get("remove")
            if action is not None and action.get("dataChange", True):
                found[table.path / action["path"]] = None
    return list(found) if all(path.exists() for path in found) else None


def hours_of(paths: Sequence[Place], column: str) -> set[datetime]:
    """Return the hours in which times of a column lie."""
    found: set[datetime] = set()
    for path in paths:
        times = parquet_columns(path, [column])[column].cast(TIME)
        hours = pc.unique(pc.floor_temporal(times, unit="hour")).to_pylist()
        found.update(hour for hour in hours if hour is not None)
    return found
