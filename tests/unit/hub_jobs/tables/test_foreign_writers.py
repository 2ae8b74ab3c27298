"""Another program rewrites a table between the moment at which a job plans a commit and the commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.contract import Exit
from hub_jobs.maintain import run as maintain
from hub_jobs.tables import seen, stream_history
from hub_jobs.tables.compaction import rewrite
from hub_jobs.tables.delta import ConflictError, ensure_table
from hub_jobs.tables.scan import files
from tests.harness.foreign import Act, before_commit, compact, delete, widen
from tests.spark.lakes import add_bronze, contents
from tests.spark.readers import duckdb_with_delta
from tests.unit.hub_jobs.rows import ARRIVED_US, batch_row

LINE = b'{"ts":1,"device":"d","metric":"m","value":1}\n'
FILES = 12


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with twelve messages, each in a file of its own, and all of them refined."""
    for n in range(1, FILES + 1):
        ingest(tmp_path, n)
    (history,) = stream_history.all_of(ensure_table(tmp_path, "bronze"))
    ensure_table(tmp_path, "readings").commit([], {history.refined: FILES})
    return tmp_path


def ingest(lake: Path, n: int) -> None:
    add_bronze(lake, [batch_row(LINE, n, source_seq=n, arrived=ARRIVED_US)])


def numbers(lake: Path) -> list[int]:
    return sorted(contents(lake, "bronze", "n"))


@pytest.mark.parametrize(
    ("act", "left"),
    [(compact, range(1, 13)), (delete("n = 3"), [1, 2, *range(4, 13)]), (widen, range(1, 13))],
    ids=["compact", "delete", "widen"],
)
@pytest.mark.parametrize("options", [[], ["--thin-bronze-after", "0"]], ids=["compaction", "thinning"])
def test_a_rewrite_that_another_program_overtakes_is_a_conflict_and_doubles_nothing(
    lake: Path, monkeypatch: pytest.MonkeyPatch, act: Act, left: list[int], options: list[str]
) -> None:
    happened = before_commit(monkeypatch, "bronze", act)

    assert maintain.main(["--lake", str(lake), *options]) is Exit.CONFLICT

    assert happened
    assert numbers(lake) == [*left]
    named = files(ensure_table(lake, "bronze"))["path"].to_pylist()
    assert all((lake / "bronze" / path).exists() for path in named)
    assert maintain.main(["--lake", str(lake), *options]) is Exit.WELL
    assert numbers(lake) == [*left]


def test_a_rewrite_that_was_planned_before_files_went_is_a_conflict(lake: Path) -> None:
    paths = files(ensure_table(lake, "bronze"))["path"].to_pylist()
    written = rewrite(lake, ensure_table(lake, "bronze"), paths)
    compact(lake / "bronze")

    with pytest.raises(ConflictError):
        ensure_table(lake, "bronze").rewrite(written, paths)

    assert numbers(lake) == [*range(1, 13)]


def test_a_rewrite_of_some_files_and_another_program_at_others_both_count(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bronze = ensure_table(lake, "bronze")
    found = files(bronze).select(["path", "min.n"]).to_pylist()
    some = [file["path"] for file in found if file["min.n"] > 6]
    written = rewrite(lake, bronze, some)
    happened = before_commit(monkeypatch, "bronze", delete("n = 3"))

    bronze.rewrite(written, some)

    assert happened
    assert numbers(lake) == [1, 2, *range(4, 13)]
    assert len(files(ensure_table(lake, "bronze"))) == 6


@pytest.mark.parametrize("act", [compact, delete("n = 3")], ids=["compact", "delete"])
def test_rows_that_are_added_while_another_program_rewrites_are_added_once(
    lake: Path, monkeypatch: pytest.MonkeyPatch, act: Act
) -> None:
    before = numbers(lake)
    happened = before_commit(monkeypatch, "bronze", act)

    ingest(lake, 13)

    assert happened
    assert numbers(lake)[-1] == 13
    assert set(before) - set(numbers(lake)) == (set() if act is compact else {3})
    assert len(numbers(lake)) == len(set(numbers(lake)))
    assert stream_history.all_of(ensure_table(lake, "bronze"))[0].done == 13


def test_a_cache_that_another_program_rewrites_is_replaced_as_a_whole(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bronze = ensure_table(lake, "bronze")
    known = stream_history.all_of(bronze)
    held = seen.load(lake, bronze, known)
    held.save(lake, known)
    ingest(lake, 13)
    bronze = ensure_table(lake, "bronze")
    known = stream_history.all_of(bronze)
    held = seen.load(lake, bronze, known)
    happened = before_commit(monkeypatch, "seen", delete("first = 1"))

    held.save(lake, known)

    assert happened
    assert seen.load(lake, bronze, known).numbers().spaces == held.numbers().spaces
    assert len(contents(lake, "seen")) == sum(map(len, held.numbers().spaces.values()))


def test_duckdb_reads_what_is_committed_while_maintain_writes_and_what_it_opened_stays_readable(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lake / "bronze"
    before: list[list[int]] = []

    def read(at: Path) -> None:
        assert len(list(at.glob("*.parquet"))) > FILES, "the files of the commit are there, the commit is not"
        before.append(by_duckdb(f"delta_scan('{at}')"))

    conn = duckdb_with_delta()
    conn.execute(f"ATTACH '{path}' AS opened (TYPE delta, PIN_SNAPSHOT)")
    try:
        assert by_duckdb("opened") == [*range(1, FILES + 1)]
        happened = before_commit(monkeypatch, "bronze", read)
        assert maintain.main(["--lake", str(lake)]) is Exit.WELL
        ingest(lake, FILES + 1)

        assert happened
        assert before == [[*range(1, FILES + 1)]]
        assert by_duckdb("opened") == [*range(1, FILES + 1)]
        assert by_duckdb(f"delta_scan('{path}')") == [*range(1, FILES + 2)]
    finally:
        conn.execute("DETACH opened")


def by_duckdb(table: str) -> list[int]:
    return [n for (n,) in duckdb_with_delta().execute(f"SELECT n FROM {table} ORDER BY n").fetchall()]
