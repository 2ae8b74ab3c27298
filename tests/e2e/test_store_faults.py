"""A lake in a store that loses the answers to what it has done: no commit is taken for another's, and no file
that a commit names is deleted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from agent.contract import Exit
from hub_jobs.audit import report
from hub_jobs.audit.account import Arrived
from hub_jobs.audit.accounts import of_direct
from hub_jobs.maintain import run as maintain
from hub_jobs.tables import delta, seen, stream_history
from hub_jobs.tables.delta import ConflictError, TableError, ensure_table, open_table
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.places import ObjectPath, Place, delta_options
from hub_jobs.tables.schemas import BRONZE
from tests.harness.object_store import imitation, names
from tests.harness.store_faults import COMMITS, DATA, Fault, StoreFaults, store_faults
from tests.spark.lakes import add_bronze, contents
from tests.unit.hub_jobs.rows import batch_row

LINE = b'{"ts":1,"device":"d","metric":"m","value":1}\n'
PATIENCE = {"max_retries": "1", "timeout": "1s", "backoff_config.init_backoff": "10ms"}
LOST = pytest.mark.parametrize(("fault", "times"), [(Fault.FAILED, 1), (Fault.CUT, 2)])


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreFaults]:
    """A store that does what it is told to do wrong."""
    with (
        imitation(tmp_path_factory.mktemp("store")) as environment,
        store_faults(environment["AWS_ENDPOINT_URL"]) as faults,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in {**environment, "AWS_ENDPOINT_URL": faults.endpoint}.items():
            patch.setenv(name, value)
        yield faults


@pytest.fixture
def lake(faults: StoreFaults, tmp_path: Path) -> Iterator[ObjectPath]:
    """A lake of this test's own with eight messages in as many files."""
    where = ObjectPath(f"s3://fleet/{tmp_path.name}")
    add_bronze(where, [batch_row(LINE, n, source_seq=n) for n in range(1, 9)], files=8)
    faults.seen()
    yield where
    faults.release()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs gives a commit up after two seconds instead of minutes."""

    def options(at: Place) -> dict[str, str]:
        return {**(delta_options(at) or {}), **PATIENCE}

    monkeypatch.setattr(delta, "delta_options", options)


def ingest(lake: Place, n: int) -> None:
    add_bronze(lake, [batch_row(LINE, n, source_seq=n)])


def maintained(lake: Place) -> Exit:
    return maintain.main(["--lake", str(lake)])


def upto(count: int) -> list[int]:
    return sorted(range(1, count + 1), key=str)


@LOST
def test_a_commit_that_was_applied_and_not_confirmed_is_known_as_ones_own(
    lake: ObjectPath, faults: StoreFaults, fault: Fault, times: int
) -> None:
    def strike() -> None:
        faults.strike(COMMITS, fault, times)

    def struck() -> int:
        seen = faults.seen()
        assert len(seen.struck) == times
        return sum(name.endswith(".json") for name in seen.applied)

    strike()
    ingest(lake, 9)
    assert struck() == 1
    assert contents(lake, "bronze", "n") == upto(9)

    strike()
    assert maintained(lake) is Exit.WELL
    assert struck() == 1
    assert contents(lake, "bronze", "n") == upto(9)
    assert len(ensure_table(lake, "bronze").delta.file_uris()) == 1

    strike()
    ensure_table(lake, "bronze").commit([], {"offset": 7})
    assert struck() == 1
    bronze = ensure_table(lake, "bronze")
    assert bronze.offset("offset") == 7

    known = stream_history.all_of(bronze)
    held = seen.load(lake, bronze, known)
    for _ in range(2):
        ensure_table(lake, "seen")
        strike()
        held.save(lake, known)
        struck()
        assert seen.load(lake, bronze, known).numbers().spaces == held.numbers().spaces

    for count in (1, 2):
        ensure_table(lake, "audit")
        ensure_table(lake, "audit_hours")
        strike()
        report.store(
            lake,
            report.AuditReport(datetime.now(UTC), [of_direct("edge-1", "normal", Arrived(), ())], [], []),
        )
        struck()
        assert len(contents(lake, "audit")) == count


@LOST
def test_a_table_that_was_made_and_not_confirmed_is_there(
    lake: ObjectPath, faults: StoreFaults, fault: Fault, times: int
) -> None:
    faults.strike(COMMITS, fault, times)
    assert ensure_table(lake, "readings").delta.version() == 0
    assert len(faults.seen().struck) == times


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", [Fault.LATE, Fault.SILENT])
def test_while_a_commit_may_still_arrive_no_file_of_it_is_deleted(
    lake: ObjectPath, faults: StoreFaults, fault: Fault, capsys: pytest.CaptureFixture[str]
) -> None:
    written = len(names(lake, "bronze"))
    faults.strike(COMMITS, fault, 9)

    if fault is Fault.LATE:
        with pytest.raises(TableError, match="the log does not show"):
            ingest(lake, 9)
    else:
        ingest(lake, 9)

    assert len(names(lake, "bronze")) == written + 1
    faults.release()
    assert contents(lake, "bronze", "n") == upto(9)

    faults.strike(COMMITS, fault, 9)
    assert maintained(lake) is (Exit.FAILED if fault is Fault.LATE else Exit.WELL)
    faults.release()
    assert contents(lake, "bronze", "n") == upto(9)
    assert maintained(lake) is Exit.WELL
    said = capsys.readouterr().err
    assert said.count("run the job again") == (fault is Fault.LATE)


@pytest.mark.usefixtures("impatient")
def test_of_a_late_commit_and_the_run_after_it_one_is_in_the_table(
    lake: ObjectPath, faults: StoreFaults
) -> None:
    faults.strike(COMMITS, Fault.LATE, 9)
    with pytest.raises(TableError):
        ingest(lake, 9)
    bronze = ensure_table(lake, "bronze")
    assert stream_history.all_of(bronze)[0].done == 8
    with PartWriter(lake, "bronze") as writer:
        writer.write(pa.Table.from_pylist([batch_row(LINE, 9, seq=9, source_seq=9)], BRONZE))

    faults.release()

    with pytest.raises(ConflictError):
        bronze.commit(writer.files, {stream_history.all_of(bronze)[0].ingested: 9})
    assert contents(lake, "bronze", "n") == upto(9)
    assert len(names(lake, "bronze")) == 9, "of the loser no file is left"


@pytest.mark.parametrize("fault", [Fault.CUT])
def test_a_file_that_was_not_confirmed_is_written_again_or_named_by_no_commit(
    lake: ObjectPath, faults: StoreFaults, fault: Fault
) -> None:
    faults.strike(DATA, fault)
    ingest(lake, 9)
    assert contents(lake, "bronze", "n") == upto(9)

    faults.strike(DATA, fault, 99)
    with pytest.raises(OSError, match=r"[Pp]art"):
        ingest(lake, 10)
    assert maintained(lake) is Exit.FAILED
    faults.release()

    assert contents(lake, "bronze", "n") == upto(9)
    table = open_table(lake, "bronze")
    assert table is not None
    assert table.delta.version() == 2
    ingest(lake, 10)
    assert maintained(lake) is Exit.WELL
    assert contents(lake, "bronze", "n") == upto(10)
