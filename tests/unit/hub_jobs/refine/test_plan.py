"""How the rows of a pass are shared out."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hub_jobs.refine.dedup import DedupDecision
from hub_jobs.refine.plan import Increment, Pass, parts
from hub_jobs.tables.stream_history import FileHistory, StreamHistory

HISTORY = StreamHistory("TELEMETRY_0", "today")
MIB = 2**20


def bronze_file(path: str, first: int, rows: int, size: int) -> FileHistory:
    """A file that holds these sequences."""
    return FileHistory(HISTORY.history, path, first, first + rows - 1, datetime.now(UTC), rows, size)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 3), st.integers(1, 40 * MIB)), min_size=1),
    st.integers(0, 20),
    st.integers(1, 16),
    st.sets(st.integers(1, 2_000)),
)
def test_every_row_of_a_pass_is_of_one_task_that_reads_its_file_and_knows_whether_it_is_a_repeat(
    shapes: list[tuple[int, int, int]], skipped: int, cores: int, repeated: set[int]
) -> None:
    files, at = [], 1
    for number, (rows, gap, size) in enumerate(shapes):
        files.append(bronze_file(f"{number}", at, rows, size))
        at += rows + gap
    after, to = min(skipped, files[0].last - 1), files[-1].last
    increment = Increment(HISTORY, after, to, files)
    decision = DedupDecision({HISTORY.history: repeated})

    found = parts(Path("lake"), Pass([increment], [], False), decision, {}, {}, cores)

    covered = sorted((part.after, part.to) for part in found)
    assert [first for first, _ in covered] == [after, *(last for _, last in covered[:-1])]
    assert covered[-1][1] == to
    for part in found:
        mine = {file.path for file in files if file.last > part.after and file.first <= part.to}
        assert {path.name for path in part.paths} == mine
        assert part.repeated == {seq for seq in repeated if part.after < seq <= part.to}
    total = sum(file.size for file in files)
    assert len(found) <= max(cores, -(-total // (64 * MIB))) + 1


def test_two_cores_get_as_much_to_do_where_one_file_is_much_larger(tmp_path: Path) -> None:
    files = [bronze_file("large", 1, 900, 30 * MIB), bronze_file("small", 901, 100, 10 * MIB)]
    increment = Increment(HISTORY, 0, 1_000, files)

    found = parts(tmp_path, Pass([increment], [], False), DedupDecision(), {}, {}, 2)

    assert [(part.after, part.to, len(part.paths)) for part in found] == [(0, 600, 1), (600, 1_000, 2)]
