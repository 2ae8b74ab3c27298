"""The link between leaf and hub breaks, or is bad."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from agent.leaf.link.status import LinkState
from tests.faults.matrix.conftest import Worlds
from tests.faults.matrix.scenarios import judged
from tests.faults.oracle.judge import Terms
from tests.faults.oracle.numbered import HEAVY, HEAVY_BYTES
from tests.faults.report import Case
from tests.faults.schedule import schedule, seed_of
from tests.faults.tools.line import Line, Quality, Windows, missing
from tests.faults.tools.line import line as open_line
from tests.faults.world.environment import FaultEnvironment
from tests.harness.wait import wait_for

WHOLE = "nothing acknowledged is lost or doubled; the leaf stores meanwhile"
needs_line = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture
def line() -> Iterator[Line]:
    """A line between leaf and hub, of packets."""
    with open_line() as one:
        yield one


def cut_for(w: FaultEnvironment, seconds: float) -> None:
    """No connection for so long."""
    w.link.cut()
    w.lasts(seconds)
    w.link.restore()


def test_the_link_is_cut_for_a_second(world_of: Worlds, case: Case) -> None:
    case.expected = WHOLE
    with world_of() as w:
        cut_for(w, 1)
        judged(w)


def test_the_link_is_cut_for_a_minute(world_of: Worlds, case: Case) -> None:
    case.expected = WHOLE
    with world_of() as w:
        cut_for(w, 60)
        judged(w)


def test_the_link_is_cut_for_ten_minutes(world_of: Worlds, case: Case) -> None:
    case.expected = WHOLE
    with world_of() as w:
        cut_for(w, 600)
        judged(w, Terms(seconds=120))


def test_the_link_flaps(world_of: Worlds, case: Case) -> None:
    case.expected = f"{WHOLE}, through ten cuts whose lengths a seed decides"
    case.seed = seed_of()
    with world_of() as w:
        w.injected.add("the link is cut ten times", w.link.down)
        for step in schedule(case.seed, ["cut"], 10, 3.0):
            w.link.proxy.cut()
            w.lasts(step.after)
            w.link.restore()
            w.lasts(3.0 - step.after)
        judged(w)


@needs_line
def test_the_link_is_half_open_for_forty_seconds(world_of: Worlds, case: Case, line: Line) -> None:
    case.expected = f"{WHOLE}; down within 17 s"
    with world_of(line=line) as w:
        w.link.stall()
        w.lasts(40)
        w.link.restore()
        judged(w)
        assert case.detect_seconds is not None
        assert case.detect_seconds < 17


def test_the_link_is_half_open_while_nothing_is_sent(world_of: Worlds, case: Case) -> None:
    case.expected = f"{WHOLE}; down within 17 s though no reading is sent"
    with world_of(devices=0, direct=False) as w:
        w.link.stall()
        w.noticed(17)
        w.load.over_http(w.leaf.member, "late-1")
        w.load.flows(20)
        w.link.restore()
        judged(w)


def test_the_link_is_half_open_again_and_again(world_of: Worlds, case: Case) -> None:
    case.expected = f"{WHOLE}; 17 s without a packet and 6 s with them, three times, need no new epoch"
    with world_of() as w:
        began = time.time()
        w.injected.add("the link is half-open three times", w.link.down)
        for _ in range(3):
            w.link.proxy.stall()
            w.lasts(17)
            w.link.restore()
            w.lasts(6)
        judged(w)
        assert w.leaf.new_epoch(began) is None


@needs_line
def test_the_link_loses_two_of_a_hundred_packets(world_of: Worlds, case: Case, line: Line) -> None:
    case.expected = f"{WHOLE}; a cut in the middle of it too"
    with world_of(line=line) as w:
        w.link.lose(2)
        w.load.flows(200)
        cut_for(w, 5)
        w.link.lose(2)
        judged(w)


@needs_line
def test_the_link_loses_every_fifth_packet(world_of: Worlds, case: Case, line: Line) -> None:
    case.expected = f"{WHOLE}; what was sent meanwhile is at the hub a minute after the loss has ended"
    with world_of(line=line) as w:
        w.link.lose(20)
        w.lasts(60)
        w.link.restore()
        judged(w)


@needs_line
def test_the_link_lets_64_kilobits_through(world_of: Worlds, case: Case, line: Line) -> None:
    case.expected = f"{WHOLE}; a backlog of twenty seconds drains over it"
    with world_of(line=line, devices=1, pace=0.5, direct=False) as w:
        w.link.cut()
        w.lasts(20)
        w.link.becomes(Quality(rate=8_000), "the link is slowed down to 64 kbit/s", "waited")
        began = time.time()
        w.link.restore()
        w.mended(240)
        assert LinkState.STUCK not in [state for _, state in w.leaf.link_told(began)]
        w.load.flows()
        w.verdict(Terms(seconds=180))


@needs_line
def test_the_link_swallows_every_large_packet(world_of: Worlds, case: Case, line: Line) -> None:
    case.expected = f"{WHOLE}; what a hole in the path MTU held back comes when it is mended"
    with world_of(line=line) as w:
        w.link.swallow(600)
        w.lasts(45)
        w.link.restore()
        judged(w)


@needs_line
def test_the_link_takes_300_milliseconds(world_of: Worlds, case: Case, line: Line) -> None:
    case.expected = f"{WHOLE}, with a cut in the middle of it"
    late = Quality(round_trip=0.3)
    with world_of(line=line) as w:
        w.link.becomes(late, "every packet takes 0.15 s, each way", "packets")
        w.load.flows(50)
        cut_for(w, 5)
        line.set(late)
        judged(w)


@needs_line
def test_the_line_carries_100_kilobytes_a_second_and_breaks_every_seven_seconds(
    world_of: Worlds, case: Case, line: Line
) -> None:
    case.expected = f"{WHOLE}; a backlog of half a minute arrives while the line breaks"
    slow = Quality(rate=100e3, round_trip=0.3, windows=Windows(7.0))
    with world_of(line=line, devices=1, pace=0.5, direct=False) as w:
        w.link.cut()
        w.load.over_http(w.leaf.member, f"{HEAVY}1", size=6, pace=0.0)
        heavy = w.load.devices[-1]
        wait_for(lambda: heavy.sent.acknowledged * HEAVY_BYTES > 3_000_000, "a backlog is stored")
        for one in w.load.devices:
            one.end()
        w.link.becomes(slow, "100 kB/s, and a break every seven seconds", "down")
        w.mended(180)
        line.restore()
        w.load.over_http(w.leaf.member, "late-1")
        w.load.flows()
        w.verdict(Terms(seconds=180))
