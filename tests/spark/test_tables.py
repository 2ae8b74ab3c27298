"""Tables: what tasks write, what the log says of it, and who may commit."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from hub_jobs.refine.readings import Refiner
from hub_jobs.tables.delta import ConflictError, TableError, ensure_table, open_table
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.scan import Condition, file_paths, read, rows
from hub_jobs.tables.schemas import BRONZE, SCHEMAS
from tests.unit.hub_jobs.damage import flip
from tests.unit.hub_jobs.rows import batch_row, direct_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def _write(lake: Path, name: str, *tables: pa.Table, max_file_bytes: int = 2**20) -> list[Any]:
    with PartWriter(lake, name, max_file_bytes) as writer:
        for table in tables:
            writer.write(table)
    return writer.files


def _bronze(*seqs: int, stream: str = "TELEMETRY_0") -> pa.Table:
    return pa.Table.from_pylist([batch_row(b"{}\n", seq=seq, stream=stream) for seq in seqs], BRONZE)


def test_spark_reads_every_column_of_readings_as_it_was_written(spark: SparkSession, tmp_path: Path) -> None:
    refiner = Refiner()
    refiner.add(
        batch_row(
            b'{"ts":"1999-12-31T23:59:59.999999Z","metric":"m","value":1.5,"tags":{"a":"b","c":""}}\n'
            b'{"ts":0,"device":"d","metric":"on","value":true}\n'
            b'{"ts":"1900-01-01T00:00:00Z","metric":"text","value":"\xc3\xa9"}\n',
            n=2**40,
        )
    )
    refiner.add(direct_row(b"1"))
    written = refiner.drain()
    table = ensure_table(tmp_path, "readings")
    table.commit(_write(tmp_path, "readings", written), {"app": 1})

    frame = read(spark, tmp_path / "readings")

    assert frame.columns == SCHEMAS["readings"].names
    columns = [name for name in frame.columns if name not in ("ts", "tags", "event_date", "arrived")]
    found = {row["metric"]: row for row in frame.collect()}
    for reading in written.to_pylist():
        row = found[reading["metric"]]
        assert [row[name] for name in columns] == [reading[name] for name in columns]
        assert row["tags"] == dict(reading["tags"])
        assert row["event_date"] == reading["event_date"]
    micros = {row.metric: row.us for row in frame.selectExpr("metric", "unix_micros(ts) AS us").collect()}
    assert micros["m"] == 946_684_799_999_999
    assert micros["on"] == 0
    assert found["on"]["event_date"] == date(1970, 1, 1)


def test_files_that_can_not_hold_a_row_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    table = ensure_table(tmp_path, "bronze")
    parts = [
        _write(tmp_path, "bronze", _bronze(*range(first, first + 10), stream=stream))
        for stream in ("TELEMETRY_0", "TELEMETRY_1")
        for first in (1, 11, 21)
    ]
    table.commit([file for part in parts for file in part], {})
    table = ensure_table(tmp_path, "bronze")
    cases: list[tuple[list[Condition], int, int]] = [
        ([("seq", ">", 10), ("seq", "<=", 20)], 2, 20),
        ([("seq", ">=", 25), ("stream", "=", "TELEMETRY_1")], 1, 6),
        ([("stream", "in", ["TELEMETRY_2"])], 0, 0),
        ([("seq", "in", [5, 6])], 2, 4),
        ([("subject", "=", "other")], 0, 0),
        ([("arrived", "<", datetime(2000, 1, 1, tzinfo=UTC))], 0, 0),
        ([], 6, 60),
    ]

    for where, files, count in cases:
        assert len(file_paths(table, where)) == files
        assert rows(table, ["seq"], where).num_rows == count
        assert read(spark, tmp_path / "bronze", where).count() == count


def test_the_log_carries_exact_statistics_and_files_stay_bounded(tmp_path: Path) -> None:
    ensure_table(tmp_path, "bronze")

    files = _write(tmp_path, "bronze", _bronze(3, 1), _bronze(7), max_file_bytes=1)

    assert [file.rows for file in files] == [2, 1]
    stats = json.loads(files[0].stats)
    assert stats["numRecords"] == 2
    assert (stats["minValues"]["seq"], stats["maxValues"]["seq"]) == (1, 3)
    assert stats["minValues"]["arrived"].endswith("Z")
    assert stats["nullCount"]["n"] == 0


def test_a_commit_on_a_snapshot_that_another_commit_overtook_is_refused_and_leaves_no_file(
    tmp_path: Path,
) -> None:
    first, second = ensure_table(tmp_path, "bronze"), ensure_table(tmp_path, "bronze")
    first.commit(_write(tmp_path, "bronze", _bronze(1)), {"app": 1})

    with pytest.raises(ConflictError, match="another writer was first"):
        second.commit(_write(tmp_path, "bronze", _bronze(1)), {"app": 1})

    assert len(list((tmp_path / "bronze").glob("*.parquet"))) == 1
    now = ensure_table(tmp_path, "bronze")
    assert (now.offset("app"), now.offset("other")) == (1, None)
    second = ensure_table(tmp_path, "bronze")
    second.commit(_write(tmp_path, "bronze", _bronze(2)), {"app": 2})


def test_writers_of_different_streams_do_not_hinder_each_other(tmp_path: Path) -> None:
    first, second = ensure_table(tmp_path, "bronze"), ensure_table(tmp_path, "bronze")
    first.commit(_write(tmp_path, "bronze", _bronze(1)), {"one": 1})
    second.commit(_write(tmp_path, "bronze", _bronze(2)), {"other": 2})

    assert rows(ensure_table(tmp_path, "bronze"), ["seq"]).num_rows == 2


def test_a_writer_that_fails_leaves_no_file(tmp_path: Path) -> None:
    ensure_table(tmp_path, "bronze")
    other_rows = pa.table({"seq": pa.array([None], pa.month_day_nano_interval())})

    with pytest.raises(pa.ArrowNotImplementedError):
        _write(tmp_path, "bronze", _bronze(1), other_rows, max_file_bytes=1)

    assert list((tmp_path / "bronze").glob("*.parquet")) == []


def test_a_table_that_is_not_ours_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    DeltaTable.create(tmp_path / "bronze", schema=BRONZE)
    with pytest.raises(TableError, match="was not made by Petiole"):
        open_table(tmp_path, "bronze")
    with pytest.raises(TableError, match="there is no table"):
        read(spark, tmp_path / "readings")


def test_spark_refuses_a_page_whose_bits_are_not_those_that_were_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = ensure_table(tmp_path, "bronze")
    table.commit(_write(tmp_path, "bronze", _bronze(1)), {"app": 1})
    (file,) = (tmp_path / "bronze").glob("*.parquet")
    assert read(spark, tmp_path / "bronze").select("payload").count() == 1
    flip(file, "payload")

    with pytest.raises(Exception, match="could not verify page integrity, CRC checksum"):
        read(spark, tmp_path / "bronze").select("payload").collect()
