"""The log of a table over the years: what a commit costs, and how long it is kept."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hub_jobs.tables import commits
from hub_jobs.tables.delta import TableError, ensure_table

_DAY = 86_400


def entries(lake: Path) -> list[Path]:
    """The commits in the log of `seen`."""
    return sorted((lake / "seen" / "_delta_log").glob("*.json"))


def commit(lake: Path, times: int) -> None:
    for number in range(times):
        ensure_table(lake, "seen").commit([], {"nats:hub/A@1": number})


def test_a_commit_brings_only_what_is_new_in_the_log_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path, 5)
    table = ensure_table(tmp_path, "seen")
    ensure_table(tmp_path, "seen").commit([], {"nats:hub/B@1": 1})  # another writer
    synced: list[Path] = []
    monkeypatch.setattr(commits, "sync", synced.append)
    table.commit([], {"nats:hub/A@1": 9})
    log = tmp_path / "seen" / "_delta_log"
    planned_on, others, own = entries(tmp_path)[-3:]
    assert synced == [planned_on, others, own, log, tmp_path / "seen"], "the writer of the first may be dead"


def test_a_checkpoint_is_on_the_disk_before_what_it_stands_for_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = commits._CLEAN_EVERY
    commit(tmp_path, every - 2)
    log = tmp_path / "seen" / "_delta_log"
    for entry in entries(tmp_path):
        os.utime(entry, (time.time() - 8 * _DAY,) * 2)
    before, synced = len(entries(tmp_path)), list[Path]()
    with monkeypatch.context() as patch:
        patch.setattr(commits, "sync", synced.append)
        commit(tmp_path, 1)
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    assert {checkpoint, log / "_last_checkpoint"} <= set(synced)
    assert len(entries(tmp_path)) == before + 1
    commit(tmp_path, 1)
    assert len(entries(tmp_path)) < before
    assert ensure_table(tmp_path, "seen").offset("nats:hub/A@1") == 0


@pytest.mark.parametrize("left", [0, 0.5, None], ids=["empty", "half", "gone"])
def test_a_damaged_checkpoint_is_said_with_what_brings_the_table_back(
    tmp_path: Path, left: float | None
) -> None:
    commit(tmp_path, 3)
    ensure_table(tmp_path, "seen").delta.create_checkpoint()
    log = tmp_path / "seen" / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    if left is None:
        checkpoint.unlink()
    else:
        os.truncate(checkpoint, int(checkpoint.stat().st_size * left))
    with pytest.raises(TableError, match="move _last_checkpoint and the newest"):
        ensure_table(tmp_path, "seen")

    (log / "_last_checkpoint").unlink()
    checkpoint.unlink(missing_ok=True)
    assert ensure_table(tmp_path, "seen").offset("nats:hub/A@1") == 2


@pytest.mark.parametrize(("name", "said"), [("seen", "delete the table"), ("readings", "from a copy")])
@pytest.mark.parametrize("number", [0, 2])
def test_an_entry_of_the_log_that_is_empty_or_gone_is_said_with_what_to_do(
    tmp_path: Path, name: str, number: int, said: str
) -> None:
    for offset in range(4):
        ensure_table(tmp_path, name).commit([], {"nats:hub/A@1": offset})
    entry = tmp_path / name / "_delta_log" / commits.entry_name(number)
    if number:
        entry.unlink()
    else:
        entry.write_bytes(b"")
    with pytest.raises(TableError, match=f"an entry of its log is empty or gone: .*{said}"):
        ensure_table(tmp_path, name)


def test_a_commit_is_not_taken_back_where_the_newest_version_is_damaged(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    table = ensure_table(tmp_path, "seen")
    change = commits.TableChange([], "append", {"nats:hub/A@1": 9}, {}, {"nats:hub/A@1": 0})
    commits.attempt(table.path, table.delta, change)
    newest = table.newest().delta
    damaged = entries(tmp_path)[0].with_name(commits.entry_name(newest.version() + 1))
    damaged.write_text('{"add": {}}\n')
    assert not commits.undo(tmp_path / "seen", newest, change)


def test_the_log_forgets_what_is_older_than_a_week_and_the_offsets_stay(tmp_path: Path) -> None:
    every = commits._CLEAN_EVERY
    ensure_table(tmp_path, "seen").commit([], {"nats:hub/OLD@1": 77})
    commit(tmp_path, every + 10)
    for entry in entries(tmp_path):
        os.utime(entry, (time.time() - 8 * _DAY,) * 2)
    young = entries(tmp_path)[-3:]
    for entry in young:
        os.utime(entry, (time.time() - 6 * _DAY,) * 2)
    commit(tmp_path, every)
    left = entries(tmp_path)
    assert len(left) < 2 * every, "what is before the checkpoint of the oldest that is kept goes"
    assert set(young) <= set(left)
    assert ensure_table(tmp_path, "seen").offset("nats:hub/OLD@1") == 77


def test_what_the_operator_has_said_of_the_log_stays(tmp_path: Path) -> None:
    ensure_table(tmp_path, "seen").delta.alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 90 days"}
    )
    commit(tmp_path, 1)
    configuration = ensure_table(tmp_path, "seen").delta.metadata().configuration
    assert configuration["delta.logRetentionDuration"] == "interval 90 days"
