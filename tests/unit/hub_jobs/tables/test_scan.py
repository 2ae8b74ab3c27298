"""Which files of a table may hold a row."""

from __future__ import annotations

from pathlib import Path

import pytest

from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.scan import Condition, file_paths, rows


@pytest.mark.parametrize(
    "condition",
    [
        ("seq", ">=", 1),
        ("seq", "<", 1),
        ("subject", "=", "a"),
        ("subject", "in", ["a"]),
        ("subject", "in", []),
    ],
)
def test_a_table_without_rows_has_no_file_for_any_condition(tmp_path: Path, condition: Condition) -> None:
    table = ensure_table(tmp_path, "bronze")
    assert file_paths(table, [condition]) == []
    assert rows(table, ["seq"], [condition]).num_rows == 0
