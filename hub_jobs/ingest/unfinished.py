"""Reverts a bronze commit whose driver was killed before it could.

A stopped job may commit files that a vacuum deleted meanwhile; it checks afterwards and reverts. After a kill
between commit and check, the next run reverts. In a store the vacuum uses the store's clock, so nothing is
checked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from deltalake.transaction import AddAction

from hub_jobs.source.streams import HubStream
from hub_jobs.tables import commits
from hub_jobs.tables.commits import TableChange
from hub_jobs.tables.delta import Table, TableError
from hub_jobs.tables.stream_history import StreamHistory

_ENTRIES: Final = commits.ATTEMPTS
"""Newest versions checked; others may commit between kill and next run."""


def take_back_unfinished(bronze: Table, info: HubStream) -> str | None:
    """Revert a stream's commit whose files are gone and return which, None for none.

    Raises `TableError` when the stream lacks its messages or later commits build on it.
    """
    if not isinstance(bronze.path, Path):
        return None
    newest = bronze.delta.version()
    for version in range(newest, max(newest - _ENTRIES, 0), -1):
        entry = commits.entries(bronze.path, version)
        change = None if entry is None else commits.recorded(entry)
        if change is None or not _is_of(change, info):
            continue
        gone = {path for path in change.added if not (bronze.path / path).exists()}
        if not gone or not (gone := gone & commits.active(bronze.delta)):
            continue  # nothing is gone, or it was merged or thinned since then
        text = f"file {min(gone)} of version {version} is gone"
        if _first(change) < info.first_seq:
            raise TableError(
                f"table {bronze.path}: {text}, and stream {info.name} no longer holds all of its messages: "
                "put the table back from a copy"
            )
        if not bronze.take_back(change, version):
            raise TableError(
                f"table {bronze.path}: {text}, and other commits have gone on from it: put the table back "
                "from a copy"
            )
        return text
    return None


def _is_of(change: TableChange, info: HubStream) -> bool:
    history = StreamHistory(info.name, info.created)
    return any(app_id.startswith(history.ingested) for app_id in change.offsets)


def _first(change: TableChange) -> int:
    """Return the first sequence in a commit's files."""
    stats = [action.stats for action in change.actions if isinstance(action, AddAction)]
    return min(int(json.loads(text)["minValues"]["seq"]) for text in stats if text)
