"""What changed in a table since a version, by its log."""

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
    """The files whose rows came or went after a version, up to this snapshot; files that were only written
    together, or were deleted for their age, are not among them. They lie on the disk until a vacuum deletes
    them.

    None where the log or the disk does not say any more, or no version is given: everything may have changed.
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
    """The hours of the times in a column of files."""
    found: set[datetime] = set()
    for path in paths:
        times = parquet_columns(path, [column])[column].cast(TIME)
        hours = pc.unique(pc.floor_temporal(times, unit="hour")).to_pylist()
        found.update(hour for hour in hours if hour is not None)
    return found
