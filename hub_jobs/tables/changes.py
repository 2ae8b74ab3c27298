"""Which files of a table came or went between two of its versions, read from the Delta log."""

from __future__ import annotations

from hub_jobs.tables import log
from hub_jobs.tables.delta import Table
from hub_jobs.tables.places import Place


def changed_files(table: Table, version: int | None) -> list[Place] | None:
    """The files whose rows came or went after a version, up to this snapshot; files that were only written
    together are not among them. They lie on the disk until a vacuum deletes them.

    None where the log or the disk does not say any more, or no version is given: everything may have changed.
    """
    if version is None or version > table.delta.version():
        return None
    found: dict[Place, None] = {}
    for number in range(version + 1, table.delta.version() + 1):
        entries = log.entries(table.path, number)
        if entries is None:
            return None
        for entry in entries:
            action = entry.get("add") or entry.get("remove")
            if action is not None and action.get("dataChange", True):
                found[table.path / action["path"]] = None
    return list(found) if all(path.exists() for path in found) else None
