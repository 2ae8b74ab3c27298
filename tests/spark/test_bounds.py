"""A filter finds the same rows whatever the statistics of a table's files let a reader skip."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import Exit
from hub_jobs.refine import run as refine
from hub_jobs.rollup import run as rollup
from hub_jobs.tables.compaction import compacted
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.scan import files, rows
from hub_jobs.tables.schemas import SCHEMAS, bounded
from tests.harness.examples import costly
from tests.spark.lakes import add_bronze, commit
from tests.spark.readers import SIGNS, Predicate, Reader, readers
from tests.unit.hub_jobs.rows import batch_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LAST = "\U0010ffff"
NUMBERS: Final = [
    0.0,
    -0.0,
    -5.0,
    5e-324,
    -5e-324,
    2.2250738585072014e-308,
    0.1,
    1e-7,
    1.7976931348623157e308,
    -1e300,
]
TEXTS: Final = [
    *("", "a", "\0", "a\0b", "'", '"', "\\", "\uffff", "\ue000", "😀", "𠀀", "𠮷", "é" * 70),
    *("a" * 63, "a" * 64, "a" * 64 + "b", "a" * 66, "a" * 64 + LAST, "a" * 64 + LAST * 3 + "z", LAST * 70),
    *("😀" * 64, "😀" * 65, "a" * 63 + "\ud7ff\uffff", "zz"),
]
MICROSECOND: Final = timedelta(microseconds=1)
TIMES: Final = [
    datetime.min.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC),
    datetime(1582, 10, 4, 23, 59, 59, 999_999, UTC),
    datetime(1970, 1, 1, tzinfo=UTC) - MICROSECOND,
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2026, 11, 21, 23, 59, 59, 999_999, UTC),
    datetime(2026, 11, 21, 23, 59, 59, 999_001, UTC),
    datetime(2262, 4, 11, 23, 47, 16, 854_775, UTC) + MICROSECOND,
]
LONGS: Final = [0, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 7]
INTS: Final = [0, -1, 2**31 - 1, -(2**31), 7]
DATES: Final = [*sorted({moment.date() for moment in TIMES}), date(1582, 10, 15)]
PREDICATES: Final = 5
COMMITS: Final = 3


def odd(kind: pa.DataType, chance: random.Random) -> Any:
    """A value of a type, as a reader might take it for another or for none."""
    if chance.random() < 0.25:
        return None
    if pa.types.is_floating(kind):
        return chance.choice([*NUMBERS, float("inf"), float("-inf"), chance.uniform(-9, 9)])
    if pa.types.is_timestamp(kind):
        return chance.choice(TIMES)
    if pa.types.is_string(kind):
        return chance.choice(TEXTS)
    if pa.types.is_boolean(kind):
        return chance.choice([True, False])
    if pa.types.is_date(kind):
        return chance.choice(DATES)
    if pa.types.is_integer(kind):
        return chance.choice(INTS if kind == pa.int32() else LONGS)
    return None


def agree(asked: Sequence[Reader], path: Path, held: pa.Table, predicates: Sequence[Predicate]) -> None:
    """All readers find the rows that fulfil each predicate."""
    for name, sign, value in predicates:
        column = held[name].to_pylist()
        if sign in SIGNS:
            expected = sum(one is not None and SIGNS[sign](one, value) for one in column)
        else:
            expected = sum((one is None) == (sign == "null") for one in column)
        found = {reader.name: reader.count(path, (name, sign, value)) for reader in asked}
        assert found == dict.fromkeys(found, expected), (path.name, name, sign, value, column, log(path))


def agree_also_compacted(
    asked: Sequence[Reader], lake: Path, names: Sequence[str], chance: random.Random
) -> None:
    """The same of tables as they are, and of their compacted files by a checkpoint."""
    for is_compacted in (False, True):
        for name in names:
            table = ensure_table(lake, name)
            if is_compacted:
                paths = files(table)["path"].to_pylist()
                table.rewrite(compacted(lake, table, paths), paths)
                DeltaTable(lake / name).create_checkpoint()
            held = rows(ensure_table(lake, name), SCHEMAS[name].names)
            agree(asked, lake / name, held, some(held, chance))


def log(path: Path) -> list[Any]:
    """What the newest commit says of its files."""
    newest = max((path / "_delta_log").glob("*.json"))
    return [entry for entry in map(json.loads, newest.read_text().splitlines()) if "add" in entry]


def some(held: pa.Table, chance: random.Random) -> list[Predicate]:
    """Predicates about values that are there, and about such that may not be."""
    found: list[Predicate] = []
    for _ in range(PREDICATES):
        name = chance.choice(bounded(held.schema))
        values = [value for value in held[name].to_pylist() if value is not None]
        value = chance.choice([*values, *values, odd(held.schema.field(name).type, chance)])
        sign = chance.choice([*SIGNS, "null", "not null"]) if value is not None else "null"
        found.append((name, sign, value))
    return found


def odd_table(lake: Path, chance: random.Random) -> str:
    """Make a table of any name; returns it."""
    name = chance.choice(list(SCHEMAS))
    for _ in range(COMMITS):
        given = [field for field in SCHEMAS[name] if chance.random() < 0.8]
        count = chance.randint(1, 3)
        commit(lake, name, [{field.name: odd(field.type, chance) for field in given} for _ in range(count)])
    return name


@given(seed=st.integers(0, 2**32))
@costly(80)
def test_every_reader_finds_the_rows_of_any_table_also_after_compaction(
    spark: SparkSession, seed: int
) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        names = [odd_table(Path(directory), chance)]
        agree_also_compacted(readers(spark), Path(directory), names, chance)


def line(chance: random.Random) -> bytes:
    """A line of a batch, whose value may be of any kind."""
    ts = chance.choice(TIMES)
    fields = {
        "ts": ts.isoformat().replace("+00:00", chance.choice(["Z", "-00:00"])),
        "device": chance.choice([text for text in TEXTS if 0 < len(text) < 256 and "\0" not in text]),
        "metric": "m",
        "value": chance.choice([chance.choice(NUMBERS), chance.choice(TEXTS), True, 2**53 + 1, -(2**63), 3]),
    }
    return (
        json.dumps(
            {name: held for name, held in fields.items() if name != "device" or chance.random() < 0.7}
        ).encode()
        + b"\n"
    )


@given(seed=st.integers(0, 2**32))
@costly(40)
def test_every_reader_finds_the_readings_that_refine_writes_also_after_compaction(
    spark: SparkSession, seed: int
) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        lake = Path(directory)
        for n in range(1, COMMITS + 1):
            lines = [line(chance) for _ in range(chance.randint(1, 4))]
            if chance.random() < 0.3:
                lines.append(b"no reading\n")
            add_bronze(lake, [batch_row(b"".join(lines), n, source_seq=n)])
            assert refine.main(["--lake", str(lake)]) is Exit.WELL
        agree_also_compacted(readers(spark), lake, ["readings", "quarantine"], chance)


def test_every_reader_finds_windows_whose_numbers_are_beyond_a_double(
    spark: SparkSession, tmp_path: Path
) -> None:
    most, minute, hour = 1.7976931348623157e308, timedelta(minutes=1), timedelta(hours=1)
    start = datetime(2026, 11, 21, tzinfo=UTC)
    for at, value in enumerate([most, most, -most, -most, -0.0, 5.0]):
        reading = {
            "metric": "m",
            "value": value,
            "ts": start + minute * (at // 2) + hour * (at // 4),
            "n": at,
            "index": 0,
        }
        commit(tmp_path, "readings", [reading])

    assert rollup.main(["--lake", str(tmp_path)]) is Exit.WELL

    for name in ("rollup_1m", "rollup_1h", "rollup_1d"):
        held = rows(ensure_table(tmp_path, name), SCHEMAS[name].names)
        numbers = [
            column for column in bounded(held.schema) if pa.types.is_floating(held.schema.field(column).type)
        ]
        assert not any(value != value for column in numbers for value in held[column].to_pylist()), "NaN"
        limits = (0.0, 5.0, float("inf"), float("-inf"))
        predicates = [("sum", sign, limit) for sign in SIGNS for limit in limits]
        agree(readers(spark), tmp_path / name, held, predicates)
