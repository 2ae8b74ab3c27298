"""Other programs that write into the tables of a lake, at the moment that a test chooses."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from hub_jobs.tables.delta import Table
from hub_jobs.tables.parquet_reading import usual

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


def by_duckdb(rows: pa.Table, path: Path) -> None:
    """DuckDB writes a file: nothing of Arrow in it."""
    with duckdb.connect() as conn:
        conn.register("given", rows)
        conn.execute(f"COPY (SELECT * FROM given) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)")


def with_types(text: pa.DataType, binary: pa.DataType) -> Callable[[pa.Table, Path], None]:
    """pyarrow writes a file with one kind of text and bytes, its columns in reverse, in row groups of two."""

    def write(rows: pa.Table, path: Path) -> None:
        fields = [field.with_type(_retyped(field.type, text, binary)) for field in rows.schema]
        typed = rows.cast(pa.schema(fields)).select(rows.column_names[::-1])
        pq.write_table(typed, path, row_group_size=2)

    return write


def _retyped(kind: pa.DataType, text: pa.DataType, binary: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return text
    if pa.types.is_binary(kind):
        return binary
    return kind


def rewritten(path: Path, write: Callable[[pa.Table, Path], None]) -> None:
    """A program writes a whole table as one file, and no statistics into the log."""
    table = DeltaTable(path)
    parts = [usual(pq.read_table(file.removeprefix("file://"))) for file in table.file_uris()]
    rows = pa.concat_tables(parts, promote_options="default")
    name = f"foreign-{uuid.uuid4()}.parquet"
    write(rows, path / name)
    now = time.time_ns() // 1_000_000
    added = AddAction(name, (path / name).stat().st_size, {}, now, False, "{}")
    gone = [
        RemoveAction(one, False, now, None, {})
        for one in pa.table(table.get_add_actions())["path"].to_pylist()
    ]
    table.create_write_transaction([added, *gone], mode="append", schema=table.schema())
