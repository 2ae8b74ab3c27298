"""How long windows have been open, over the ends of agents and of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.base import clock
from agent.base.metrics import Metrics
from agent.base.wait import loop_time
from agent.leaf.intake import Chunk
from agent.leaf.publish.pull_chunks import Fragment
from agent.leaf.rules.aggregates import RuleAggregates
from agent.leaf.rules.record_log import RecordLog, Snapshot, TakenRecord
from tests.harness.clocks import SECOND, SYNCHRONISED, UNSYNCHRONISED, FakeMachine
from tests.unit.leaf.rules.test_windows import RULE, SHAPES, line, split

LENGTH_AND_LATE = 70.0
"""Seconds that a window of `RULE` waits."""


class LaterMachine(FakeMachine):
    """Clocks that a test moves on."""

    later = 0

    def wall(self) -> int:
        return super().wall() + self.later

    def monotonic(self) -> int:
        return super().monotonic() + self.later


class NothingStored:
    """A core that is never asked, since nothing is closed."""

    async def stored_of(self, input_name: str, piece: Chunk) -> int | None:
        raise AssertionError

    async def submit_piece(self, input_name: str, cls: str, chunk: Chunk, parts: Sequence[Fragment]) -> None:
        raise AssertionError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> LaterMachine:
    made = LaterMachine()
    monkeypatch.setattr(clock, "machine", made)
    return made


def agent(directory: Path) -> RuleAggregates:
    """The windows of an agent that starts."""
    found = RuleAggregates(directory, NothingStored(), ["normal"], Metrics())
    found.use([RULE])
    return found


async def take(aggregates: RuleAggregates, ts: float) -> None:
    await aggregates.take(split(aggregates.windows, line(ts, 1)).gathered)


def begins(aggregates: RuleAggregates, seconds: float) -> list[int]:
    """The windows that are due so many seconds from now."""
    return [window.begin for window in aggregates.windows.due(loop_time() + seconds, SHAPES, 9)]


async def test_windows_of_an_agent_that_restarts_again_and_again_are_closed_by_its_clock(
    machine: LaterMachine, tmp_path: Path
) -> None:
    await take(agent(tmp_path), 0)
    for _ in range(3):
        with (tmp_path / "aggregates.log").open("ab") as log:
            log.write(b"torn")  # so that the next agent rewrites it
        machine.later += 20 * SECOND
        restarted = agent(tmp_path)
        await take(restarted, 61)
    assert begins(restarted, 0) == []
    assert begins(restarted, LENGTH_AND_LATE - 60) == [0]
    machine.later += 10 * SECOND
    assert begins(agent(tmp_path), 0) == [0]
    assert begins(agent(tmp_path), 20) == [0, 60]


@pytest.mark.parametrize(("state", "off"), [(SYNCHRONISED, True), (UNSYNCHRONISED, False)])
async def test_the_time_in_which_the_machine_was_off_counts_where_its_clock_is_right(
    machine: LaterMachine, tmp_path: Path, state: int, off: bool
) -> None:
    machine.state = state
    await take(agent(tmp_path), 0)
    machine.boot, machine.later = "boot-2", -machine.monotonic()
    machine.behind -= 3600 * SECOND - machine.later
    assert begins(agent(tmp_path), 0) == ([0] if off else [])
    assert begins(agent(tmp_path), LENGTH_AND_LATE) == [0]


async def test_windows_of_a_log_that_does_not_say_when_wait_from_the_start(tmp_path: Path) -> None:
    await take(agent(tmp_path), 0)
    log = RecordLog(tmp_path / "aggregates.log")
    snapshot, taken = log.read()
    assert isinstance(snapshot, Snapshot)
    assert isinstance(taken, TakenRecord)
    log.rewrite(Snapshot(0, taken.windows, [], [], [], None))
    log.append([TakenRecord(split(agent(tmp_path).windows, line(60, 1)).gathered.parts())])
    assert begins(agent(tmp_path), LENGTH_AND_LATE - 1) == []
    assert begins(agent(tmp_path), LENGTH_AND_LATE) == [0, 60]


async def test_a_damaged_record_is_skipped_and_named_and_those_behind_it_count(tmp_path: Path) -> None:
    first = agent(tmp_path)
    path = tmp_path / "aggregates.log"
    ends = []
    for ts in (0, 60, 120, 180):
        await take(first, ts)
        ends.append(path.stat().st_size)
    await first._commit(None)  # closes what is due by `ts`: the windows from 0 and 60
    data = bytearray(path.read_bytes())
    data[ends[0] + 20] ^= 1
    path.write_bytes(data)
    metrics = Metrics()
    with capture_logs() as logs:
        found = RuleAggregates(tmp_path, NothingStored(), ["normal"], metrics)
    assert [window.begin for window in found.windows.open()] == [120, 180]
    assert metrics.registry.get_sample_value("petiole_damaged_aggregate_records_total") == 1
    [said] = [entry for entry in logs if entry["event"] == "damaged records of aggregates skipped"]
    assert (said["path"], said["bytes"]) == (str(path), ends[1] - ends[0])
    found.use([RULE])
    await take(found, 181)
    assert agent(tmp_path).windows.open() == found.windows.open(), "the damage is not read again"
