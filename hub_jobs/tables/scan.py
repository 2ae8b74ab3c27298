"""Reading tables: the files that may hold a row are chosen by the statistics in the Delta log.

Spark reads them as Parquet with the log's schema (a schema that Spark infers leaves new columns out in
silence); the driver reads a few columns of them with Arrow. Deletion vectors and column mapping are never
used here, so a table is the rows of its files.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Container, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from hub_jobs.tables.delta import Table, TableError, open_table
from hub_jobs.tables.places import CHECKED, Place, arrow_paths, parquet_file, parse_place, spark_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Condition = tuple[str, str, Any]
"""(column, one of `=`, `<`, `<=`, `>`, `>=`, `in`, value); several stand for all of them."""

_VERIFY: Final = "parquet.page.verify-checksum.enabled"
"""Without this Spark reads a page whose bits are not those that were written."""

_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def read(spark: SparkSession, path: str | Path, where: Sequence[Condition] = ()) -> DataFrame:
    """The rows of the table at `path` that fulfil `where`, as the table is now. Raises `TableError`."""
    at = parse_place(str(path))
    table = open_table(at.parent, at.name)
    if table is None:
        raise TableError(f"there is no table {at}")
    return frame(spark, table, where)


def frame(spark: SparkSession, table: Table, where: Sequence[Condition] = ()) -> DataFrame:
    """The rows of a snapshot that fulfil `where`."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(table.delta.schema().to_json()))
    paths = file_paths(table, where)
    rows = (
        spark.read.schema(schema).option(_VERIFY, "true").parquet(*map(spark_path, paths))
        if paths
        else spark.createDataFrame([], schema)
    )
    for name, sign, value in where:
        column = F.col(name)
        rows = rows.where(column.isin(list(value)) if sign == "in" else _COMPARE[sign](column, value))
    return rows


def batches(
    table: Table, columns: Sequence[str], where: Sequence[Condition] = (), batch_rows: int = 131_072
) -> Iterator[pa.RecordBatch]:
    """Some columns of the rows that fulfil `where`, a bounded piece at a time. Raises `UnreadableError`."""
    paths = file_paths(table, where)
    if not paths:
        return
    kept = reduce(operator.and_, (_expression(one) for one in where)) if where else None
    try:
        dataset = ds.dataset(**arrow_paths(paths), schema=table.schema, format=CHECKED)
        yield from dataset.to_batches(columns=list(columns), filter=kept, batch_size=batch_rows)
    except (OSError, pa.ArrowException):
        _name_unreadable(table, paths, {*columns, *(name for name, _, _ in where)})
        raise


def _name_unreadable(table: Table, paths: Sequence[Place], columns: Container[str]) -> None:
    """Find the file for which a dataset could not be read: Arrow does not say it."""
    for path in paths:
        with parquet_file(path) as file:
            known = [name for name in file.names if name in columns]
            for group in range(file.num_row_groups):
                file.read_row_group(group, columns=known)


def rows(table: Table, columns: Sequence[str], where: Sequence[Condition] = ()) -> pa.Table:
    """`batches` as one table, for what is known to be small."""
    schema = pa.schema([table.schema.field(name) for name in columns])
    return pa.Table.from_batches(list(batches(table, columns, where)), schema)


def files(table: Table) -> pa.Table:
    """A row a file of the snapshot: `path`, `size_bytes`, `num_records`, and `min.<column>`,
    `max.<column>`."""
    return pa.table(table.delta.get_add_actions(flatten=True))


def file_paths(table: Table, where: Sequence[Condition] = ()) -> list[Place]:
    """The files that may hold a row that fulfils `where`, in the order of their names, without those that the
    table has put aside."""
    found = files(table)
    if where and found.num_rows:  # the statistics of no files have no types
        found = found.filter(reduce(pc.and_, (_may_hold(found, one) for one in where)))
    return [table.path / path for path in sorted({*found["path"].to_pylist()} - table.aside)]


def _expression(condition: Condition) -> Any:
    name, sign, value = condition
    values = list(value) if sign == "in" else [value]
    # delta-rs writes views of texts, which compare with nothing but views.
    texts = any(isinstance(one, str) for one in values)
    column = pc.field(name).cast(pa.string()) if texts else pc.field(name)
    return column.isin(values) if sign == "in" else _COMPARE[sign](column, pc.scalar(value))


def _may_hold(found: pa.Table, condition: Condition) -> Any:
    """Which files may hold a row; one without statistics may."""
    name, sign, value = condition
    everything = pa.array([True] * found.num_rows)
    if f"min.{name}" not in found.column_names:
        return everything
    least, most = found[f"min.{name}"], found[f"max.{name}"]
    if sign == "in":
        if not value:
            return pc.invert(everything)
        possible = pc.and_(pc.less_equal(least, max(value)), pc.greater_equal(most, min(value)))
    elif sign == "=":
        possible = pc.and_(pc.less_equal(least, value), pc.greater_equal(most, value))
    elif sign in ("<", "<="):
        possible = (pc.less if sign == "<" else pc.less_equal)(least, value)
    else:
        possible = (pc.greater if sign == ">" else pc.greater_equal)(most, value)
    return pc.fill_null(possible, True)
