"""What Spark with the Delta jar can turn on at a table is refused, and undone by the remedy that is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.contract import Exit
from hub_jobs.maintain import run as maintain
from hub_jobs.tables.delta import TableError, open_table
from tests.spark.lakes import commit, contents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ACTS = {
    "append only": "ALTER TABLE {} SET TBLPROPERTIES (delta.appendOnly = true)",
    "change feed": "ALTER TABLE {} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)",
    "deletion vectors": "ALTER TABLE {} SET TBLPROPERTIES (delta.enableDeletionVectors = true)",
    "constraint": "ALTER TABLE {} ADD CONSTRAINT young CHECK (n IS NULL OR n > 0)",
    "offsets": "ALTER TABLE {} SET TBLPROPERTIES (delta.setTransactionRetentionDuration = 'interval 7 days')",
    "times of commits": "ALTER TABLE {} SET TBLPROPERTIES (delta.enableInCommitTimestamps = true)",
}


@pytest.mark.parametrize("act", ACTS.values(), ids=list(ACTS))
def test_the_remedy_that_a_refusal_names_makes_the_table_usable(
    spark: SparkSession, tmp_path: Path, act: str
) -> None:
    commit(tmp_path, "readings", [{"domain": "edge-1"}])
    table = f"delta.`{tmp_path / 'readings'}`"
    spark.sql(act.format(table))

    for _ in range(3):  # a remedy may leave something else to undo
        assert maintain.main(["--lake", str(tmp_path)]) is Exit.FAILED
        with pytest.raises(TableError) as refused:
            open_table(tmp_path, "readings")
        for remedy in re.findall(r"(ALTER TABLE) … ([^;]+)", str(refused.value)):
            spark.sql(f"{remedy[0]} {table} {remedy[1]}")
        if maintain.main(["--lake", str(tmp_path)]) is Exit.WELL:
            break

    commit(tmp_path, "readings", [{"domain": "edge-2"}])
    assert contents(tmp_path, "readings", "domain") == ["edge-1", "edge-2"]


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("ALTER TABLE {} SET TBLPROPERTIES (delta.enableRowTracking = true)", "rowTracking"),
        ("ALTER TABLE {} SET TBLPROPERTIES (delta.columnMapping.mode = 'name')", "delta.columnMapping"),
        ("ALTER TABLE {} SET TBLPROPERTIES (delta.checkpointPolicy = 'v2')", "v2Checkpoint"),
        ("ALTER TABLE {} CLUSTER BY (domain)", "clustering"),
        ("ALTER TABLE {} ALTER COLUMN index TYPE bigint", "index"),
        ("ALTER TABLE {} ADD COLUMN local timestamp_ntz", "timestamp_ntz"),
    ],
)
def test_a_feature_that_asks_something_of_every_commit_is_refused_with_its_name(
    spark: SparkSession, tmp_path: Path, act: str, said: str
) -> None:
    commit(tmp_path, "readings", [{"domain": "edge-1"}])
    table = f"delta.`{tmp_path / 'readings'}`"
    spark.sql(
        f"ALTER TABLE {table} SET TBLPROPERTIES (delta.enableTypeWidening = true, "
        "delta.feature.timestampNtz = 'supported')"
    )
    spark.sql(act.format(table))

    with pytest.raises(TableError) as refused:
        open_table(tmp_path, "readings")

    assert said in str(refused.value)
