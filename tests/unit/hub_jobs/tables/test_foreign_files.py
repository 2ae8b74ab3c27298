"""What other programs do to a table and its files, without Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from hypothesis import given as given_
from hypothesis import strategies as st

from agent.contract import Exit
from hub_jobs.maintain import run as maintain
from hub_jobs.tables import stream_history
from hub_jobs.tables.changes import changed_files
from hub_jobs.tables.compaction import without
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.parquet import _OWN_NAME, Statistics, are_own, is_own
from hub_jobs.tables.parquet_reading import usual
from hub_jobs.tables.scan import file_paths, files, latest, rows
from hub_jobs.tables.schemas import TIME, bounded
from hub_jobs.tables.stream_history import FileHistory, file_histories, last_file_histories
from tests.harness.foreign import by_duckdb, compact, rewritten, with_types
from tests.spark.lakes import add_bronze, commit, contents
from tests.unit.hub_jobs.rows import ARRIVED_US, batch_row

LINE = b'{"ts":1,"device":"d","metric":"m","value":1}\n'
DAY = 86_400_000_000


def ingest(lake: Path, *numbers: int, stream: str = "TELEMETRY_0", arrived: int = ARRIVED_US) -> None:
    given = [batch_row(LINE, n, source_seq=n, stream=stream, arrived=arrived) for n in numbers]
    add_bronze(lake, given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pa.string_view(), pa.string()),
        (pa.large_string(), pa.string()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.binary_view(), pa.binary()),
        (pa.large_binary(), pa.binary()),
        (pa.large_list(pa.string_view()), pa.list_(pa.string())),
        (pa.map_(pa.string_view(), pa.large_string()), pa.map_(pa.string(), pa.string())),
        (pa.timestamp("ms"), TIME),
        (pa.timestamp("ns", "UTC"), TIME),
        (pa.int32(), pa.int32()),
    ],
)
def test_columns_get_the_types_that_the_jobs_know(given: pa.DataType, expected: pa.DataType) -> None:
    found = usual(pa.table({"a": pa.nulls(3, given)}))
    assert found.schema.types == [expected]
    assert usual(found) is found


def test_a_file_of_several_histories_is_told_by_its_rows_and_taken_apart_by_maintain(tmp_path: Path) -> None:
    ingest(tmp_path, 1, 2, 3)
    ingest(tmp_path, 1, 2, stream="TELEMETRY_1", arrived=ARRIVED_US + 5)
    before = contents(tmp_path, "bronze")
    known = stream_history.all_of(ensure_table(tmp_path, "bronze"))
    compact(tmp_path / "bronze")

    found = file_histories(ensure_table(tmp_path, "bronze"))

    assert sorted((part.history[0], part.first, part.last, part.rows) for part in found) == [
        ("TELEMETRY_0", 1, 3, 3),
        ("TELEMETRY_1", 1, 2, 2),
    ]
    assert stream_history.all_of(ensure_table(tmp_path, "bronze")) == known
    assert maintain.main(["--lake", str(tmp_path)]) is Exit.WELL
    assert len(files(ensure_table(tmp_path, "bronze"))) == 2
    assert contents(tmp_path, "bronze") == before


def test_where_each_history_ends_is_found_in_few_files_whichever_program_wrote_them(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        ingest(tmp_path, number, stream="TELEMETRY_0")
        ingest(tmp_path, number, stream="TELEMETRY_1", arrived=ARRIVED_US - 5)
    few = ends(last_file_histories(ensure_table(tmp_path, "bronze")))
    assert few == ends(file_histories(ensure_table(tmp_path, "bronze")))
    assert len(last_file_histories(ensure_table(tmp_path, "bronze"))) == 2
    compact(tmp_path / "bronze")
    ingest(tmp_path, 4, stream="TELEMETRY_1")
    few = ends(last_file_histories(ensure_table(tmp_path, "bronze")))
    assert few == ends(file_histories(ensure_table(tmp_path, "bronze")))
    assert few["TELEMETRY_1"].last == few["TELEMETRY_0"].last + 1


def ends(found: list[FileHistory]) -> dict[str, FileHistory]:
    ordered = sorted(found, key=lambda file: file.last)
    return {file.history[0]: file for file in ordered}


@given_(st.from_regex(_OWN_NAME) | st.builds("{}{}".format, st.from_regex(_OWN_NAME), st.text(max_size=1)))
def test_of_many_files_those_of_the_jobs_are_known_as_each_is(name: str) -> None:
    assert are_own(pa.chunked_array([[name, f"/{name}"]])).to_pylist() == [is_own(name), is_own(f"/{name}")]


@pytest.mark.parametrize("by", ["DuckDB", "views"])
def test_a_file_without_bounds_is_read_and_gets_them_from_maintain(tmp_path: Path, by: str) -> None:
    ingest(tmp_path, 1, 2, 3)
    before = contents(tmp_path, "bronze")
    write = by_duckdb if by == "DuckDB" else with_types(pa.string_view(), pa.binary_view())
    rewritten(tmp_path / "bronze", write)

    bronze = ensure_table(tmp_path, "bronze")
    ids = contents(tmp_path, "bronze", "message_id")
    assert contents(tmp_path, "bronze") == before
    assert [
        (file_history.first, file_history.last, file_history.rows) for file_history in file_histories(bronze)
    ] == [(1, 3, 3)]
    assert latest(bronze, "arrived") == datetime.fromtimestamp(ARRIVED_US / 1e6, UTC)
    assert rows(bronze, ["seq"], [("run", "=", "none")]).num_rows == 0
    assert rows(bronze, ["seq"], [("seq", ">", 1), ("stream", "in", ["TELEMETRY_0"])]).num_rows == 2
    gone = without(tmp_path, bronze, lambda found: pc.equal(found["message_id"], ids[1]), ["message_id"])
    assert (gone.rows, len(gone.kept)) == (1, 1)

    assert maintain.main(["--lake", str(tmp_path)]) is Exit.WELL
    assert files(ensure_table(tmp_path, "bronze"))["min.seq"].to_pylist() == [1]
    assert contents(tmp_path, "bronze") == before
    assert changed_files(ensure_table(tmp_path, "bronze"), bronze.delta.version()) == []


def test_columns_that_another_program_added_stay_when_files_are_written_together(tmp_path: Path) -> None:
    for n in range(1, 10):
        ingest(tmp_path, n)
    table = DeltaTable(tmp_path / "bronze")
    table.alter.add_columns([Field("site", PrimitiveType("string"))])
    DeltaTable(tmp_path / "bronze").update(updates={"site": "'north'"}, predicate="n = 3")
    ingest(tmp_path, 10)

    assert maintain.main(["--lake", str(tmp_path)]) is Exit.WELL

    found = DeltaTable(tmp_path / "bronze").to_pyarrow_table(columns=["n", "site"]).sort_by("n")
    assert found["n"].to_pylist() == [*range(1, 11)]
    assert found["site"].to_pylist() == [None, None, "north", *[None] * 7]


def test_bounds_of_times_that_spark_shortened_rule_no_row_out(tmp_path: Path) -> None:
    moment = ARRIVED_US + 999
    ingest(tmp_path, 1, arrived=moment)
    log = tmp_path / "bronze" / "_delta_log" / f"{1:020d}.json"
    exact = f"{datetime.fromtimestamp(moment / 1e6, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
    assert exact in log.read_text()
    log.write_text(log.read_text().replace(exact, f"{exact[:-4]}Z"))

    since = datetime.fromtimestamp(moment / 1e6, UTC)
    assert len(file_paths(ensure_table(tmp_path, "bronze"), [("arrived", ">=", since)])) == 1


def test_what_was_too_young_is_thinned_later(tmp_path: Path) -> None:
    now = int(datetime.now(UTC).timestamp() * 1e6)
    for n, days_ago in enumerate((9, 4, 9, 2, 1, 0), 1):
        ingest(tmp_path, n, arrived=now - days_ago * DAY)
    (history,) = stream_history.all_of(ensure_table(tmp_path, "bronze"))
    ensure_table(tmp_path, "readings").commit([], {history.refined: 3})

    def thinned(days: str) -> tuple[list[int], int | None]:
        assert maintain.main(["--lake", str(tmp_path), "--thin-bronze-after", days]) is Exit.WELL
        without_payload = [
            n for n, payload in contents(tmp_path, "bronze", "n", "payload") if payload is None
        ]
        return sorted(without_payload), ensure_table(tmp_path, "bronze").offset(history.thinned)

    assert thinned("5") == ([1], 1)
    assert thinned("3") == ([1, 2, 3], 3)


def bounds_of(**columns: pa.Array) -> tuple[Any, Any, Any]:
    """What the log says of rows: the minima, maxima and numbers of nulls."""
    rows = pa.table(columns)
    found = Statistics(bounded(rows.schema))
    for at in range(rows.num_rows):
        found.add(rows.slice(at, 1))
    said = found.encode()
    assert "\\u" not in said, "readers take some pairs of surrogates for another character"
    told = json.loads(said)
    return told["minValues"], told["maxValues"], told["nullCount"]


def test_bounds_of_long_texts_are_short_and_never_too_narrow() -> None:
    least, most, _ = bounds_of(
        text=["a" * 64 + "b", "b", "a" * 65, "b" * 70], end=["𠀀", None, "𠀀", "\U0010ffff"]
    )
    assert least == {"text": "a" * 64, "end": "𠀀"}
    assert most["text"] > "b" * 70
    assert len(most["text"]) == 65
    assert most["end"] == "\U0010ffff"


def test_bounds_of_numbers_hold_both_zeros_infinity_and_nan() -> None:
    inf, nan = float("inf"), float("nan")
    least, most, nulls = bounds_of(
        zero=[-0.0, -5.0], naught=[0.0, 5.0], wide=[inf, -inf], none=[nan, 1.0], all=[nan, nan]
    )
    assert str(most["zero"]) == "0.0"
    assert str(least["naught"]) == "-0.0"
    assert (least["wide"], most["wide"]) == ("-Infinity", "Infinity")
    assert (least["none"], most["none"]) == (1.0, "NaN")
    assert (least["all"], most["all"]) == ("NaN", "NaN")
    assert set(nulls.values()) == {0}


def test_bounds_are_of_bools_too_and_of_no_column_that_is_all_null() -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int32()), ["unused"])
    least, most, nulls = bounds_of(flag=[True, False], coded=coded, n=pa.nulls(2, pa.int64()))
    assert (least, most) == ({"flag": False}, {"flag": True})
    assert nulls == {"flag": 0, "coded": 2, "n": 2}


def test_the_columns_of_other_programs_have_bounds_after_compaction(tmp_path: Path) -> None:
    for n in range(1, 10):
        ingest(tmp_path, n)
    DeltaTable(tmp_path / "bronze").alter.add_columns([Field("site", PrimitiveType("string"))])
    DeltaTable(tmp_path / "bronze").update(updates={"site": "'north'"}, predicate="n = 3")

    assert maintain.main(["--lake", str(tmp_path)]) is Exit.WELL

    dataset = DeltaTable(tmp_path / "bronze").to_pyarrow_dataset()
    assert dataset.to_table(filter=pc.field("site") == "north").num_rows == 1


def test_bounds_that_delta_rs_cut_to_milliseconds_are_whole_after_maintenance(tmp_path: Path) -> None:
    moment = datetime.fromtimestamp((ARRIVED_US + 999) / 1e6, UTC)
    for _ in range(2):
        commit(tmp_path, "readings", [{"ts": moment}])
    compact(tmp_path / "readings")

    assert maintain.main(["--lake", str(tmp_path)]) is Exit.WELL

    assert latest(ensure_table(tmp_path, "readings"), "ts") == moment
