from __future__ import annotations

from typing import cast

import pytest
from nats.aio.client import Client

from agent.contract import MAX_INT, Checkpoint, leaf_stream, link_consumer
from agent.hub.registrar.aggregate import Observation
from agent.hub.registrar.gaps import GapSearch
from agent.hub.registrar.records import ClassRecord, HubPosition, LeafRecord
from agent.hub.registrar.stretch import SETTLE_SECONDS
from agent.jetstream import JetStream
from agent.jetstream.info import CopyStatus, StreamInfo

AGGREGATE = "TELEMETRY_0"


class Hub:
    """What the server reports of one source; it is asked for nothing, for each message follows the last."""

    def __init__(self) -> None:
        self.linked_at, self.leader, self.held = 0.0, "hub-1", 5
        self._search = GapSearch(cast(Client, None), cast(JetStream, None), lambda _: self.linked_at)

    @property
    def _record(self) -> ClassRecord:
        place = Checkpoint(5, "id", AGGREGATE, 105)
        held = HubPosition(self.held, "id", 100 + self.held, 100 + self.held)
        return ClassRecord("e", "made", AGGREGATE, "now", held, proposed=place)

    @property
    def _info(self) -> StreamInfo:
        return StreamInfo(AGGREGATE, "now", 1, 100 + self.held, 50, 0, {}, [], leader=self.leader)

    async def settled(self) -> None:
        """The server has asked, and a message came behind that."""
        await self._search.begin([LeafRecord("edge-1", "m", "r", {}, "", {"c": self._record})], 0.0)
        self.look_at(SETTLE_SECONDS)
        self.held += 1
        assert await self.whole_to() == MAX_INT

    def look_at(self, asked: float) -> None:
        state = CopyStatus(self.held, 0.1, consumer=link_consumer("e"))
        self._search.note(Observation(self._info, {leaf_stream("edge-1", "c"): state}, asked))

    async def whole_to(self) -> int:
        return (await self._search.look("edge-1", "c", self._record, self._info)).whole_to


@pytest.mark.parametrize("leader", ["hub-2", "hub-1", ""])
async def test_another_server_that_leads_an_aggregate_may_ask_each_leaf(leader: str) -> None:
    hub = Hub()
    await hub.settled()
    hub.leader = leader
    hub.look_at(20.0)
    assert await hub.whole_to() == (106 if leader == "hub-2" else MAX_INT)


async def test_a_link_that_comes_up_is_seen_by_whoever_looks_next() -> None:
    hub = Hub()
    await hub.settled()
    hub.linked_at = 20.0
    assert await hub.whole_to() == 106
