"""Writing one commit, and finding out whether it is in the log when that is in doubt.

A store may apply a commit and answer with an error, or not at all. delta-rs then repeats the request, finds
the version taken, and reports a conflict. So every commit carries a mark of its own, and is tried for one
version only: whatever went wrong, the entry of that version says whose commit it is. As long as there is no
such entry the commit may still arrive, and its files must stay.

All of it rests on a promise of stores that speak S3: of several puts of one new object, each with
`If-None-Match: *`, one succeeds. Some ignore the header, and then two drivers overwrite each other's commits
in silence; `table_checks.why_unsafe` finds such a store.
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
"""Versions for which one commit is tried while others commit what does not concern it."""
_CLEAN_EVERY: Final = 100
"""Commits from one look at the age of every file of the log to the next, as from one checkpoint to the next:
a look takes a second where ingest has committed each half minute for a month."""
KEPT_SINCE: Final = "kept since"
"""The transaction of a table from which rows are deleted for their age: the second since 1970 before which
what arrived may be gone."""
ROLLED_UP: Final = "rollup:readings"
"""The transaction of `rollup_1d` that says of which version of `readings` the windows are made."""
_MARK_KEY: Final = "petiole.commit"
_BEFORE_KEY: Final = "petiole.before"
"""The note of a commit that says which offsets it found, as JSON: with it any program can take it back."""
_UNSET: Final = -1
"""Stands for no offset: a log can change an offset and not remove it."""


class CommitOutcome(Enum):
    """What became of an attempt to commit."""

    COMMITTED = auto()
    OVERTAKEN = auto()
    """The version is another writer's, so this commit can never be there."""
    UNKNOWN = auto()
    """The commit is not in the log, and may still arrive there."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a commit does to a table: `mode` is delta-rs's, `notes` go into the history. `before` are the
    offsets that it was planned on."""

    actions: Sequence[AddAction | RemoveAction]
    mode: str
    offsets: Mapping[str, int]
    notes: Mapping[str, str]
    before: Mapping[str, int | None] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def replaced(self) -> set[str]:
        """The paths of the files that it removes one by one."""
        return {action.path for action in self.actions if isinstance(action, RemoveAction)}

    @property
    def added(self) -> set[str]:
        """The paths of the files that it adds."""
        return {action.path for action in self.actions if isinstance(action, AddAction)}


def addition(file: PartFile, *, changed: bool) -> AddAction:
    """The action that adds a file to a table; `changed` says that its rows are not another file's."""
    return AddAction(file.path, file.size, {}, file.modified, changed, file.stats)


@dataclass(frozen=True, slots=True)
class Attempt:
    """An outcome, and what the store or delta-rs said where something went wrong."""

    outcome: CommitOutcome
    error: Exception | None = None


def attempt(path: Place, snapshot: DeltaTable, change: TableChange) -> Attempt:
    """Try to commit a change as the version that follows a snapshot, and no other."""
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
    """Whether a change that was planned on one snapshot means the same on a newer one: the table is the same,
    every file that it replaces is still in it, and no other writer has moved its offsets."""
    if _definition(before) != _definition(now):
        return False
    if any(offset(now, app_id) != version for app_id, version in change.before.items()):
        return False
    return change.replaced <= active(now)


def offset(delta: DeltaTable, app_id: str) -> int | None:
    """The offset that `app_id` last committed, None before its first commit and after that was taken back."""
    version = delta.transaction_version(app_id)
    return None if version == _UNSET else version


def undo(path: Place, newest: DeltaTable, change: TableChange) -> bool:
    """Take back a commit, so that its offsets are as they were before. False where that can't be: it
    replaced what was there, another writer has gone on from it or rewritten what it added, or the newest
    version can't be read."""
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
    """The paths of the files of a snapshot, below the table."""
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
    """The change that an entry of the log is of, None where no commit was written here that can be taken
    back: those of an older program do not say which offsets they found."""
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
    """Whether an action of a commit is the mark of one that was written here."""
    return _MARK_KEY in entry.get("commitInfo", {})


def is_expiry(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a commit with these actions deleted files for their age."""
    return any(entry.get("txn", {}).get("appId") == KEPT_SINCE for entry in entries)


def _definition(delta: DeltaTable) -> tuple[object, ...]:
    metadata, protocol = delta.metadata(), delta.protocol()
    features = [sorted(each or []) for each in (protocol.reader_features, protocol.writer_features)]
    versions = (protocol.min_reader_version, protocol.min_writer_version)
    partitions = metadata.partition_columns
    return metadata.id, metadata.configuration, partitions, delta.schema().to_json(), versions, features


def entry_name(version: int) -> str:
    """The file in the log of a table that says what a version changed."""
    return f"{version:020d}.json"


def sync_log(table: Place, version: int) -> None:
    """Bring the log of a table in a directory to the disk, from a version on, with the checkpoints of these
    versions."""
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
    """Bring a file or a directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def entries(table: Place, version: int) -> list[dict[str, Any]] | None:
    """The actions of one version of the table at this place, None where its log does not hold that version.
    Raises `OSError`."""
    try:
        text = (table / "_delta_log" / entry_name(version)).read_text()
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in text.splitlines() if line]
