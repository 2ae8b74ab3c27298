"""The cache of what bronze holds: rolled forward by what came since, and not believed when it is ahead."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.contract import new_run
from hub_jobs.tables import seen, seen_files, stream_history
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.spaces import SeenNumbers, batch_space, source_space
from tests.spark.lakes import add_bronze
from tests.unit.hub_jobs.rows import RUN, batch_row

SPACE = batch_space("edge-1", "normal", RUN)


def held(lake: Path) -> list[tuple[int, int]]:
    """What a run finds, and keeps for the next one."""
    bronze = ensure_table(lake, "bronze")
    upto = stream_history.all_of(bronze)
    found = seen.load(lake, bronze, upto)
    found.save(lake, upto)
    return found.numbers().ranges(SPACE)


def test_the_cache_is_rolled_forward_by_what_came_since_down_to_one_row(tmp_path: Path) -> None:
    for n in (1, 2, 4):
        add_bronze(tmp_path, [batch_row(b"\n", n=n, source_seq=n)])
        at = held(tmp_path)
    assert at == [(1, 2), (4, 4)]
    assert held(tmp_path) == at


def test_a_cache_that_is_ahead_of_bronze_is_made_again(tmp_path: Path) -> None:
    """Bronze was put back: what the cache says of the rest would call new messages repeats."""
    lake, before = tmp_path / "lake", tmp_path / "before"
    for where in (lake, before):
        add_bronze(where, [batch_row(b"\n", n=1, source_seq=1)])
    add_bronze(lake, [batch_row(b"\n", n=2, source_seq=2)])
    assert held(lake) == [(1, 2)]
    (lake / "bronze").rename(tmp_path / "lost")
    (before / "bronze").rename(lake / "bronze")
    assert held(lake) == [(1, 1)]


def test_what_a_damaged_file_held_is_read_from_bronze_also_in_a_later_pass(tmp_path: Path) -> None:
    add_bronze(tmp_path, [batch_row(b"\n", n=1, source_seq=1)])
    held(tmp_path)
    bronze = ensure_table(tmp_path, "bronze")
    found = seen.load(tmp_path, bronze, stream_history.all_of(bronze))
    add_bronze(tmp_path, [batch_row(b"\n", n=2, source_seq=2)])
    bronze.newest()
    for path in (tmp_path / "seen").glob("*.parquet"):
        path.write_bytes(b"")
    assert found.numbers().ranges(SPACE) == [(1, 1)]


@pytest.mark.parametrize("faster", [1, 2])
def test_a_slow_run_takes_nothing_of_another_stream_from_what_faster_ones_have_kept(
    tmp_path: Path, faster: int
) -> None:
    """Rows that go while the offset stays would never come back, and a repeat of them would be new."""
    add_bronze(tmp_path, [batch_row(b"\n", n=1, source_seq=1)])
    if faster > 1:
        held(tmp_path)
        add_bronze(tmp_path, [batch_row(b"\n", n=2, source_seq=2)])
    bronze = ensure_table(tmp_path, "bronze")
    upto = stream_history.all_of(bronze)
    slow = seen.load(tmp_path, bronze, upto)
    for n in range(faster + 1, 2 * faster + 1):
        add_bronze(tmp_path, [batch_row(b"\n", n=n, source_seq=n, stream="TELEMETRY_1")])
        held(tmp_path)

    slow.save(tmp_path, upto)

    assert held(tmp_path) == [(1, 2 * faster)]


def test_each_run_adds_a_file_until_all_become_one_and_nothing_is_forgotten(tmp_path: Path) -> None:
    counts = []
    for n in range(1, 2 * seen._MOST_FILES + 2, 2):
        add_bronze(tmp_path, [batch_row(b"\n", n=n, source_seq=n)])
        at = held(tmp_path)
        counts.append(len(ensure_table(tmp_path, "seen").delta.file_uris()))
    assert at == [(n, n) for n in range(1, 2 * seen._MOST_FILES + 2, 2)]
    add_bronze(tmp_path, [batch_row(b"\n", n=2, source_seq=2)])
    assert held(tmp_path)[0] == (1, 3)
    assert counts == list(range(1, seen._MOST_FILES + 2))
    assert len(ensure_table(tmp_path, "seen").delta.file_uris()) == 1


def a_pass(lake: Path, runs: Sequence[str], n: int) -> None:
    """Batch `n` of each of these runs comes to bronze, and a refine keeps that."""
    rows = [batch_row(b"\n", n=n, run=run, source_seq=n, source_identity=run[-8:]) for run in runs]
    add_bronze(lake, rows)
    held(lake)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of `seen` holds few rows, and few are loose."""
    monkeypatch.setattr(seen_files, "FILE_ROWS", 4)
    monkeypatch.setattr(seen, "_MOST_FILES", 2)


@pytest.mark.usefixtures("small_files")
def test_whatever_files_it_lies_in_what_was_seen_of_every_run_is_found(tmp_path: Path) -> None:
    chance, truth = random.Random(5), dict[str, set[int]]()
    runs = [new_run(day * 10**15) for day in range(14)]
    for n in range(1, 15):
        mine = chance.sample(runs[: n + 1], min(n, 4))
        a_pass(tmp_path, mine, n)
        for run in mine:
            truth.setdefault(run, set()).add(n)
        table = ensure_table(tmp_path, "seen")
        chosen = chance.sample(runs, 5)
        spaces = [batch_space("edge-1", "normal", run) for run in chosen]
        found = seen.SeenTable(table).ranges(spaces)
        codes = np.repeat(np.arange(5), 20)
        contained = found.contains(codes, np.tile(np.arange(1, 21), 5)).reshape(5, 20)
        for run, known in zip(chosen, contained, strict=True):
            assert {*(np.flatnonzero(known) + 1).tolist()} == truth.get(run, set())
    everything = seen.read(ensure_table(tmp_path, "seen"))
    assert {run: {*numbers(everything, run)} for run in truth} == truth


def numbers(known: SeenNumbers, run: str) -> Iterator[int]:
    for first, last in known.ranges(batch_space("edge-1", "normal", run)):
        yield from range(first, last + 1)


@pytest.mark.usefixtures("small_files")
def test_a_pass_neither_reads_nor_writes_the_files_of_runs_that_ended(tmp_path: Path) -> None:
    old, young = ([new_run((day + number) * 10**15) for number in range(8)] for day in (0, 100))
    a_pass(tmp_path, old, 1)
    ended = [file for file in seen_files.in_order(ensure_table(tmp_path, "seen")) if file.first]
    a_pass(tmp_path, young, 1)
    for n in range(2, 12):
        a_pass(tmp_path, young, n)
    table = ensure_table(tmp_path, "seen")
    assert {file.path for file in ended[:-1]} <= {file.path for file in seen_files.in_order(table)}
    wanted = pa.array([batch_space("edge-1", "normal", run) for run in young])
    assert {file.path for file in ended[:-1]} <= seen_files.about(table, wanted).aside
    assert len(seen_files.loose(table)) <= seen._MOST_FILES


@pytest.mark.usefixtures("small_files")
def test_a_file_that_another_program_wrote_of_loose_and_ordered_rows_is_still_read(tmp_path: Path) -> None:
    first, later = new_run(10**15), new_run(2 * 10**15)
    a_pass(tmp_path, [first], 1)
    a_pass(tmp_path, [later], 2)
    DeltaTable(str(tmp_path / "seen")).optimize.compact()
    known = seen.SeenTable(ensure_table(tmp_path, "seen"))
    for run in (first, later):
        assert known.ranges([batch_space("edge-1", "normal", run)]).last.size == 1
        assert known.ranges([source_space("TEL_edge-1_normal", run[-8:])]).last.size == 1
