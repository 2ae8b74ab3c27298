"""Faults of the link that take their time: half-open, long cuts, slow flapping, servers that hang, loss, a
slow line. Readings flow all the while; each must come to the hub once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agent.leaf.link.states import LinkState
from tests.faults.report import Case
from tests.faults.tools.wire import Wire, missing, wire
from tests.harness.servers import open_server_pair
from tests.harness.watched_link import WatchedLink, open_watched_link

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"{missing()}; a proxy cannot lose packets")

_HALF_OPEN_SECONDS = 15.0
"""Within which the leaf has to notice a link that is half open."""


class Line:
    """A linked pair over a wire."""

    def __init__(self, pair: WatchedLink, proxy: Wire, case: Case) -> None:
        self.pair, self.wire, self.case = pair, proxy, case

    async def noticed(self, state: LinkState, within: float) -> None:
        """Note when the fault, which begins now, is seen, and in what words."""
        self.case.begins()
        sentence = await self.pair.was(state, self.case.began, within)
        self.case.detect_seconds = self.case.saw(f"{state}: {sentence}")

    async def mended(self) -> None:
        """Note when the link, which is given back now, flows."""
        self.case.begins()
        sentence = await self.pair.was(LinkState.FLOWING, self.case.began, 40.0)
        self.case.recover_seconds = self.case.saw(f"flowing: {sentence}")

    async def counted(self) -> None:
        """Count what has come, and fail where something is missing or double."""
        lost, doubled = await self.pair.lost_and_doubled(40.0)
        self.case.sent, self.case.acknowledged = self.pair.asked, len(self.pair.sent)
        self.case.lost, self.case.duplicates = len(lost), len(doubled)
        assert (lost, doubled) == ([], [])


@pytest_asyncio.fixture
async def line(tmp_path: Path, case: Case) -> AsyncIterator[Line]:
    """A leaf and a hub between which readings flow over a wire."""
    with wire() as proxy:
        async with (
            open_server_pair(tmp_path, "edge-1", proxy=proxy, leaf_listen=proxy.listen) as servers,
            open_watched_link(servers, tmp_path / "state") as pair,
        ):
            yield Line(pair, proxy, case)


async def test_a_half_open_link_is_noticed_within_fifteen_seconds(line: Line) -> None:
    line.case.expected = "down within 15 s; flowing once packets pass; no reading lost or doubled"
    async with line.pair.flows_on(50):
        line.wire.stall()
        await line.noticed(LinkState.DOWN, _HALF_OPEN_SECONDS)
        await asyncio.sleep(25)  # longer than the hub may hold on to the dead connection
        line.wire.restore()
        await line.mended()
    await line.counted()


async def test_a_half_open_link_over_which_nothing_is_sent_is_noticed_too(line: Line) -> None:
    line.case.expected = "down within 15 s though no reading is sent"
    line.wire.stall()
    await line.noticed(LinkState.DOWN, _HALF_OPEN_SECONDS)
    await line.pair.sends()
    line.wire.restore()
    await line.mended()
    await line.counted()


async def test_a_link_that_was_cut_for_forty_seconds_flows_when_it_is_back(line: Line) -> None:
    line.case.expected = "down at once, longer than one pause lasts; nothing crosses before the compare"
    async with line.pair.flows_on(50):
        line.wire.cut()
        await line.noticed(LinkState.DOWN, 2.0)
        await asyncio.sleep(40)  # the fault
        assert await line.pair.paused_for() > 0, "the pause is renewed"
        line.wire.restore()
        await line.mended()
    await line.counted()


async def test_a_link_that_is_silent_for_seventeen_seconds_and_up_for_six_loses_nothing(line: Line) -> None:
    line.case.expected = "every outage is told, none needs a repair, nothing is lost or doubled"
    epoch = line.pair.epoch
    async with line.pair.flows_on(50):
        for _ in range(3):
            outage = time.monotonic()
            line.case.begins()
            line.wire.stall()
            # Six seconds may have been too short to dial anew, and it is down since the last time.
            await line.pair.reaches(LinkState.DOWN, 17.0)
            line.case.detect_seconds = line.case.saw(line.pair.state)
            await asyncio.sleep(outage + 17 - time.monotonic())  # the fault
            line.wire.restore()
            await asyncio.sleep(6)  # up
            line.case.saw(f"{line.pair.state} after six seconds")
        await line.pair.reaches(LinkState.FLOWING, 40.0)
    await line.counted()
    assert line.pair.epoch == epoch


async def test_a_hub_that_hangs_for_half_a_minute_is_told_and_nothing_is_lost(line: Line) -> None:
    line.case.expected = "unverified or down within 20 s; flowing when the hub goes on"
    async with line.pair.flows_on(50):
        line.case.begins()
        line.pair.servers.hub.pause()
        try:
            await asyncio.sleep(30)  # the fault
        finally:
            line.pair.servers.hub.resume()
        told = [one for one in line.pair.seen if one[0] >= line.case.began]
        assert told, "the hub's silence is told"
        assert {state for _, state, _ in told} <= {
            LinkState.UNVERIFIED,
            LinkState.DOWN,
            LinkState.COMPARING,
            LinkState.UNHEARD,
        }
        line.case.detect_seconds = round(told[0][0] - line.case.began, 3)
        line.case.seen += [f"{at - line.case.began:.1f} s: {said}" for at, _, said in told]
        assert line.case.detect_seconds < 20
        await line.mended()
    await line.counted()


async def test_a_leaf_server_that_hangs_for_half_a_minute_is_told_and_nothing_is_lost(line: Line) -> None:
    line.case.expected = "away within 20 s; flowing when the server goes on"
    async with line.pair.flows_on(50):
        line.pair.servers.leaf.pause()
        try:
            await line.noticed(LinkState.AWAY, 20.0)
            await asyncio.sleep(25)  # the fault
        finally:
            line.pair.servers.leaf.resume()
        await line.mended()
    await line.counted()


async def test_a_line_that_loses_every_fiftieth_packet_and_is_cut_loses_no_reading(line: Line) -> None:
    line.case.expected = "flowing again after each cut, in spite of 2 % loss each way"
    line.case.not_proven.append("delay: this kernel has no netem")
    line.wire.lose(2)
    async with line.pair.flows_on(50):
        for _ in range(2):
            line.wire.cut()
            await line.noticed(LinkState.DOWN, 2.0)
            line.wire.lose(2)
            await line.mended()
    await line.counted()


async def test_a_backlog_drains_over_a_slow_line(line: Line) -> None:
    line.case.expected = "a backlog of a cut drains over 1 Mbit/s; the link is not called stuck meanwhile"
    line.wire.cut()
    await line.noticed(LinkState.DOWN, 2.0)
    async with line.pair.flows_on(100):
        await asyncio.sleep(15)  # the backlog
    line.wire.throttle(1000)
    line.wire.restore()
    await line.mended()
    began = line.case.began
    await line.counted()
    line.case.saw("all readings of the backlog are at the hub")
    assert LinkState.STUCK not in line.pair.states(began)
