"""Spark with the Delta jar reads our tables through the log, as the other readers do."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import Exit
from hub_jobs.maintain import run as maintain
from hub_jobs.tables.schemas import SCHEMAS
from tests.harness.examples import costly
from tests.spark.readers import delta_spark, plain
from tests.spark.test_bounds import agree_also_compacted, odd_table
from tests.spark.test_other_readers import PREDICATES, SINCE, expected, filled, fulfilling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("name", ["bronze", "readings", "audit"])
def test_spark_reads_every_row_as_it_was_written_also_after_maintenance(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    reader = delta_spark(spark)
    written = filled(tmp_path, name)

    for _ in range(2):
        found = reader.rows(tmp_path / name)
        assert plain(found, SCHEMAS[name]) == plain(written, SCHEMAS[name])
        assert maintain.main(["--lake", str(tmp_path)]) is Exit.WELL


@given(seed=st.integers(0, 2**32))
@costly(40)
def test_spark_finds_the_rows_of_any_table_also_after_compaction(spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        names = [odd_table(Path(directory), chance)]
        agree_also_compacted([delta_spark(spark)], Path(directory), names, chance)


def test_spark_answers_as_the_other_readers_do(spark: SparkSession, tmp_path: Path) -> None:
    reader = delta_spark(spark)
    written = filled(tmp_path, "readings")

    for predicate in PREDICATES:
        assert reader.count(tmp_path / "readings", predicate) == fulfilling(written, predicate), predicate
    assert reader.answer(tmp_path / "readings", SINCE) == expected(written)
    described = spark.sql(f"DESCRIBE DETAIL delta.`{tmp_path / 'readings'}`").collect()[0]
    assert (described.minReaderVersion, described.format) == (1, "delta")
