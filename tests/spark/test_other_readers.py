"""Other programs open the tables as they are, and agree with each other and with what was written."""

from __future__ import annotations

import operator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.contract import Exit
from hub_jobs.maintain import run as maintain
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.schemas import SCHEMAS
from tests.spark.readers import Answer, Predicate, plain, readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

START = datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
SINCE = datetime(2000, 1, 2, tzinfo=UTC)
PREDICATES: list[Predicate] = [
    ("device", ">=", "device-2"),
    ("metric", "<", "metric-1"),
    ("class", ">=", "class-3"),
    ("text", "=", "none"),
    ("text", ">=", "text-2"),
    ("value", ">=", 12.25),
    ("value", "<", -2.0),
    ("n", "<", 2**53 + 7),
    ("source_seq", "=", 12),
]
COMMITS = 10
ROWS = 12


def test_duckdb_polars_delta_rs_and_spark_agree_also_without_a_column_and_after_maintenance(
    spark: SparkSession, tmp_path: Path
) -> None:
    written = {name: filled(tmp_path, name) for name in ("bronze", "readings", "audit")}

    def agree() -> None:
        for reader in readers(spark):
            for name, rows in written.items():
                found = plain(reader.rows(tmp_path / name), SCHEMAS[name])
                assert found == plain(rows, SCHEMAS[name]), f"{reader.name} reads {name} otherwise"
            for predicate in PREDICATES:
                count = reader.count(tmp_path / "readings", predicate)
                assert count == fulfilling(written["readings"], predicate), (
                    f"{reader.name} finds other rows: {predicate}"
                )
            answer = reader.answer(tmp_path / "readings", SINCE)
            assert answer == expected(written["readings"]), f"{reader.name} answers otherwise"

    agree()
    assert files(tmp_path) == COMMITS
    assert maintain.main(["--lake", str(tmp_path)]) is Exit.WELL
    assert files(tmp_path) == 1
    agree()


def fulfilling(rows: pa.Table, predicate: Predicate) -> int:
    """How many rows should be found."""
    name, sign, value = predicate
    compare = {"=": operator.eq, ">=": operator.ge, "<": operator.lt}[sign]
    return sum(held is not None and compare(held, value) for held in rows[name].to_pylist())


def filled(lake: Path, name: str) -> pa.Table:
    """A table of several commits; its rows as they should be. Files of its first half lack the last column,
    as those of a program that writes no nulls."""
    schema = SCHEMAS[name]
    whole = pa.Table.from_pylist([row(schema, number) for number in range(COMMITS * ROWS)], schema)
    before = whole.slice(0, COMMITS // 2 * ROWS)
    for number in range(COMMITS):
        rows = whole.slice(number * ROWS, ROWS)
        table = ensure_table(lake, name)
        with PartWriter(lake, name) as writer:
            writer.write(rows.select(schema.names[:-1]) if number < COMMITS // 2 else rows)
        table.commit(writer.files, {"filled": number})
    empty = pa.nulls(before.num_rows, schema[-1].type)
    return pa.concat_tables(
        [before.set_column(len(schema) - 1, schema[-1], empty), whole.slice(before.num_rows)]
    )


def row(schema: pa.Schema, number: int) -> dict[str, Any]:
    """A row of any table: every column null at times, and what is odd in each of its kind."""
    places = enumerate(schema)
    return {field.name: None if (number + at) % 7 == 6 else value(field, number) for at, field in places}


def value(field: pa.Field, number: int) -> Any:
    kind = field.type
    if pa.types.is_timestamp(kind):
        return START + timedelta(hours=number, microseconds=number)
    if pa.types.is_date(kind):
        return date(1969, 12, 30) + timedelta(days=number)
    if pa.types.is_map(kind):
        return [("site", ("north", "süd")[number % 2]), ("", "")][: number % 3]
    if pa.types.is_list(kind):
        texts = pa.types.is_string(kind.value_type)
        return (["", "é", "a"] if texts else [-0.5, 1e300, 5e-324])[: number % 4]
    if pa.types.is_floating(kind):
        return (0.25 * number, -1e300, 5e-324)[number % 3] if field.name != "value" else number / 4 - 3
    if pa.types.is_integer(kind):
        return (number, -(2**31), 2**31 - 1)[number % 3] if field.name != "n" else 2**53 + number
    text = f"{field.name}-{number % 4}\0é"
    return text.encode() if pa.types.is_binary(kind) else text


def expected(rows: pa.Table) -> Answer:
    """What the readings that were written should give."""
    found: dict[str | None, list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        if row["ts"] is not None and row["ts"] >= SINCE:
            found.setdefault(row["domain"], []).append(row)
    answer = [
        (
            domain,
            len(mine),
            sum(row["value"] or 0 for row in mine),
            min(row["ts"] for row in mine),
            max(row["ts"] for row in mine),
            sum(("site", "north") in (row["tags"] or []) for row in mine),
        )
        for domain, mine in found.items()
    ]
    return sorted(answer, key=str)


def files(lake: Path) -> int:
    return len(DeltaTable(lake / "readings").file_uris())
