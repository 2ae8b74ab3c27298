from __future__ import annotations

from typing import cast

import pytest

from agent.contract import MAX_INT, Checkpoint, leaf_stream
from agent.hub.cells import CellStreams
from agent.hub.registrar.aggregate import Observation, observed, source
from agent.hub.registrar.gaps import GapSearch
from agent.hub.registrar.records import ClassRecord, HubPosition, LeafRecord
from agent.hub.registrar.stretch import SETTLE_SECONDS
from agent.jetstream.info import StreamInfo, stream_info

AGGREGATE = "TELEMETRY_0"


class Hub:
    """What the server reports of one source; it is asked for nothing, for each message follows the last."""

    def __init__(self) -> None:
        self.linked_at, self.leader, self.held, self.now = 0.0, "hub-1", 5, 0.0
        self.tells_of_it, self.knows, self.others = True, True, 0
        self._search = GapSearch(cast(CellStreams, None), lambda _: self.linked_at, lambda _: self._look())

    @property
    def _record(self) -> ClassRecord:
        place = Checkpoint(5, "id", AGGREGATE, 105)
        held = HubPosition(self.held, "id", 100 + self.held, 100 + self.held) if self.knows else None
        return ClassRecord("e", "made", AGGREGATE, "now", held, proposed=place)

    def begins(self) -> None:
        """A source is added, of which the hub holds nothing yet."""
        self.knows = False
        self._search.begin_epoch("edge-1", "c", self.seen())

    async def settled(self) -> None:
        """The server has asked, and a message came behind that."""
        await self._search.begin([LeafRecord("edge-1", "m", "r", {}, "", {"c": self._record})], 0.0)
        self.looks(SETTLE_SECONDS)
        self.held += 1
        assert await self.whole_to() == MAX_INT

    def looks(self, now: float) -> None:
        self.now = now
        self._search.note(self.seen())

    async def whole_to(self, seen: Observation | None = None) -> int:
        """By an answer, of which `seen` is the newest look."""
        return (await self._search.look("edge-1", "c", self._record, seen or self.seen())).whole_to

    async def may_purge_to(self) -> int:
        leaf = LeafRecord("edge-1", "m", "r", {}, "", {"c": self._record})
        return await self._search.read_up_to([(leaf, "c", self._record)], self.seen())

    def seen(self) -> Observation:
        row = {"name": leaf_stream("edge-1", "c"), "seq": self.held, "active": 10**8}
        rows = [row] if self.tells_of_it else []
        config = {"sources": [source("edge-1", "c", "e")]}
        last = 100 + self.held + self.others
        info = StreamInfo(AGGREGATE, "now", 1, last, 50, 0, config, rows, leader=self.leader)
        return observed(info, self.now)

    async def _look(self) -> Observation:
        return self.seen()


@pytest.mark.parametrize("leader", ["hub-2", "hub-1", ""])
@pytest.mark.parametrize("is_seen_by", ["each second", "the answer"])
async def test_another_server_that_leads_an_aggregate_may_ask_each_leaf(leader: str, is_seen_by: str) -> None:
    """It may tell of no source yet."""
    hub = Hub()
    await hub.settled()
    hub.leader, hub.tells_of_it, hub.now = leader, leader == "hub-1", 20.0
    if is_seen_by == "each second":
        hub.looks(19.0)
    assert await hub.whole_to() == (MAX_INT if leader == "hub-1" else 106)


async def test_what_came_after_the_look_may_have_come_to_another_server_that_leads() -> None:
    hub = Hub()
    await hub.settled()
    before = hub.seen()
    hub.leader, hub.held, hub.now = "hub-2", 7, 20.0
    assert await hub.whole_to(before) == 107


def test_a_server_that_lost_the_lead_and_has_it_again_is_another_leader() -> None:
    since = ["2026-11-26T22:04:17Z", "2026-11-26T22:04:18Z"]
    state = {"first_seq": 1, "last_seq": 1, "messages": 1, "bytes": 1, "last_ts": "", "consumer_count": 0}
    answer = {"config": {"name": AGGREGATE}, "created": "", "state": state}
    first, second = (
        stream_info(answer | {"cluster": {"leader": "hub-1", "leader_since": time}}).leader for time in since
    )
    assert first != second


async def test_a_link_that_comes_up_is_seen_by_whoever_looks_next() -> None:
    hub = Hub()
    await hub.settled()
    hub.linked_at = 20.0
    assert await hub.whole_to() == 106


@pytest.mark.parametrize("leader", ["hub-2", "hub-1"])
async def test_another_server_that_leads_since_a_source_was_added_may_ask_for_it(leader: str) -> None:
    """The announcement of its epoch failed, so nothing was known of it when the other one led."""
    hub = Hub()
    hub.begins()
    hub.leader = leader
    hub.looks(1.0)
    assert await hub.whole_to() == (MAX_INT if leader == "hub-1" else 0)


@pytest.mark.parametrize("is_in_doubt", [True, False])
async def test_what_is_purged_of_other_leaves_hides_no_gap_of_a_quiet_one(is_in_doubt: bool) -> None:
    """Its next message is read behind what went, and follows what is known."""
    hub = Hub()
    await hub.settled()
    hub.others, hub.now, hub.linked_at = 44, 20.0, 20.0 if is_in_doubt else 0.0
    assert await hub.may_purge_to() == MAX_INT
    hub.linked_at = 30.0
    assert await hub.whole_to() == 150
