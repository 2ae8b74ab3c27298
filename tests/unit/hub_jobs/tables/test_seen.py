"""The cache of what bronze holds: rolled forward by what came since, and not believed when it is ahead."""

from __future__ import annotations

from pathlib import Path

from hub_jobs.tables import seen, stream_history
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.seen import batch_space
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


def test_each_run_adds_a_file_until_all_become_one_and_nothing_is_forgotten(tmp_path: Path) -> None:
    counts = []
    for n in range(1, 2 * seen._MOST_FILES, 2):
        add_bronze(tmp_path, [batch_row(b"\n", n=n, source_seq=n)])
        at = held(tmp_path)
        counts.append(len(ensure_table(tmp_path, "seen").delta.file_uris()))
    assert at == [(n, n) for n in range(1, 2 * seen._MOST_FILES, 2)]
    add_bronze(tmp_path, [batch_row(b"\n", n=2, source_seq=2)])
    assert held(tmp_path)[0] == (1, 3)
    assert counts == list(range(1, seen._MOST_FILES + 1))
    assert len(ensure_table(tmp_path, "seen").delta.file_uris()) == 1
