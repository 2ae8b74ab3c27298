"""Opening Delta tables and committing to them: one commit an act, carrying the offset it stands for.

The rule that makes two writers safe: read the offset (`offset`), plan, write files and commit on ONE
`Table`, opened before planning, and never retry a conflict by opening the table again. delta-rs compares a
transaction id only with commits newer than the snapshot it was given, so a fresh snapshot would let the
same offset in a second time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from hub_jobs.tables.parquet import PartFile
from hub_jobs.tables.schemas import SCHEMAS, VERSION

_VERSION_KEY: Final = "petiole.version"


class TableError(Exception):
    """A table can't be used; the text says which, why and what to do."""


class ConflictError(Exception):
    """Another writer committed first; nothing of this run is in the table. Start again later."""


class Table:
    """One snapshot of one table. `name` is a key of `SCHEMAS`; the table lies in `lake/name`."""

    def __init__(self, lake: Path, name: str, delta: DeltaTable) -> None:
        self.name = name
        self.path = lake / name
        self.delta = delta
        self.schema: pa.Schema = SCHEMAS[name]

    def offset(self, app_id: str) -> int | None:
        """The offset that `app_id` last committed, None before its first commit."""
        return self.delta.transaction_version(app_id)

    def commit(
        self,
        files: Sequence[PartFile],
        offsets: Mapping[str, int],
        notes: Mapping[str, str] | None = None,
        *,
        replace: bool = False,
    ) -> None:
        """Add files and set offsets in one commit; `replace` drops all rows that were there. `notes` go
        into the commit's history. Durable on return. Raises `ConflictError`, after which the files are
        gone."""
        properties = CommitProperties(
            app_transactions=[Transaction(app_id, version) for app_id, version in offsets.items()],
            custom_metadata=dict(notes or {}),
        )
        try:
            self.delta.create_write_transaction(
                [_add(file) for file in files],
                mode="overwrite" if replace else "append",
                schema=self.delta.schema(),
                commit_properties=properties,
            )
        except CommitFailedError as error:
            self.discard(files)
            raise ConflictError(f"table {self.path}: another writer was first: {error}") from error
        self._sync()

    def discard(self, files: Sequence[PartFile]) -> None:
        """Remove files that no commit will name."""
        for file in files:
            (self.path / file.path).unlink(missing_ok=True)

    def _sync(self) -> None:
        log = self.path / "_delta_log"
        for entry in [*log.glob("*.json"), log, self.path]:
            known = entry.stem.isdigit() and int(entry.stem) <= self.delta.version()
            if not known:
                sync(entry)


def open_table(lake: Path, name: str) -> Table | None:
    """The newest snapshot of a table, None where there is none. Raises `TableError`."""
    path = lake / name
    try:
        delta = DeltaTable(path)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise TableError(f"table {path} can't be read: {error}") from error
    version = delta.metadata().configuration.get(_VERSION_KEY)
    if version is None or not version.isdigit():
        raise TableError(f"table {path} was not made by Petiole: it has no {_VERSION_KEY}")
    if int(version) > VERSION:
        raise TableError(
            f"table {path} is of version {version} and this program knows versions up to {VERSION}: "
            "use the newer program"
        )
    return Table(lake, name, delta)


def ensure_table(lake: Path, name: str) -> Table:
    """`open_table`, and make the table where there is none. Raises `TableError`."""
    table = open_table(lake, name)
    if table is not None:
        return table
    try:
        (lake / name).mkdir(parents=True, exist_ok=True)
        DeltaTable.create(
            lake / name,
            schema=SCHEMAS[name],
            mode="ignore",
            name=name,
            configuration={_VERSION_KEY: str(VERSION)},
            raise_if_key_not_exists=False,
        )
    except (DeltaError, OSError) as error:
        raise TableError(f"table {lake / name} can't be made: {error}") from error
    table = open_table(lake, name)
    if table is None:
        raise TableError(f"table {lake / name} went away while it was being made")
    return table


def sync(path: Path) -> None:
    """Bring a file or a directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _add(file: PartFile) -> AddAction:
    return AddAction(file.path, file.size, {}, file.modified, True, file.stats)
