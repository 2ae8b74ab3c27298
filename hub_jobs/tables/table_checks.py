"""Whether a table, its log and its store are fit for the jobs, and what to do where they are not."""

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
"""The property of a table that says by which version of the schemas it was made."""
_ENTRY_GONE: Final = ("No table metadata or protocol", "found gap")
"""What delta-rs says of a log that lacks an entry."""
_MADE_AGAIN: Final = ("seen", "clocks", "settled")
"""Tables that hold what was made of others, and that a run without them makes of those."""
_CHECK: Final = "store_check"
_CHECKED: Final = "checked"
"""The transaction of a store that was found to keep it."""
_AT_ONCE: Final = 4
_CHECK_ROUNDS: Final = 3
_CHECK_SECONDS: Final = 60.0


def remedy(error: Exception, name: str) -> str:
    """What to add to what delta-rs says of the log of a table that it can't read: where a power cut has left
    a part of a checkpoint (nothing else of a log is Parquet), and where an entry is empty or gone."""
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
    """Why a table is not one of ours, or of a newer program."""
    version = delta.metadata().configuration.get(VERSION_KEY)
    if version is None or not version.isdigit():
        return f"was not made by Petiole: it has no {VERSION_KEY}"
    if int(version) > VERSION:
        return (
            f"is of version {version} and this program knows versions up to {VERSION}: use the newer program"
        )
    return None


def is_older(delta: DeltaTable) -> bool:
    """Whether a table of ours was made by an older version of the schemas."""
    return int(delta.metadata().configuration[VERSION_KEY]) < VERSION


def why_unsafe(lake: Place) -> str | None:
    """Have several writers commit the same version of a table of its own, and say why the store can't be used
    if more than one succeeds. None where it was found to be safe, or could not be tried.

    delta-rs looks for a version before it puts it, so only writers that overlap show this: a store that
    ignores the header is found very probably, and one that keeps the promise is never refused."""
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
