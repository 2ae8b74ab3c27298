"""Reads the rows that `gaps` judges: in this process when few, since Spark starts in ten seconds, else by
tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from hub_jobs.gaps.cadence import HEARD, LATE, judge, lateness, lateness_of_all
from hub_jobs.gaps.look_back import Before, Span
from hub_jobs.tables.delta import Table
from hub_jobs.tables.parquet import PartFile, write_rows, written
from hub_jobs.tables.parquet_reading import fitted
from hub_jobs.tables.scan import Condition, batches, bounds, chosen_files, frame
from hub_jobs.tables.schemas import GAPS, TIME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE_ROWS: Final = 1_000_000
"""Rows judged here in a few seconds and 500 MB."""
_PART_ROWS: Final = 1_000_000
_NAMES: Final = ("domain", "device", "metric", "tags")
_TIMES: Final = ("domain", "ts", "ts_source", "arrived")


@dataclass(frozen=True, slots=True)
class Heard:
    """The readings of a window and the knowledge from before."""

    readings: Table
    window: Span
    where: Sequence[Condition]
    before: Sequence[Before]
    factor: float

    @property
    def inside(self) -> list[Condition]:
        """Return conditions for rows in the window."""
        return [("ts", ">=", self.window[0]), ("ts", "<", self.window[1]), *self.where]

    def most_rows(self) -> int | None:
        """Return an upper bound of rows, None when the log does not tell."""
        reads = [(self.readings, self.inside), *((part.table, part.where) for part in self.before)]
        counts = [n for table, where in reads for n in bounds(chosen_files(table, where), "num_records")]
        return None if None in counts else sum(counts)


def judge_here(heard: Heard, at: datetime) -> tuple[list[PartFile], pa.Table]:
    """Judge everything in this process; returns uncommitted `gaps` files and the lateness."""
    parts, late = [HEARD.empty_table()], [LATE.empty_table()]
    for rows in batches(heard.readings, [*_NAMES, *_TIMES[1:]], heard.inside):
        late.append(lateness(rows))
        parts.append(fitted(rows.select([*_NAMES, "ts"]).rename_columns([*_NAMES, "last"]), HEARD))
    for part in heard.before:
        columns = [*_NAMES, *dict.fromkeys(name for name in (part.count, part.first, part.last) if name)]
        parts += (_known(rows, part) for rows in batches(part.table, columns, part.where))
    found = judge(pa.concat_tables(parts), *heard.window, heard.factor)
    files = write_rows(heard.readings.path.parent, "gaps", _stamped(found, at))
    return files, lateness_of_all(pa.concat_tables(late))


def _known(rows: pa.Table, part: Before) -> pa.Table:
    count = rows[part.count] if part.count else pa.array(np.ones(rows.num_rows, np.int64))
    columns = [*(rows[name] for name in _NAMES), count, rows[part.first], rows[part.last]]
    return pa.table(dict(zip(HEARD.names, columns, strict=True))).cast(HEARD)


def judge_by_tasks(
    spark: SparkSession, heard: Heard, at: datetime, rows: int | None
) -> tuple[list[PartFile], pa.Table]:
    """Judge by Spark tasks, for at most `rows` rows."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.types import from_arrow_schema

    def named(given: DataFrame, count: str, first: str, last: str) -> DataFrame:
        texts = f"cast({count} as long)", f"cast({first} as timestamp)", last
        columns = zip(texts, HEARD.names[-3:], strict=True)
        return given.select(*_NAMES, *(F.expr(text).alias(name) for text, name in columns))

    inside = frame(spark, heard.readings, heard.inside)
    every = named(inside, "null", "null", "ts")
    for part in heard.before:
        given = frame(spark, part.table, part.where)
        every = every.unionByName(named(given, part.count or "1", part.first, part.last))
    window, factor = heard.window, heard.factor

    def judged(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        whole = [HEARD.empty_table(), *(fitted(pa.Table.from_batches([part]), HEARD) for part in parts)]
        yield from _stamped(judge(pa.concat_tables(whole), *window, factor), at).to_batches()

    def counted(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        late = [LATE.empty_table(), *(lateness(pa.Table.from_batches([part])) for part in parts)]
        yield from lateness_of_all(pa.concat_tables(late)).to_batches()

    pieces = max(int(spark.conf.get("spark.sql.shuffle.partitions") or 1), (rows or 0) // _PART_ROWS)
    by_device = every.repartition(pieces, "domain", "device").mapInArrow(judged, from_arrow_schema(GAPS))
    # A row a series, a device or a hole: a file is enough.
    files = written(by_device.coalesce(1), heard.readings.path.parent, "gaps")
    late = inside.select(*_TIMES).mapInArrow(counted, from_arrow_schema(LATE)).toArrow()
    return files, lateness_of_all(late.cast(LATE))


def _stamped(found: pa.Table, at: datetime) -> pa.Table:
    return fitted(found.append_column("at", pa.array([at] * found.num_rows, TIME)), GAPS)
