"""Opens Delta tables and commits to them, with the offset of the work in the same commit.

Two writers are safe under one rule: read the offset, plan, write and commit on one `Table`, opened before
planning. Never retry a conflict by opening it again. A commit moves to a newer version only when that has the
same offsets, replaced files and definition.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from hub_jobs.tables import allowed, commits, table_checks
from hub_jobs.tables.commits import CommitOutcome, TableChange
from hub_jobs.tables.parquet import PartFile, why_gone
from hub_jobs.tables.places import Place, delta_options, plain, unwritable
from hub_jobs.tables.schemas import SCHEMAS, VERSION
from hub_jobs.tables.table_checks import VERSION_KEY

_LOG_KEY: Final = "delta.logRetentionDuration"
_LOG_KEPT: Final = "interval 7 days"
"""How long `changed_files` can look back. Each commit lists the log, so a longer log slows commits."""
_SECOND: Final = 1_000_000
_LEAST_ROOM: Final = 8 * 2**20
"""Free bytes below which a commit may fail half way; `maintain` needs less, and frees space."""
_ONCE: Final = CommitProperties(max_commit_retries=0)
"""Disables retries where the result is checked afterwards."""
_REWRITES: Final = "rewrite"
"""The transaction of every rewriting commit: of two concurrent rewrites one fails, even if their files
differ.
"""


class TableError(Exception):
    """A table can't be used; the text names the table, the reason and the remedy."""


class ConflictError(Exception):
    """Another program committed first and nothing of this run is in the table. Start again later."""


class Table:
    """One snapshot of one table. `name` is a key of `SCHEMAS`; files in `aside` are not read."""

    def __init__(self, lake: Place, name: str, delta: DeltaTable) -> None:
        self.name = name
        self.path = lake / name
        self.delta = delta
        self.schema: pa.Schema = SCHEMAS[name]
        self.aside: set[str] = set()
        self._offsets: dict[tuple[int, str], int | None] = {}
        self._entry = _mark_of(_newest_entry(self.path, delta))

    @property
    def id(self) -> str:
        """Delta's id of the table, which copies share."""
        return str(self.delta.metadata().id)

    def newest(self) -> Table:
        """Return the table at its newest version, by reading only new log entries.

        This snapshot can't be used for planning or committing afterwards. Raises `TableError`, also when the
        path now holds another table.
        """
        delta, mine = self.delta, self.id
        del self.delta
        entry = _newest_entry(self.path, delta)
        with suppress(DeltaError, OSError):  # `open_table` says what is wrong
            # Else the log has forgotten it, was restored from before it, or is on another disk by now.
            if entry.exists() and _mark_of(entry) == self._entry:
                delta.update_incremental()
                return _usable(self.path.parent, self.name, delta)
        table = open_table(self.path.parent, self.name)
        if table is None or table.id != mine:
            what = "went away" if table is None else "was replaced by another one"
            raise TableError(f"table {self.path} {what} while it was in use: mount its disk, and run again")
        return table

    def offset(self, app_id: str) -> int | None:
        asked = self.delta.version(), app_id
        if asked not in self._offsets:  # delta-rs looks through the log for each
            self._offsets[asked] = commits.offset(self.delta, app_id)
        return self._offsets[asked]

    @property
    def kept_since(self) -> int | None:
        """Return the expiry limit in microseconds since 1970, None when nothing was expired."""
        seconds = self.offset(commits.KEPT_SINCE)
        return None if seconds is None else seconds * _SECOND

    def expire(self, paths: Sequence[str], since: int) -> None:
        """Delete files whose rows all arrived before `since` (microseconds). `kept_since` never decreases,
        so it explains earlier deletions.
        Raises as `rewrite`.
        """
        seconds = max(since // _SECOND, self.offset(commits.KEPT_SINCE) or 0)
        self.rewrite([], paths, {commits.KEPT_SINCE: seconds}, changed=True)

    def commit(
        self,
        files: Sequence[PartFile],
        offsets: Mapping[str, int],
        notes: Mapping[str, str] | None = None,
        *,
        replace: bool = False,
    ) -> None:
        """Add files and set offsets in one commit, durable on return; `replace` drops all previous rows.

        `notes` go into the commit's history. Raises `ConflictError` when none of the files are in the table,
        and `TableError` when the commit may still arrive; its files then stay.
        """
        added = [commits.addition(file, changed=True) for file in files]
        self._commit(files, TableChange(added, "overwrite" if replace else "append", offsets, notes or {}))

    def rewrite(
        self,
        files: Sequence[PartFile],
        replaced: Sequence[str],
        offsets: Mapping[str, int] | None = None,
        *,
        changed: bool = False,
    ) -> None:
        """Replace files (paths relative to the table) in one commit; others may append meanwhile.

        `changed` means that the rows differ. Raises `ConflictError` when another program replaced one of the
        files or used this method first; otherwise raises as `commit`.
        """
        now = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            *(commits.addition(file, changed=changed) for file in files),
            *(RemoveAction(path, changed, now, None, {}) for path in replaced),
        ]
        turn = {_REWRITES: (self.offset(_REWRITES) or 0) + 1}
        self._commit(files, TableChange(actions, "append", {**(offsets or {}), **turn}, {}))

    def sync(self) -> None:
        """Fsync this and later versions, which killed writers may have left unsynced."""
        commits.sync_log(self.path, self.delta.version())

    def vacuum(self, hours: float, *, dry_run: bool) -> list[str]:
        """Delete files older than `hours` that this snapshot does not name, and return their paths. Raises
        `TableError`.
        """
        try:
            found = self.delta.vacuum(
                retention_hours=int(hours), dry_run=dry_run, enforce_retention_duration=False, full=True
            )
        except (DeltaError, OSError) as error:
            raise TableError(f"table {self.path}: its old files can't be deleted: {plain(error)}") from error
        return sorted(set(found))

    def _commit(self, files: Sequence[PartFile], change: TableChange) -> None:
        paths = [file.path for file in files]
        if why := why_gone(self.path, paths):
            self.discard(files)
            raise ConflictError(f"table {self.path}: {why}")
        change = dataclasses.replace(change, before={name: self.offset(name) for name in change.offsets})
        snapshot = self.delta
        error: Exception | None = None
        # delta-rs removes files that are not in the table any more without a word: both copies of rows stay.
        is_current = not change.replaced or change.replaced <= commits.active(snapshot)
        for _ in range(commits.ATTEMPTS if is_current else 0):
            done = commits.attempt(self.path, snapshot, change)
            if done.outcome is CommitOutcome.COMMITTED:
                self.sync()
                if why := why_gone(self.path, paths):
                    newest = open_table(self.path.parent, self.name)
                    if newest and newest.take_back(change, self.delta.version()):
                        raise ConflictError(f"table {self.path}: {why}")
                    raise TableError(f"table {self.path}: put it back from a copy, for {why}")
                return
            error = done.error
            if done.outcome is CommitOutcome.UNKNOWN:
                raise TableError(
                    f"table {self.path}: a commit failed, and the log does not show whether it was applied: "
                    f"{plain(error)}; run the job again, which goes on from what the log says by then"
                ) from error
            again = open_table(self.path.parent, self.name)
            if again is None or not commits.is_unmoved(self.delta, again.delta, change):
                break
            snapshot = again.delta
        self.discard(files)
        said = f": {plain(error)}" if error else ""
        raise ConflictError(f"table {self.path}: another writer was first{said}") from error

    def take_back(self, change: TableChange, since: int) -> bool:
        """Revert a change of this or a later version, as `commits.undo`. Durable on return."""
        if not commits.undo(self.path, self.delta, change):
            return False
        # Else a power cut leaves the commit, and the next run goes on from it.
        commits.sync_log(self.path, since)
        return True

    def discard(self, files: Sequence[PartFile]) -> None:
        """Delete files that no commit can name any more. Undeletable files stay for the vacuum."""
        for file in files:
            with suppress(OSError):
                (self.path / file.path).unlink(missing_ok=True)


def open_table(lake: Place, name: str) -> Table | None:
    """Return the newest snapshot of a table, None when it is missing. Raises `TableError`."""
    path = lake / name
    try:
        delta = DeltaTable(str(path), storage_options=delta_options(path))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        said = f"{plain(error)}{table_checks.remedy(error, name)}"
        raise TableError(f"table {path} can't be read: {said}") from error
    return _usable(lake, name, delta)


def _usable(lake: Place, name: str, delta: DeltaTable) -> Table:
    if why := table_checks.foreign(delta):
        raise TableError(f"table {lake / name} {why}")
    if why := allowed.why_refused(delta, SCHEMAS[name]):
        raise TableError(f"table {lake / name} can't be used: {why}")
    return Table(lake, name, delta)


def _newest_entry(path: Place, delta: DeltaTable) -> Place:
    return path / "_delta_log" / commits.entry_name(delta.version())


def _mark_of(entry: Place) -> tuple[int, int, int] | None:
    """Return the identity of a log entry's file, None when missing or in an object store.

    ext4 reuses inodes, so an inode alone is not enough.
    """
    with suppress(OSError):
        if isinstance(entry, Path):
            state = entry.stat()
            return state.st_dev, state.st_ino, state.st_mtime_ns
    return None


def no_table(lake: Place, name: str, first: str) -> TableError:
    """Return the error for a missing table that the job `first` makes."""
    return TableError(
        f"there is no table {lake / name}: mount the disk of the lake, correct --lake, or run {first} first"
    )


def ensure_table(lake: Place, name: str, opened: Table | None = None, *, room: int = _LEAST_ROOM) -> Table:
    """Return the table, after creating it where it is missing.

    Uses `opened` if given. Raises `TableError`, also when the place is not writable or has less than `room`
    bytes left.
    """
    if isinstance(lake, Path) and (why := unwritable(lake / name, room)):
        raise TableError(why)
    table = _ensured(lake, name, opened)
    if table.delta.version() == 0 and (why := table_checks.why_unsafe(lake)):
        raise TableError(why)
    return table


def _ensured(lake: Place, name: str, opened: Table | None) -> Table:
    table = opened or open_table(lake, name)
    if table is not None:
        return table
    try:
        if isinstance(lake, Path):
            (lake / name).mkdir(parents=True, exist_ok=True)
        DeltaTable.create(
            str(lake / name),
            schema=SCHEMAS[name],
            mode="ignore",
            name=name,
            configuration={VERSION_KEY: str(VERSION), _LOG_KEY: _LOG_KEPT},
            raise_if_key_not_exists=False,
            storage_options=delta_options(lake),
            commit_properties=_ONCE,
        )
    except (DeltaError, OSError) as error:
        # Another program may have been faster, or the store has made it and failed to say so.
        table = open_table(lake, name)
        if table is None:
            raise TableError(f"table {lake / name} can't be made: {plain(error)}") from error
        return table
    table = open_table(lake, name)
    if table is None:
        raise TableError(f"table {lake / name} went away while it was being made")
    return table
