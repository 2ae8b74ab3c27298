"""Rows of a DataFrame as files of a table, written by Spark's tasks. It makes no commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from hub_jobs.tables.parquet import PartFile, PartWriter
from hub_jobs.tables.places import Place
from hub_jobs.tables.schemas import SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PART: Final = "table string, path string, size long, rows long, modified long, stats string"


def written(rows: DataFrame, lake: Place, name: str) -> list[PartFile]:
    """Write rows that have the columns of a table; the files that no commit names yet."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with PartWriter(lake, name) as writer:
            for batch in batches:
                writer.write(_shaped(batch, SCHEMAS[name]))
        for file in writer.files:
            yield pa.RecordBatch.from_pylist([file._asdict()])

    return [PartFile(**row.asDict()) for row in rows.mapInArrow(write, _PART).collect()]


def _shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    rows: Any = pa.Table.from_batches([batch])
    return pa.table([rows[field.name].cast(field.type) for field in schema], schema=schema)
