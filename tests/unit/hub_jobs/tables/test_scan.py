"""Which files of a table may hold a row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from hub_jobs.rollup.run import spans
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.grouping import plain_texts
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.scan import Condition, batches, file_paths, rows
from hub_jobs.tables.schemas import BRONZE

HOUR = timedelta(hours=1)


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


def test_rows_are_asked_where_the_log_does_not_say_that_all_of_a_file_fulfil_a_condition(
    tmp_path: Path,
) -> None:
    table = ensure_table(tmp_path, "bronze")
    with PartWriter(tmp_path, "bronze", 1) as writer:
        for first, streams in ((1, ["A", "A"]), (3, ["A", None]), (5, ["A", "B"]), (7, ["B", "B"])):
            given = [{"seq": first + at, "stream": stream} for at, stream in enumerate(streams)]
            lacking = dict.fromkeys(BRONZE.names)
            writer.write(pa.Table.from_pylist([lacking | row for row in given], BRONZE))
    table.commit(writer.files, {})
    table = ensure_table(tmp_path, "bronze")

    of_a: list[Condition] = [("stream", "=", "A"), ("seq", ">", 0), ("seq", "<=", 8)]
    both: list[Condition] = [("stream", "=", "A"), ("seq", ">", 1), ("seq", "<=", 2)]

    assert sorted(rows(table, ["seq"], of_a)["seq"].to_pylist()) == [1, 2, 3, 5]
    assert sorted(rows(table, ["seq"], both)["seq"].to_pylist()) == [2]


def test_texts_that_are_read_as_dictionaries_are_the_same_texts(tmp_path: Path) -> None:
    table = ensure_table(tmp_path, "bronze")
    with PartWriter(tmp_path, "bronze", 1) as writer:
        for first, subjects in ((1, ["a", "b", "a"]), (4, [None, "b", "c"])):
            given = [{"seq": first + at, "subject": text} for at, text in enumerate(subjects)]
            writer.write(pa.Table.from_pylist([dict.fromkeys(BRONZE.names) | row for row in given], BRONZE))
    table.commit(writer.files, {})
    table = ensure_table(tmp_path, "bronze")

    where: list[Condition] = [("seq", ">", 1), ("subject", "=", "b")]
    columns = ["seq", "subject", "headers"]
    found = pa.concat_tables(batches(table, columns, coded=True))
    asked = pa.concat_tables(batches(table, columns, where, coded=True))

    assert pa.types.is_dictionary(found.schema.field("subject").type)
    assert plain_texts(found).sort_by("seq").to_pylist() == rows(table, columns).sort_by("seq").to_pylist()
    assert sorted(asked["seq"].to_pylist()) == [2, 5]


def test_a_reading_that_is_years_late_opens_no_file_of_the_years_between(tmp_path: Path) -> None:
    table = ensure_table(tmp_path, "bronze")
    days = [datetime(1970, 1, 1, tzinfo=UTC), *(datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 31))]
    with PartWriter(tmp_path, "bronze", 1) as writer:
        for seq, day in enumerate(days):
            row = {**dict.fromkeys(BRONZE.names), "seq": seq, "arrived": day + HOUR}
            writer.write(pa.Table.from_pylist([row], BRONZE))
    table.commit(writer.files, {})
    table = ensure_table(tmp_path, "bronze")

    late = [("arrived", "within", spans([days[0] + HOUR, days[-1], days[-1] + HOUR], HOUR, before=HOUR))]

    assert len(file_paths(table, late)) == 2
    assert sorted(rows(table, ["seq"], late)["seq"].to_pylist()) == [0, 30]


def test_the_last_hour_that_a_clock_can_say_has_a_stretch_too() -> None:
    last = datetime(9999, 12, 31, 23, tzinfo=UTC)
    assert spans([last], HOUR, before=HOUR)[0][0] == last - HOUR
    assert spans([last], HOUR)[0][1] > last + HOUR / 2
