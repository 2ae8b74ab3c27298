"""Checks a table, its log and its store, and names the remedy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from hub_jobs.tables.commits import CommitOutcome, TableChange, attempt
from hub_jobs.tables.places import S3, ObjectPath, Place, delta_options
from hub_jobs.tables.schemas import VERSION

VERSION_KEY: Final = "petiole.version"
"""The table property with the version of its schemas."""
_ENTRY_GONE: Final = ("No table metadata or protocol", "found gap")
"""delta-rs's text for a missing log entry."""
_MADE_AGAIN: Final = ("seen", "clocks", "settled")
"""Derived tables, which a run makes again when missing."""
_CHECK: Final = "store_check"
_CHECKED: Final = "checked"
"""The transaction of a store that passed `why_unsafe`."""
_AT_ONCE: Final = 4
_CHECK_ROUNDS: Final = 3
_CHECK_SECONDS: Final = 60.0


def remedy(error: Exception, name: str) -> str:
    """Return the remedy for an unreadable log: a checkpoint cut by a power loss, or an empty or missing
    entry.
    """
    if any(words in str(error) for words in _ENTRY_GONE):
        if name in _MADE_AGAIN:
            return "; an entry of its log is empty or gone: delete the table, the next run makes it again"
        return "; an entry of its log is empty or gone: put the table back from a copy"
    if not any(word in str(error) for word in ("Checkpoint", "Parquet")):
        return ""
    return (
        "; a checkpoint of its log is damaged: move _last_checkpoint and the newest *.checkpoint.parquet out "
        "of its _delta_log, and the table is read from the entries that the checkpoint replaces"
    )


def foreign(delta: DeltaTable) -> str | None:
    """Return why a table is not the jobs' own or is too new, None otherwise."""
    version = delta.metadata().configuration.get(VERSION_KEY)
    if version is None or not version.isdigit():
        return f"was not made by Petiole: it has no {VERSION_KEY}"
    if int(version) > VERSION:
        return (
            f"is of version {version} and this program knows versions up to {VERSION}: use the newer program"
        )
    return None


def why_unsafe(lake: Place) -> str | None:
    """Test with concurrent writers of one version whether a store is safe, and return the reason when it is
    not.

    None when it is safe or untested. Only overlapping writers reveal a store that ignores the header, so an
    unsafe store is found very probably; a safe store always passes.
    """
    if not isinstance(lake, ObjectPath) or not lake.uri.startswith(S3):
        return None
    try:
        return _tried(lake / _CHECK)
    except (DeltaError, OSError):
        return None  # what is wrong with the store the caller meets, too


def _tried(path: ObjectPath) -> str | None:
    options = delta_options(path)
    schema = pa.schema([("n", pa.int64())])
    DeltaTable.create(str(path), schema=schema, mode="ignore", storage_options=options)
    if DeltaTable(str(path), storage_options=options).transaction_version(_CHECKED) is not None:
        return None
    together = Barrier(_AT_ONCE)

    def commit(table: DeltaTable) -> CommitOutcome:
        together.wait(_CHECK_SECONDS)
        return attempt(path, table, TableChange([], "append", {}, {})).outcome

    with ThreadPoolExecutor(_AT_ONCE) as writers:
        for _ in range(_CHECK_ROUNDS):
            tables = [DeltaTable(str(path), storage_options=options) for _ in range(_AT_ONCE)]
            outcomes = list(writers.map(commit, tables))
            if outcomes.count(CommitOutcome.COMMITTED) > 1:
                return (
                    f"the store of {path.parent} lets two writers win: it ignores If-None-Match, so that two "
                    "drivers would overwrite each other's commits; use another store, or its newer version"
                )
            if CommitOutcome.UNKNOWN in outcomes:
                return None
    attempt(
        path, DeltaTable(str(path), storage_options=options), TableChange([], "append", {_CHECKED: 1}, {})
    )
    return None
