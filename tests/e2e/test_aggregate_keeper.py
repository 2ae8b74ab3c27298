"""What the keeper of an aggregate is told while a change is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from agent.contract import new_epoch
from agent.hub.registrar.active_problems import ActiveProblems
from agent.hub.registrar.aggregate import AggregateSettings, Source, source
from agent.hub.registrar.aggregate_controller import AggregateController
from agent.hub.registrar.metrics import RegistrarMetrics
from agent.jetstream import JetStream, StreamInfo
from tests.harness.servers import ServerPair
from tests.harness.streams import AGGREGATE
from tests.harness.wait import WAIT_SECONDS, until


class Interrupted(JetStream):
    """A JetStream on which something happens once, between a change and its answer."""

    meanwhile: Callable[[], None] | None = None

    async def update_stream(self, config: Mapping[str, Any], timeout: float | None = None) -> StreamInfo:
        answer = await super().update_stream(config, timeout)
        if (happens := self.meanwhile) is not None:
            self.meanwhile = None
            happens()
        return answer


def _sources(*domains: str) -> dict[str, Source]:
    """New epochs of these leaves."""
    made = [source(domain, "normal", new_epoch()) for domain in domains]
    return {one["name"]: one for one in made}


async def test_what_is_wanted_while_a_change_is_made_is_made_next(servers: ServerPair) -> None:
    js = Interrupted(await servers.hub.connect("registrar"))
    keeper = AggregateController(
        js,
        AGGREGATE,
        AggregateSettings(max_bytes=2**26),
        lambda name: True,
        lambda seen: None,
        asyncio.Semaphore(1),
        ActiveProblems(),
        RegistrarMetrics(CollectorRegistry()),
    )
    await keeper.begin({})
    first, second, other = _sources("edge-1"), _sources("edge-1"), _sources("edge-2")
    running = asyncio.create_task(keeper.run())
    try:
        js.meanwhile = lambda: keeper.want(second | other)
        keeper.want(first)
        assert await keeper.settled(second | other, WAIT_SECONDS), "the newer epoch is never asked for"
        js.meanwhile = lambda: keeper.without(other)
        keeper.want(first)

        async def gone() -> bool:
            config = (await js.stream_info(AGGREGATE)).config
            return {one["name"] for one in config["sources"]} == set(first)

        await until(gone, "the source that shall not be there is removed")
    finally:
        running.cancel()
        await asyncio.wait([running])
