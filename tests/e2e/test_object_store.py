"""A lake in an object store: what a directory promises, without a rename and without a lock. The server
only imitates S3; a whole one is in tests/faults/slow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest

from agent.contract import Exit
from hub_jobs.maintain import run as maintain
from hub_jobs.tables.changes import changed_files
from hub_jobs.tables.delta import ConflictError, Table, TableError, ensure_table, open_table
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.places import ObjectPath
from hub_jobs.tables.schemas import BRONZE
from tests.harness.object_store import SECRET, imitation, names
from tests.harness.store_faults import store_faults
from tests.spark.lakes import add_bronze, contents
from tests.unit.hub_jobs.rows import batch_row

LINE = b'{"ts":1,"device":"d","metric":"m","value":1}\n'
DRIVERS = 6


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of who uses it."""
    with imitation(tmp_path_factory.mktemp("store")) as environment:
        yield environment


@pytest.fixture
def lake(store: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ObjectPath:
    """An empty lake of this test's own."""
    for name, value in store.items():
        monkeypatch.setenv(name, value)
    return ObjectPath(f"s3://fleet/{tmp_path.name}")


def test_rows_are_committed_written_together_and_vacuumed_as_in_a_directory(lake: ObjectPath) -> None:
    assert open_table(lake, "bronze") is None
    for number in range(9):
        add_bronze(lake, [batch_row(LINE, n, source_seq=n) for n in (2 * number + 1, 2 * number + 2)])
    before = contents(lake, "bronze")
    version = ensure_table(lake, "bronze").delta.version()

    assert len(before) == 18
    assert maintain.main(["--lake", str(lake)]) is Exit.WELL

    bronze = ensure_table(lake, "bronze")
    assert contents(lake, "bronze") == before
    assert len(bronze.delta.file_uris()) == 1
    assert changed_files(bronze, version) == [], "they were only written together"
    added = changed_files(bronze, version - 1)
    assert added is not None
    assert len(added) == 1
    assert len(names(lake, "bronze")) == 10
    assert len(bronze.vacuum(0, dry_run=False)) == 9
    assert contents(lake, "bronze") == before
    assert changed_files(ensure_table(lake, "bronze"), version - 1) is None, "its file is gone"


def test_of_drivers_that_commit_at_the_same_moment_one_wins_and_the_others_leave_no_file(
    lake: ObjectPath,
) -> None:
    tables = [ensure_table(lake, "bronze") for _ in range(DRIVERS)]
    together = Barrier(DRIVERS)

    def drive(table: Table) -> bool:
        with PartWriter(lake, "bronze") as writer:
            writer.write(pa.Table.from_pylist([batch_row(LINE)], BRONZE))
        together.wait(30)
        try:
            table.commit(writer.files, {"one": 1})
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(DRIVERS) as drivers:
        assert sorted(drivers.map(drive, tables)) == [False] * (DRIVERS - 1) + [True]

    assert len(contents(lake, "bronze")) == 1
    assert len(names(lake, "bronze")) == 1


def test_a_store_that_lets_two_writers_win_is_refused_at_each_start(
    lake: ObjectPath, store: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_faults(store["AWS_ENDPOINT_URL"]) as faults:
        faults.ignore("If-None-Match")
        monkeypatch.setenv("AWS_ENDPOINT_URL", faults.endpoint)
        for _ in range(2):
            with pytest.raises(TableError, match=r"lets two writers win: it ignores If-None-Match"):
                ensure_table(lake, "bronze")

    monkeypatch.setenv("AWS_ENDPOINT_URL", store["AWS_ENDPOINT_URL"])
    for name in ("bronze", "readings"):
        assert ensure_table(lake, name).delta.version() == 0


def test_a_writer_that_fails_leaves_no_file(lake: ObjectPath) -> None:
    rows = pa.Table.from_pylist([batch_row(LINE)], BRONZE)

    def write() -> None:
        with PartWriter(lake, "bronze", 1) as writer:
            writer.write(rows)
            assert len(names(lake, "bronze")) == 1
            writer.write(pa.table({"seq": pa.array([None], pa.month_day_nano_interval())}))

    with pytest.raises(pa.ArrowNotImplementedError):
        write()

    assert names(lake, "bronze") == []


def test_a_store_that_refuses_is_one_sentence_without_the_secret(
    lake: ObjectPath, store: dict[str, str], tmp_path: Path
) -> None:
    given = {**os.environ, **store, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}

    done = subprocess.run(
        [sys.executable, "-m", "hub_jobs.maintain", "--lake", str(lake)],
        capture_output=True,
        text=True,
        check=False,
        env=given,
    )

    assert done.returncode == Exit.FAILED
    assert done.stderr.startswith(f"maintain: table {lake}/bronze can't be read: ")
    assert done.stderr.count("\n") == 1
    assert SECRET not in done.stderr
