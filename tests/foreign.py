"""Other programs that write into the tables of a lake, at the moment that a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from hub_jobs.tables import Table

Act = Callable[[Path], object]
"""What a program does to the table at a path."""


def compact(path: Path) -> None:
    """delta-rs writes all files of the table together."""
    assert DeltaTable(path).optimize.compact(min_commit_interval=None)["numFilesRemoved"]


def delete(where: str) -> Act:
    """delta-rs deletes rows."""

    def act(path: Path) -> None:
        assert DeltaTable(path).delete(where)["num_deleted_rows"]

    return act


def widen(path: Path) -> None:
    """delta-rs changes the definition of the table."""
    DeltaTable(path).alter.set_table_properties({"delta.logRetentionDuration": "interval 90 days"})


def before_commit(patch: pytest.MonkeyPatch, name: str, act: Act) -> list[str]:
    """Let a program act on a table just before the next commit to it, which was planned by then. What is
    returned names the table once that has happened."""
    happened: list[str] = []
    commit = Table._commit

    def overtaken(table: Table, *given: Any) -> None:
        if table.name == name and not happened:
            happened.append(name)
            assert isinstance(table.path, Path)
            act(table.path)
        commit(table, *given)

    patch.setattr(Table, "_commit", overtaken)
    return happened
