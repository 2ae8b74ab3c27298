"""The log that keeps windows of aggregated readings, cut off, damaged and on a full disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.leaf.rules.record_log import RecordLog, Snapshot, TakenRecord, UnsureError
from agent.leaf.rules.windows import OpenWindow
from tests.faults.tools.disk import missing, small_disk


def record(metric: str) -> TakenRecord:
    return TakenRecord([OpenWindow(b"s", 0, "r", ("last",), 60, 1.0, "c", metric, "d", "", "Z")])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=5)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=5), st.binary(max_size=12))
def test_a_log_that_is_cut_anywhere_holds_the_records_before_the_cut(
    tmp_path: Path, sizes: list[int], garbage: bytes
) -> None:
    path = tmp_path / "logs" / "log"
    first = Snapshot(7, [], [], [], [], None)
    records = [record("m" * size) for size in sizes]
    log = RecordLog(path)
    log.rewrite(first)
    ends = [path.stat().st_size]
    for one in records:
        log.append([one])
        ends.append(path.stat().st_size)
    data = path.read_bytes()
    for cut in range(ends[0], len(data) + 1):
        path.write_bytes(data[:cut] + garbage)
        whole = sum(end <= cut for end in ends)
        again = RecordLog(path)
        assert again.read() == [first, *records][:whole]
        assert again.to_rewrite == bool(cut > ends[whole - 1] or garbage)


def test_a_log_of_another_release_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"PTLAGG9\n")
    with pytest.raises(ValueError, match="another release"):
        RecordLog(tmp_path / "log").read()


def test_a_log_on_a_full_disk_refuses_records_and_keeps_those_before(tmp_path: Path) -> None:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with small_disk(tmp_path / "disk", 1) as disk:
        path = disk.path / "aggregates" / "log"
        log, first = RecordLog(path), Snapshot(7, [], [], [], [], None)
        log.rewrite(first)
        log.append([record("kept")])
        disk.fill()
        with pytest.raises(OSError, match="No space left") as refused:
            log.append([record("refused"), record("x" * 2**20)])
        assert not isinstance(refused.value, UnsureError)
        assert RecordLog(path).read() == [first, record("kept")]
        assert log.to_rewrite
        with pytest.raises(OSError, match="No space left"):
            log.rewrite(Snapshot(8, record("x" * 2**20).windows, [], [], [], None))
        assert log.to_rewrite
        assert RecordLog(path).read() == [first, record("kept")]
        disk.free()
        log.rewrite(Snapshot(8, [], [], [], [], None))
        log.append([record("after")])
        assert RecordLog(path).read() == [Snapshot(8, [], [], [], [], None), record("after")]


def test_a_log_is_rewritten_once_it_has_grown_to_four_times_its_snapshot(tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "logs" / "log")
    for size in (0, 3 * 2**20):
        log.rewrite(Snapshot(1, record("x" * size).windows, [], [], [], None))
        bound, written = max(4 * 2**20, 4 * size), size
        while written < bound - 2**20:
            log.append([record("x" * 2**20)])
            written += 2**20
            assert not log.to_rewrite
        log.append([record("x" * 2**20)])
        assert log.to_rewrite
