"""Tables as other programs leave them are read by every job, and `maintain` writes them as before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.contract import Exit
from hub_jobs.audit import run as audit
from hub_jobs.maintain import run as maintain
from hub_jobs.refine import run as refine
from hub_jobs.replay import run as replay
from hub_jobs.tables import stream_history
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.parquet import is_own
from hub_jobs.tables.scan import files
from tests.harness.foreign import by_duckdb, compact, rewritten, with_types
from tests.spark.lakes import add_bronze, contents
from tests.unit.hub_jobs.rows import OTHER_RUN, RUN, batch_row, direct_row

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

LINE = b'{"metric":"m","value":1,"tags":{"a":"b"}}\n'
TABLES = ("bronze", "readings", "quarantine", "seen")


def views(path: Path) -> None:
    """delta-rs deletes a row, and writes the others of its file with views for text and bytes."""
    if path.name in ("bronze", "readings"):
        DeltaTable(path).delete("source_seq = 999")


def by(write: Callable[[pa.Table, Path], None]) -> Callable[[Path], None]:
    return lambda path: rewritten(path, write)


def together(path: Path) -> None:
    if len(DeltaTable(path).file_uris()) > 1:
        compact(path)


PROGRAMS: dict[str, Callable[[Path], None]] = {
    "delta-rs delete": views,
    "delta-rs optimize": together,
    "DuckDB": by(by_duckdb),
    "large types": by(with_types(pa.large_string(), pa.binary_view())),
    "dictionaries": by(with_types(pa.dictionary(pa.int32(), pa.string()), pa.large_binary())),
}


def ingest(lake: Path, first: int, *more: dict[str, Any]) -> None:
    """Three messages through each of two aggregates, with the same sequences."""
    for stream, run, source in (("TELEMETRY_0", RUN, "abc"), ("TELEMETRY_1", OTHER_RUN, "def")):
        numbers = range(first, first + 2)
        given: dict[str, Any] = {"stream": stream, "source_identity": source, "run": run}
        batches = [batch_row(LINE * 2, n, source_seq=n, **given) for n in numbers]
        device = direct_row(b"21.5", source_seq=100 + first, stream=stream, source_identity=source)
        add_bronze(lake, [*batches, device, *(row for row in more if row["stream"] == stream)])


def job(name: Any, lake: Path, *options: str) -> Exit:
    found: Exit = name.main(["--lake", str(lake), *options])
    return found


def everything(lake: Path) -> list[list[Any]]:
    """The rows of all tables but the one that is deleted."""
    bronze = [row for row in contents(lake, "bronze") if row[11] != 999]
    readings = [row for row in contents(lake, "readings") if row[16] != 999]
    return [bronze, readings, contents(lake, "quarantine")]


def go_on(lake: Path) -> None:
    """Refine, and take in more."""
    assert job(refine, lake) is Exit.WELL
    ingest(lake, 5, batch_row(LINE * 2, 1, source_seq=1))
    assert job(refine, lake) is Exit.WELL


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, spark: object) -> Path:
    """A lake whose newest rows are not refined."""
    lake = tmp_path_factory.mktemp("begun") / "lake"
    ingest(lake, 1, batch_row(LINE + b"bad\n", 50, source_seq=50), direct_row(b"1", source_seq=999))
    assert job(refine, lake) is Exit.WELL
    ingest(lake, 3)
    return lake


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory, begun: Path) -> list[list[list[Any]]]:
    """What is in a lake that no other program writes into, as it begins and once it has gone on."""
    lake = tmp_path_factory.mktemp("untouched") / "lake"
    shutil.copytree(begun, lake)
    at_first = everything(lake)
    go_on(lake)
    return [at_first, everything(lake)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_job_reads_what_a_program_wrote_and_maintain_writes_it_as_before(
    begun: Path,
    untouched: list[list[list[Any]]],
    tmp_path: Path,
    program: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    act, lake = PROGRAMS[program], tmp_path / "lake"
    shutil.copytree(begun, lake)
    for name in TABLES:
        act(lake / name)
    assert everything(lake) == untouched[0]
    known = stream_history.all_of(ensure_table(lake, "bronze"))
    assert [(history.stream, history.done) for history in known] == [("TELEMETRY_0", 8), ("TELEMETRY_1", 6)]

    go_on(lake)
    assert everything(lake) == untouched[1]
    for name in TABLES:
        act(lake / name)
    assert job(audit, lake) in (Exit.WELL, Exit.LOSS)
    assert "0 doubled" in (said := capsys.readouterr().out) or "nothing is doubled" in said
    for stream in ("TELEMETRY_0", "TELEMETRY_1"):
        assert job(replay, lake, "--stream", stream, "--from-seq", "1") is Exit.WELL
    assert everything(lake) == untouched[1]

    for name in TABLES:
        act(lake / name)
    assert job(maintain, lake, "--thin-bronze-after", "0", "--dry-run") is Exit.WELL
    assert job(maintain, lake) is Exit.WELL
    assert everything(lake) == untouched[1]
    for name in TABLES:
        assert all(map(is_own, files(ensure_table(lake, name))["path"].to_pylist())), name
