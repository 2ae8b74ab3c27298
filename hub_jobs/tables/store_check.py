"""Whether a store that speaks S3 keeps the promise that commits rest on: of several puts of one new object,
each with `If-None-Match: *`, one succeeds. Some ignore the header, and then two drivers overwrite each
other's commits in silence.

delta-rs looks for a version before it puts it, so only writers that overlap show this: a store that ignores
the header is found very probably, and one that keeps the promise is never refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from hub_jobs.tables import stores
from hub_jobs.tables.commits import CommitOutcome, TableChange, attempt
from hub_jobs.tables.places import ObjectPath, Place

_NAME: Final = "store_check"
_CHECKED: Final = "checked"
"""The transaction of a store that was found to keep it."""
_AT_ONCE: Final = 4
_ROUNDS: Final = 3
_SECONDS: Final = 60.0


def why_unsafe(lake: Place) -> str | None:
    """Have several writers commit the same version of a table of its own, and say why the store can't be used
    if more than one succeeds. None where it was found to be safe, or could not be tried."""
    if not isinstance(lake, ObjectPath) or not lake.uri.startswith(stores.S3):
        return None
    try:
        return _try(lake / _NAME)
    except (DeltaError, OSError):
        return None  # what is wrong with the store the caller meets, too


def _try(path: ObjectPath) -> str | None:
    options = stores.commit_options(path.uri)
    schema = pa.schema([("n", pa.int64())])
    DeltaTable.create(str(path), schema=schema, mode="ignore", storage_options=options)
    if DeltaTable(str(path), storage_options=options).transaction_version(_CHECKED) is not None:
        return None
    together = Barrier(_AT_ONCE)

    def commit(table: DeltaTable) -> CommitOutcome:
        together.wait(_SECONDS)
        return attempt(path, table, TableChange([], "append", {}, {})).outcome

    with ThreadPoolExecutor(_AT_ONCE) as writers:
        for _ in range(_ROUNDS):
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
