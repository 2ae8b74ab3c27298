"""Writes one commit, and finds out whether a doubtful commit is in the log.

A store may apply a commit and answer with an error; delta-rs then retries and reports a conflict. So each
commit carries its own mark and is tried for one version; the log entry of that version shows the writer.
While that entry is missing the commit may still arrive, so its files must stay. This needs a store where one
of several puts with `If-None-Match: *` succeeds. If a store ignores the header, two drivers overwrite each
other's commits in silence; `table_checks.why_unsafe` finds such a store.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from hub_jobs.tables.parquet import PartFile
from hub_jobs.tables.places import Place

ATTEMPTS: Final = 20
"""Versions that one commit tries while unrelated commits arrive."""
_CLEAN_EVERY: Final = 100
"""Commits between two clean-ups of the log; one takes a second after a month of half-minute commits."""
KEPT_SINCE: Final = "kept since"
"""The transaction of a table whose old rows are deleted: rows that arrived before this second since 1970 may
be gone.
"""
ROLLED_UP: Final = "rollup:readings"
"""The transaction of `rollup_1d` with the version of `readings` that its windows cover."""
_MARK_KEY: Final = "petiole.commit"
_BEFORE_KEY: Final = "petiole.before"
"""The commit's note of the offsets it was planned on, as JSON. It lets any program undo the commit."""
_UNSET: Final = -1
"""Means no offset; a log can change an offset but not remove it."""


class CommitOutcome(Enum):
    """The outcome of an attempt to commit."""

    COMMITTED = auto()
    OVERTAKEN = auto()
    """Another writer has the version, so this commit can never arrive."""
    UNKNOWN = auto()
    """The commit is not in the log yet but may still arrive."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """The content of a commit. `mode` is delta-rs's, `notes` go into the history, `before` are the planned-on
    offsets.
    """

    actions: Sequence[AddAction | RemoveAction]
    mode: str
    offsets: Mapping[str, int]
    notes: Mapping[str, str]
    before: Mapping[str, int | None] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def replaced(self) -> set[str]:
        """Return the paths of files removed by name."""
        return {action.path for action in self.actions if isinstance(action, RemoveAction)}

    @property
    def added(self) -> set[str]:
        """Return the paths of added files."""
        return {action.path for action in self.actions if isinstance(action, AddAction)}


def addition(file: PartFile, *, changed: bool) -> AddAction:
    """Return the add action of a file; `changed` means that its rows are new to the table."""
    return AddAction(file.path, file.size, {}, file.modified, changed, file.stats)


@dataclass(frozen=True, slots=True)
class Attempt:
    """An outcome, with the error text of the store or delta-rs."""

    outcome: CommitOutcome
    error: Exception | None = None


def attempt(path: Place, snapshot: DeltaTable, change: TableChange) -> Attempt:
    """Try to commit a change as the version right after a snapshot."""
    properties = CommitProperties(
        app_transactions=[Transaction(app_id, version) for app_id, version in change.offsets.items()],
        custom_metadata={**change.notes, _MARK_KEY: change.mark, _BEFORE_KEY: json.dumps(change.before)},
        # What another program removed delta-rs does not compare: the caller looks at each newer version.
        max_commit_retries=0,
    )
    try:
        snapshot.create_write_transaction(
            list(change.actions),
            mode=change.mode,
            schema=snapshot.schema(),
            commit_properties=properties,
            # The commit that makes a checkpoint deletes nothing: until that is on the disk, a power cut may
            # leave a part of it, and the older entries are what the table can be read from.
            post_commithook_properties=PostCommitHookProperties(
                create_checkpoint=True, cleanup_expired_logs=(snapshot.version() + 1) % _CLEAN_EVERY == 0
            ),
        )
    except (DeltaError, OSError) as error:
        return Attempt(_outcome(path, snapshot.version() + 1, change.mark), error)
    return Attempt(CommitOutcome.COMMITTED)


def is_unmoved(before: DeltaTable, now: DeltaTable, change: TableChange) -> bool:
    """Tell whether a change planned on one snapshot is valid on a newer one.

    The table, its offsets and every replaced file must be unchanged.
    """
    if _definition(before) != _definition(now):
        return False
    if any(offset(now, app_id) != version for app_id, version in change.before.items()):
        return False
    return change.replaced <= active(now)


def offset(delta: DeltaTable, app_id: str) -> int | None:
    """Return the last committed offset of `app_id`, None before the first commit and after an undo."""
    version = delta.transaction_version(app_id)
    return None if version == _UNSET else version


def undo(path: Place, newest: DeltaTable, change: TableChange) -> bool:
    """Revert a commit, with its offsets.

    False when the change replaced the table, another writer moved on or rewrote its files, or the newest
    version is unreadable.
    """
    now = time.time_ns() // 1_000_000
    removed = [RemoveAction(action.path, True, now, None, {}) for action in change.actions]
    offsets = {app_id: _UNSET if version is None else version for app_id, version in change.before.items()}
    undone = TableChange(removed, "append", offsets, {})
    for _ in range(ATTEMPTS):
        is_last = all(newest.transaction_version(name) == number for name, number in change.offsets.items())
        if change.mode != "append" or change.replaced or not is_last or not undone.replaced <= active(newest):
            return False
        outcome = attempt(path, newest, undone).outcome
        if outcome is not CommitOutcome.OVERTAKEN:
            return outcome is CommitOutcome.COMMITTED
        try:
            newest.update_incremental()
        except (DeltaError, OSError):
            return False
    return False


def active(delta: DeltaTable) -> set[str]:
    """Return the file paths of a snapshot, relative to the table."""
    found = pa.table(delta.get_add_actions(flatten=True))
    return set(found["path"].to_pylist())


def _outcome(path: Place, version: int, mark: str) -> CommitOutcome:
    try:
        entry = entries(path, version)
    except (OSError, ValueError):
        return CommitOutcome.UNKNOWN
    if entry is None:
        return CommitOutcome.UNKNOWN
    ours = any(action.get("commitInfo", {}).get(_MARK_KEY) == mark for action in entry)
    return CommitOutcome.COMMITTED if ours else CommitOutcome.OVERTAKEN


def recorded(entry: Sequence[Mapping[str, Any]]) -> TableChange | None:
    """Return the change of a log entry, None unless `undo` can revert it."""
    info: Mapping[str, Any] = next((action["commitInfo"] for action in entry if "commitInfo" in action), {})
    if _MARK_KEY not in info or _BEFORE_KEY not in info:
        return None
    actions: list[AddAction | RemoveAction] = []
    for action in entry:
        if (add := action.get("add")) is not None:
            size, modified, changed = add["size"], add["modificationTime"], add["dataChange"]
            actions.append(AddAction(unquote(add["path"]), size, {}, modified, changed, add.get("stats")))
        elif (remove := action.get("remove")) is not None:
            actions.append(RemoveAction(unquote(remove["path"]), remove["dataChange"], 0, None, {}))
    offsets = {action["txn"]["appId"]: action["txn"]["version"] for action in entry if "txn" in action}
    return TableChange(actions, "append", offsets, {}, json.loads(info[_BEFORE_KEY]), info[_MARK_KEY])


def is_marked(entry: Mapping[str, Any]) -> bool:
    """Tell whether an action is the mark of this program's commits."""
    return _MARK_KEY in entry.get("commitInfo", {})


def is_expiry(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether these actions delete expired files."""
    return any(entry.get("txn", {}).get("appId") == KEPT_SINCE for entry in entries)


def _definition(delta: DeltaTable) -> tuple[object, ...]:
    metadata, protocol = delta.metadata(), delta.protocol()
    features = [sorted(each or []) for each in (protocol.reader_features, protocol.writer_features)]
    versions = (protocol.min_reader_version, protocol.min_writer_version)
    partitions = metadata.partition_columns
    return metadata.id, metadata.configuration, partitions, delta.schema().to_json(), versions, features


def entry_name(version: int) -> str:
    """Return the log file name of a version."""
    return f"{version:020d}.json"


def sync_log(table: Place, version: int) -> None:
    """Fsync the log of a table in a directory from a version on, and the checkpoints of these versions."""
    if not isinstance(table, Path):
        return
    log = table / "_delta_log"
    synced = set[str]()
    while (entry := log / entry_name(version)).exists():
        sync(entry)
        synced.add(entry.stem)
        version += 1
    # Looked for once: a log of seven days has twenty thousand entries.
    for name in os.listdir(log):  # noqa: PTH208 - a path for each takes five times as long
        version_of, _, rest = name.partition(".")
        if rest.startswith("checkpoint") and rest.endswith(".parquet") and version_of in synced:
            sync(log / name)
            sync(log / "_last_checkpoint")
    sync(log)
    sync(table)


def sync(path: Path) -> None:
    """Fsync a file or a directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def entries(table: Place, version: int) -> list[dict[str, Any]] | None:
    """Return the actions of a version, None when the log lacks it. Raises `OSError`."""
    try:
        text = (table / "_delta_log" / entry_name(version)).read_text()
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in text.splitlines() if line]
