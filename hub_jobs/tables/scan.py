"""Reads tables, choosing files by the statistics in the Delta log.

Spark reads them as Parquet with the log's schema, because an inferred schema omits new columns. The driver
reads a few columns with Arrow. The tables use no deletion vectors and no column mapping.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Container, Iterator, Sequence
from datetime import datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from hub_jobs.tables.delta import Table, TableError, open_table
from hub_jobs.tables.grouping import coded_texts
from hub_jobs.tables.parquet import is_own
from hub_jobs.tables.parquet_reading import (
    CHECKED,
    checked,
    fitted_groups,
    parquet_columns,
    parquet_file,
    usual,
)
from hub_jobs.tables.places import Place, arrow_paths, parse_place, spark_path
from hub_jobs.times import micros

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

Condition = tuple[str, str, Any]
"""(column, one of `=`, `<`, `<=`, `>`, `>=`, `in`, `within`, `null`, value); several are joined by AND.

`within` takes half-open spans of (first, end); `null` takes no value.
"""

_READ_WHOLE: Final = {
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
}
"""Spark options that read a file completely or fail, whatever the session says; the first
verifies checksums.
"""
_BATCH_ROWS: Final = 131_072
_SHORTENED: Final = pa.scalar(timedelta(milliseconds=1), pa.duration("us"))
"""Spark rounds bounds of times down to milliseconds."""

_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def read(spark: SparkSession, path: str | Path, where: Sequence[Condition] = ()) -> DataFrame:
    """Return the rows of the newest table at `path` that fulfil `where`. Raises `TableError`."""
    at = parse_place(str(path))
    table = open_table(at.parent, at.name)
    if table is None:
        raise TableError(f"there is no table {at}")
    return frame(spark, table, where)


def frame(spark: SparkSession, table: Table, where: Sequence[Condition] = ()) -> DataFrame:
    """Return the rows of a snapshot that fulfil `where`."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(table.delta.schema().to_json()))
    paths = file_paths(table, where)
    named = [name for path in paths if (name := spark_path(path)) is not None]
    if not paths:
        rows = spark.createDataFrame([], schema)
    elif named:
        rows = spark.read.schema(schema).options(**_READ_WHOLE).parquet(*named)
    else:
        rows = _read_by_arrow(spark, table, paths, where, schema)
    for name, sign, value in where:
        given = [(at_moment(first), at_moment(end)) for first, end in value] if sign == "within" else value
        given = at_moment(given) if isinstance(given, datetime) else given
        rows = rows.where(_fulfils(F.col(name), sign, given, F.col(name).isin))
    return rows


def at_moment(moment: datetime) -> Column:
    """Return a moment as Spark literal. A Python value would pass Java's other calendar before 1582."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.timestamp_micros(F.lit(micros(moment)))


def _read_by_arrow(
    spark: SparkSession, table: Table, paths: list[Place], where: Sequence[Condition], schema: StructType
) -> DataFrame:
    """Read one file per task, a row group at a time, for stores without a Spark reader."""
    known = usual(pa.schema(table.delta.schema()).empty_table()).schema
    kept = _all_of(where)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for at in batch["id"].to_pylist():
                yield from _file_batches(paths[at], known, known.names, kept, _BATCH_ROWS)

    return spark.range(0, len(paths), 1, len(paths)).mapInArrow(read, schema)


def batches(
    table: Table,
    columns: Sequence[str],
    where: Sequence[Condition] = (),
    batch_rows: int = _BATCH_ROWS,
    *,
    coded: bool = False,
) -> Iterator[pa.Table]:
    """Yield columns of the rows that fulfil `where` in bounded one-chunk pieces. Raises `UnreadableError`.

    `coded` columns are dictionaries per piece.
    """
    chosen = chosen_files(table, where)
    found = _paths(table, chosen)
    where = [condition for condition in where if not _hold_only(chosen, condition)]
    kept = _all_of(where)
    names = dict.fromkeys([*columns, *(name for name, _, _ in where)])
    for path in found:
        if not is_own(path.name):  # its types a dataset can't compare
            schema = pa.schema([table.schema.field(name) for name in names])
            for batch in _file_batches(path, schema, columns, kept, batch_rows):
                yield pa.Table.from_batches([coded_texts(batch) if coded else batch])
    paths = [path for path in found if is_own(path.name)]
    if not paths:
        return
    schema, form = _coded(table.schema) if coded else (table.schema, CHECKED)
    try:
        dataset = ds.dataset(**arrow_paths(paths), schema=schema, format=form)
        for batch in dataset.to_batches(columns=list(columns), filter=kept, batch_size=batch_rows):
            yield pa.Table.from_batches([batch])
    except (OSError, pa.ArrowException):
        _name_unreadable(table, paths, {*columns, *(name for name, _, _ in where)})
        raise


def _coded(schema: pa.Schema) -> tuple[pa.Schema, ds.ParquetFileFormat]:
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    kinds = {name: pa.dictionary(pa.int32(), pa.string()) for name in texts}
    fields = [field.with_type(kinds.get(field.name, field.type)) for field in schema]
    return pa.schema(fields), checked(texts)


def _file_batches(
    path: Place, schema: pa.Schema, columns: Sequence[str], kept: Any, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    for rows in fitted_groups(path, schema):
        chosen = rows if kept is None else rows.filter(kept)
        yield from chosen.select(columns).to_batches(max_chunksize=batch_rows)


def _name_unreadable(table: Table, paths: Sequence[Place], columns: Container[str]) -> None:
    """Find the file that a dataset failed to read; Arrow does not name it."""
    for path in paths:
        with parquet_file(path) as file:
            known = [name for name in file.names if name in columns]
            for group in range(file.num_row_groups):
                file.read_row_group(group, columns=known)


def rows(table: Table, columns: Sequence[str], where: Sequence[Condition] = ()) -> pa.Table:
    """Return `batches` as one table, for small results."""
    schema = pa.schema([table.schema.field(name) for name in columns])
    return pa.concat_tables([schema.empty_table(), *batches(table, columns, where)])


def files(table: Table) -> pa.Table:
    """Return one row per file: `path`, `size_bytes`, `num_records`, `min.<column>`, `max.<column>`."""
    return pa.table(table.delta.get_add_actions(flatten=True))


def bounds(found: pa.Table, name: str) -> list[Any]:
    """Return a column of `files` as a list, with None when the log lacks it."""
    return found[name].to_pylist() if name in found.column_names else [None] * found.num_rows


def latest(table: Table, column: str) -> Any:
    """Return the highest value of a column, None without rows. Reads files that lack the bound."""
    found = files(table)
    values, unsaid = [], found["path"]
    if f"max.{column}" in found.column_names:
        most = found[f"max.{column}"]
        values, unsaid = [pc.max(most).as_py()], unsaid.filter(pc.is_null(most))
    values += [
        pc.max(parquet_columns(table.path / path, [column])[column]).as_py() for path in unsaid.to_pylist()
    ]
    return max((value for value in values if value is not None), default=None)


def file_paths(table: Table, where: Sequence[Condition] = ()) -> list[Place]:
    """Return the files that may hold rows fulfilling `where`, sorted by name, without files in `aside`."""
    return _paths(table, chosen_files(table, where))


def _paths(table: Table, found: pa.Table) -> list[Place]:
    return [table.path / path for path in sorted({*found["path"].to_pylist()} - table.aside)]


def chosen_files(table: Table, where: Sequence[Condition]) -> pa.Table:
    """Return the rows of `files` whose files may hold rows fulfilling `where`."""
    found = files(table)
    if where and found.num_rows:  # the statistics of no files have no types
        found = found.filter(reduce(pc.and_, (_may_hold(found, condition) for condition in where)))
    return found


def _hold_only(found: pa.Table, condition: Condition) -> bool:
    """Tell whether the log proves a condition for all rows of the files, for texts and integers without
    nulls.
    """
    name, sign, value = condition
    if (
        sign not in _COMPARE
        or not isinstance(value, str | int)
        or f"null_count.{name}" not in found.column_names
    ):
        return False
    least, most = bounds(found, f"min.{name}"), bounds(found, f"max.{name}")
    nulls = bounds(found, f"null_count.{name}")
    compare = _COMPARE[sign]
    return all(
        none == 0
        and first is not None
        and last is not None
        and compare(first, value)
        and compare(last, value)
        for first, last, none in zip(least, most, nulls, strict=True)
    )


def _all_of(where: Sequence[Condition]) -> Any:
    return reduce(operator.and_, (_expression(condition) for condition in where)) if where else None


def _expression(condition: Condition) -> Any:
    name, sign, value = condition
    values = list(value) if sign == "in" else [value]
    # delta-rs writes views of texts, which compare with nothing but views.
    texts = any(isinstance(bound, str) for bound in values)
    column = pc.field(name).cast(pa.string()) if texts else pc.field(name)
    return _fulfils(column, sign, value, column.isin)


def _fulfils(column: Any, sign: str, value: Any, is_in: Callable[[list[Any]], Any]) -> Any:
    if sign == "null":
        return column.is_null() if isinstance(column, pc.Expression) else column.isNull()
    if sign == "in":
        return is_in(list(value))
    if sign == "within":
        return reduce(operator.or_, ((column >= first) & (column < end) for first, end in value))
    return _COMPARE[sign](column, value)


def _may_hold(found: pa.Table, condition: Condition) -> Any:
    """Tell which files may hold a matching row; files without statistics may."""
    name, sign, value = condition
    everything = pa.array([True] * found.num_rows)
    if sign == "null" and f"null_count.{name}" in found.column_names:
        return pc.fill_null(pc.greater(found[f"null_count.{name}"], 0), True)
    if sign == "null" or f"min.{name}" not in found.column_names:
        return everything
    least, most = found[f"min.{name}"], found[f"max.{name}"]
    if pa.types.is_timestamp(most.type):
        most = pc.add(most, _SHORTENED)
    if sign == "in":
        if not value:
            return pc.invert(everything)
        possible = pc.and_(pc.less_equal(least, max(value)), pc.greater_equal(most, min(value)))
    elif sign == "within":
        spans = (pc.and_(pc.less(least, end), pc.greater_equal(most, first)) for first, end in value)
        possible = reduce(pc.or_, spans)
    elif sign == "=":
        possible = pc.and_(pc.less_equal(least, value), pc.greater_equal(most, value))
    elif sign in ("<", "<="):
        possible = (pc.less if sign == "<" else pc.less_equal)(least, value)
    else:
        possible = (pc.greater if sign == ">" else pc.greater_equal)(most, value)
    return pc.fill_null(possible, True)
