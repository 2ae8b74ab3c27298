"""Tables as other programs read them: none of these readers has anything of Petiole's."""

from __future__ import annotations

import importlib.util
import json
import operator
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Answer = list[tuple[str | None, int, float, datetime, datetime, int]]
"""By domain: rows, the sum of `value`, the first and last `ts`, rows with the tag `site` = `north`."""


Predicate = tuple[str, str, Any]
"""A column, a key of `SIGNS`, and a value; or `null` or `not null`, and no value."""
SIGNS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SQL_TYPES: Final = {
    bool: "BOOLEAN",
    int: "BIGINT",
    float: "DOUBLE",
    date: "DATE",
    datetime: "TIMESTAMP WITH TIME ZONE",
}


@dataclass(frozen=True, slots=True)
class Reader:
    """A program: all rows of a table, by its own means the answer for readings from a moment on, and how many
    rows fulfil a predicate."""

    name: str
    rows: Callable[[Path], pa.Table]
    answer: Callable[[Path, datetime], Answer]
    count: Callable[[Path, Predicate], int]


def readers(spark: SparkSession) -> list[Reader]:
    """All of them."""
    return [
        Reader("delta-rs", _read_by_delta_rs, _ask_delta_rs, _count_by_delta_rs),
        Reader("delta-rs by pandas", _read_by_delta_rs, _ask_delta_rs, _count_by_pandas),
        Reader("delta-rs by PyArrow", _read_by_delta_rs, _ask_delta_rs, _count_by_pyarrow),
        Reader("polars", _read_by_polars, _ask_polars, _count_by_polars),
        Reader("duckdb", _read_by_duckdb, _ask_duckdb, _count_by_duckdb),
        Reader(
            "spark",
            lambda path: _frame(spark, path).toArrow(),
            lambda path, since: _ask_spark(spark, path, since),
            lambda path, predicate: _frame(spark, path).where(_of_spark(predicate)).count(),
        ),
    ]


def delta_spark(spark: SparkSession) -> Reader:
    """Spark with Delta's own jar, in a session that has it."""

    def frame(path: Path) -> Any:
        return spark.read.format("delta").load(str(path))

    return Reader(
        "spark with delta",
        lambda path: frame(path).toArrow(),
        lambda path, since: _answer(spark.sql(_sql(f"delta.`{path}`", since)).toArrow()),
        lambda path, predicate: frame(path).where(_of_spark(predicate)).count(),
    )


def _read_by_delta_rs(path: Path) -> pa.Table:
    return DeltaTable(path).to_pyarrow_table()


def _read_by_polars(path: Path) -> pa.Table:
    return pl.scan_delta(str(path)).collect().to_arrow()


def _sql_of(predicate: Predicate, literal: str | None = None) -> str:
    name, sign, value = predicate
    if sign not in SIGNS:
        return f'"{name}" IS {sign}'
    if literal is None:
        literal = "'{}'".format(str(value).replace("'", "''"))
        if isinstance(value, datetime):  # its TIMESTAMP ends in 2262
            return f'"{name}" {sign} arrow_cast({literal}, \'Timestamp(Microsecond, Some("UTC"))\')'
    is_text = isinstance(value, str)
    return f'"{name}" {sign} ' + (literal if is_text else f"CAST({literal} AS {_SQL_TYPES[type(value)]})")


def _of_spark(predicate: Predicate) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    name, sign, value = predicate
    if sign not in SIGNS:
        return F.col(name).isNull() if sign == "null" else F.col(name).isNotNull()
    kind = "timestamp" if isinstance(value, datetime) else _SQL_TYPES.get(type(value), "string")
    # Python's times pass through a calendar of Java that is another before 1582.
    wanted = F.lit(value if isinstance(value, str | bool | int | float) else str(value)).cast(kind)
    return SIGNS[sign](F.col(name), wanted)


def _count_by_delta_rs(path: Path, predicate: Predicate) -> int:
    asked = f"SELECT 1 AS one FROM readings WHERE {_sql_of(predicate)}"
    found = QueryBuilder().register("readings", DeltaTable(path)).execute(asked)
    return int(pa.table(found.read_all()).num_rows)


def _count_by_pandas(path: Path, predicate: Predicate) -> int:
    name, sign, _ = predicate
    if sign not in SIGNS:
        return _count_by_pyarrow(path, predicate)
    return len(DeltaTable(path).to_pandas(columns=[name], filters=[predicate]))


def _count_by_pyarrow(path: Path, predicate: Predicate) -> int:
    name, sign, value = predicate
    field = pc.field(name)
    kept = (
        SIGNS[sign](field, value)
        if sign in SIGNS
        else field.is_null()
        if sign == "null"
        else ~field.is_null()
    )
    return int(DeltaTable(path).to_pyarrow_dataset().to_table(columns=[name], filter=kept).num_rows)


def _count_by_polars(path: Path, predicate: Predicate) -> int:
    name, sign, value = predicate
    column = pl.col(name)
    kept = (
        SIGNS[sign](column, value)
        if sign in SIGNS
        else column.is_null()
        if sign == "null"
        else ~column.is_null()
    )
    return int(pl.scan_delta(str(path)).filter(kept).select(pl.len()).collect().item())


def _count_by_duckdb(path: Path, predicate: Predicate) -> int:
    _, sign, value = predicate
    asked = f"SELECT count(*) FROM delta_scan('{path}') WHERE {_sql_of(predicate, '?')}"
    given = [value if isinstance(value, str) else str(value)] if sign in SIGNS else []
    return int(duckdb_with_delta().execute(asked, given).to_arrow_table().column(0)[0].as_py())


def _ask_delta_rs(path: Path, since: datetime) -> Answer:
    found = QueryBuilder().register("readings", DeltaTable(path)).execute(_sql("readings", since))
    return _answer(pa.table(found.read_all()))


def _ask_polars(path: Path, since: datetime) -> Answer:
    north = pl.col("tags").map.get("site") == "north"
    found = (
        pl.scan_delta(str(path))
        .filter(pl.col("ts") >= since)
        .group_by("domain")
        .agg(
            pl.len(),
            pl.col("value").sum(),
            pl.col("ts").min().alias("first"),
            pl.col("ts").max().alias("last"),
            north.sum().alias("north"),
        )
    )
    return _answer(found.collect().to_arrow())


@cache
def duckdb_with_delta() -> duckdb.DuckDBPyConnection:
    """A connection that can read Delta tables, with times in UTC."""
    spec = importlib.util.find_spec("duckdb_extension_delta")
    assert spec is not None
    assert spec.origin is not None
    (extension,) = Path(spec.origin).parent.rglob("delta.duckdb_extension")
    conn = duckdb.connect()
    # DuckDB loads it only with a signature of its makers.
    conn.execute(f"LOAD '{extension}'")
    conn.execute("SET TimeZone = 'UTC'")
    return conn


def _read_by_duckdb(path: Path) -> pa.Table:
    return duckdb_with_delta().execute(f"SELECT * FROM delta_scan('{path}')").to_arrow_table()


def _ask_duckdb(path: Path, since: datetime) -> Answer:
    asked = _sql(f"delta_scan('{path}')", since)
    return _answer(duckdb_with_delta().execute(asked).to_arrow_table())


def _frame(spark: SparkSession, path: Path) -> Any:
    """The files and the schema of a table's log; Spark left to infer a schema leaves out new columns."""
    from pyspark.sql.types import StructType

    table = DeltaTable(path)
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    return spark.read.schema(schema).parquet(*table.file_uris())


def _ask_spark(spark: SparkSession, path: Path, since: datetime) -> Answer:
    return _answer(spark.sql(_sql("{readings}", since), readings=_frame(spark, path)).toArrow())


def _sql(table: str, since: datetime) -> str:
    return (
        "SELECT domain, count(*) AS rows, sum(value) AS total, min(ts) AS first, max(ts) AS last, "
        "count(CASE WHEN tags['site'] = 'north' THEN 1 END) AS north "
        f"FROM {table} WHERE ts >= TIMESTAMP '{since:%Y-%m-%d %H:%M:%S}+00:00' GROUP BY domain"
    )


def _answer(found: pa.Table) -> Answer:
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=str)


def plain(rows: pa.Table, schema: pa.Schema) -> list[str]:
    """Rows in an order of their own, however a program writes down text, maps and times."""
    return sorted(
        repr([_plain(row[field.name], field.type) for field in schema])
        for row in _cast(rows, schema).to_pylist()
    )


def _cast(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        pc.cast(rows[field.name], field.type) if pa.types.is_timestamp(field.type) else rows[field.name]
        for field in schema
    ]
    return pa.table(columns, names=schema.names)


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is not None and pa.types.is_map(kind):
        pairs = [tuple(pair.values()) if isinstance(pair, dict) else tuple(pair) for pair in value]
        return sorted(pairs)
    return value
