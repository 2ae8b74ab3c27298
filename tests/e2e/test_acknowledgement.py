"""What an acknowledgement of each level means, and that no reading leaves the account."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agent import contract
from agent.config import Config, Publish, Size, StreamClass
from agent.demo.loopback import free_port
from agent.leaf.inputs.http import HttpOptions
from agent.leaf.inputs.mqtt import MqttOptions, TopicTemplate
from agent.leaf.inputs.mqtt.input import MqttInput
from agent.leaf.inputs.mqtt.session import Received, Session
from agent.leaf.intake import Chunk, Level, NotAtHubError, QuickIntake, RefusalReason, RefusedError
from agent.leaf.link.act import ensure_rate
from agent.leaf.link.status import LinkState
from agent.leaf.publish import limits, publisher
from agent.leaf.publish.core_intake import SwappableIntake
from agent.process import stream_setup
from agent.server.values import MAX_PAYLOAD
from tests.harness.agents import (
    CLASS,
    Agent,
    agent,
    chunk,
    insist,
    leaf_config,
    probe_stream,
    refusal_of,
    registrar,
)
from tests.harness.linked_pair import QUICK, LinkedPair, open_linked_pair
from tests.harness.mqtt_broker import Mosquitto, keep_session, publish
from tests.harness.servers import ServerPair
from tests.harness.wait import SERVER_RETRY_SECONDS, until

LATE = "petiole_refused_after_acceptance_readings_total"


def at_level(
    servers: ServerPair,
    tmp_path: Path,
    ack: Level,
    publish: Publish = QUICK,
    stream: StreamClass | None = None,
) -> Config:
    """An agent whose input `http` acknowledges at a level."""
    config = leaf_config(servers.leaf, tmp_path / "state", publish, stream)
    config.input = [HttpOptions(ack=ack)]
    return config


def lost(one: Agent, reason: str) -> float:
    """Readings that were accepted and then refused."""
    return one.value(LATE, input="http", **{"class": CLASS}, reason=reason)


def unaccounted(one: Agent) -> float:
    value = one.metrics.registry.get_sample_value("petiole_unaccounted_readings", {"class": CLASS})
    assert value is not None
    return value


async def test_what_a_server_does_not_take_in_a_message_is_refused_before_it_is_acknowledged(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with agent(at_level(servers, tmp_path, "accepted")) as one:
        status, admission = one.leaf.link.status, one.leaf._publisher.admission
        assert status.hub_max_payload == 0
        async with registrar(servers, tmp_path):
            await until(lambda: status.hub_max_payload == MAX_PAYLOAD, "the hub has said what it takes")
        for takes, words in ((MAX_PAYLOAD, "the local server takes"), (100_000, "the hub's server takes")):
            admission.hub_takes = lambda takes=takes: takes  # type: ignore[misc]
            with pytest.raises(RefusedError, match=f"{words} {takes} in a message; raise max_payload"):
                await one.submit(Chunk(os.urandom(takes) + b"\n", 1), "http")
        await one.submit(chunk("small"), "http")
        assert lost(one, RefusalReason.TOO_LARGE) == 0
        assert unaccounted(one) == 0


async def test_what_is_accepted_waits_in_memory_for_the_server_to_come_back(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "PATIENCE", 0.3)
    monkeypatch.setattr(limits, "AWAY_GRACE", 0.1)
    publish = Publish(in_flight=Size(20_000), batch_bytes=Size(5_000))
    async with agent(at_level(servers, tmp_path, "accepted", publish)) as one:
        await insist(one, chunk("before", key="before"))
        await servers.leaf.kill()
        await until(lambda: not one.leaf.ready()[0], "the agent has noticed")
        accepted = 0
        while (refusal := await refusal_of(one.submit(chunk(f"n{accepted}", 10)))) is None:
            accepted += 1
            assert unaccounted(one) == 0
        assert refusal.reason is RefusalReason.BUSY, "the budget is full, and the sender is told"
        assert refusal.retry_after
        assert accepted > 10
        with pytest.raises(RefusedError):
            await one.leaf._publisher.submit("http", CLASS, chunk("stored first", position="7"))
        await servers.leaf.start()
        await until(lambda: one.value("petiole_in_flight_bytes") == 0, "all is settled")
        assert unaccounted(one) == 0
        texts = await (await probe_stream(servers.leaf)).texts()
        assert texts == ["before/0", *(f"n{number}/{row}" for number in range(accepted) for row in range(10))]


async def test_what_a_stop_loses_of_what_was_accepted_is_told_by_the_next_run(
    servers: ServerPair, tmp_path: Path
) -> None:
    config = at_level(servers, tmp_path, "accepted")
    async with agent(config) as one:
        await one.submit(chunk("before"))
        await until(lambda: one.value("petiole_in_flight_bytes") == 0, "that is stored")
        await servers.leaf.kill()
        await until(lambda: not one.leaf.ready()[0], "the agent has noticed")
        await one.submit(chunk("lost", 3))
        await asyncio.wait_for(one.stop(), 60)
        assert lost(one, "stopping") == 3
        assert unaccounted(one) == 0
        await servers.leaf.start()
    async with agent(config):
        record = (await (await probe_stream(servers.leaf)).ledgers())[-1]
    assert record.previous is not None
    assert not record.previous.closed
    assert record.previous.readings.accepted == 4
    assert record.previous.readings.refused_late == 3


@pytest_asyncio.fixture
async def pair(servers: ServerPair, tmp_path: Path) -> AsyncIterator[LinkedPair]:
    """A linked leaf whose input acknowledges what the hub holds."""
    async with open_linked_pair(servers, tmp_path / "state", inputs=[HttpOptions(ack="hub")]) as one:
        yield one


async def test_at_level_hub_the_answer_comes_as_soon_as_the_hub_has_it(pair: LinkedPair) -> None:
    one, loop = pair.agent, asyncio.get_running_loop()
    took = []
    for number in range(10):
        began = loop.time()
        await one.submit(chunk(f"n{number}"))
        took.append(loop.time() - began)
        assert f"n{number}/0" in await pair.arrived()
    assert sorted(took)[5] < 5, "an announcement alone would tell it ten seconds later"
    await asyncio.gather(*(one.submit(chunk(f"m{number}", key=f"m{number}")) for number in range(200)))
    assert {f"m{number}/0" for number in range(200)} <= {*await pair.arrived()}
    assert not one.leaf._waits.wanted.is_set()


async def test_a_hub_that_is_away_leaves_it_stored_and_a_repeat_waits_for_the_hub_again(
    pair: LinkedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "PATIENCE", 2.0)
    one = pair.agent
    pair.servers.leaf.proxy.cut()
    await pair.reaches(LinkState.DOWN)
    for _ in range(2):
        with pytest.raises(NotAtHubError, match=r"stored on this machine, .* the link to the hub is down"):
            await one.submit(chunk("a", key="k"))
    assert await pair.probe.texts() == ["a/0"]
    assert one.leaf._waits.classes() == [], "nothing is kept of a wait that was given up"
    assert unaccounted(one) == 0
    monkeypatch.setattr(publisher, "PATIENCE", SERVER_RETRY_SECONDS)
    waiting = asyncio.create_task(one.submit(chunk("a", key="k")))
    pair.servers.leaf.proxy.restore()
    await waiting
    assert "a/0" in await pair.arrived()
    assert await pair.probe.texts() == ["a/0"]


async def test_a_broker_keeps_its_messages_at_level_hub_until_the_hub_holds_them(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "PATIENCE", 0.3)
    acknowledged: list[int] = []
    tell = Session.acknowledge

    def note(own: Session, message: Received) -> bool:
        acknowledged.append(message.packet_id)
        return tell(own, message)

    def enough(waits: list[None]) -> bool:
        return len(waits) > 2 or acknowledged != []

    monkeypatch.setattr(Session, "acknowledge", note)
    broker = Mosquitto(tmp_path / "mosquitto", free_port())
    broker.start()
    topics = [TopicTemplate(filter="plant/+/#", device="{2}", metric="{3+}")]
    options = MqttOptions(url=f"mqtt://127.0.0.1:{broker.port}", topics=topics, ack="hub")
    try:
        await asyncio.to_thread(
            keep_session, broker.port, "petiole-edge-1-mqtt", topics[0].filter, "plant/d/first"
        )
        async with open_linked_pair(servers, tmp_path / "state", inputs=[options]) as pair:
            servers.leaf.proxy.cut()
            await pair.reaches(LinkState.DOWN)
            await asyncio.to_thread(publish, broker.port, "plant/d/m", b'"a/0"')
            for what in ("stores the message", "is sent the stored message again"):
                async with running(options, pair.agent) as waits:
                    await until(partial(enough, waits), f"the input {what} and waits for the hub")
                assert acknowledged == [], f"a broker that is told drops it; the input {what}"
            assert await pair.probe.texts() == ["a/0"]
            servers.leaf.proxy.restore()
            async with running(options, pair.agent):
                await until(lambda: acknowledged != [], "the broker is told")
                assert "a/0" in await pair.arrived()
            assert await pair.probe.texts() == ["a/0"]
    finally:
        broker.stop()


@asynccontextmanager
async def running(options: MqttOptions, one: Agent) -> AsyncIterator[list[None]]:
    """An input before the core of an agent, with an entry for each time that the hub was waited for in
    vain."""
    waits: list[None] = []
    intake, stopping = Waiting(one.leaf.intake, waits), asyncio.Event()
    task = asyncio.create_task(MqttInput(options, one.metrics).run(intake, stopping))
    try:
        yield waits
    finally:
        stopping.set()
        async with asyncio.timeout(60):
            await task


class Waiting(SwappableIntake):
    """The core, which notes when the hub was waited for too long."""

    def __init__(self, behind: QuickIntake, waits: list[None]) -> None:
        super().__init__(behind)
        self._waits = waits

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        try:
            await super().submit(input_name, cls, chunk)
        except NotAtHubError:
            self._waits.append(None)
            raise


async def test_a_registrar_that_does_not_answer_the_question_is_asked_by_announcements(
    pair: LinkedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "cursor_subject", lambda domain: f"petiole.v1.announce.{domain}.no")
    await pair.agent.submit(chunk("a"))
    assert "a/0" in await pair.arrived()


async def test_a_stop_does_not_wait_for_the_hub(pair: LinkedPair) -> None:
    one = pair.agent
    pair.servers.leaf.proxy.cut()
    waiting = asyncio.create_task(one.submit(chunk("a", key="k")))
    await until(lambda: one.leaf._waits.classes() != [], "it waits for the hub")
    await asyncio.wait_for(one.stop(), 60)
    with pytest.raises(NotAtHubError, match="the agent is stopping"):
        await waiting
    assert (await pair.probe.ledgers())[-1].final


async def test_a_store_that_is_lost_before_the_hub_had_it_is_told(pair: LinkedPair) -> None:
    one = pair.agent
    await one.submit(chunk("before", key="before"))
    pair.servers.leaf.proxy.cut()
    waiting = asyncio.create_task(one.submit(chunk("a", key="k")))
    await until(lambda: one.leaf._waits.classes() != [], "it waits for the hub")
    await pair.servers.leaf.wipe()
    with pytest.raises(NotAtHubError) as caught:
        await waiting
    assert caught.value.lost
    await one.ready()
    with pytest.raises(NotAtHubError) as caught:
        await one.submit(chunk("a", key="k"))
    assert caught.value.lost, "a repeat is not answered that the hub has it"
    pair.servers.leaf.proxy.restore()
    await insist(one, chunk("new", key="new"))
    assert "new/0" in await pair.arrived()
    assert unaccounted(one) == 0


async def test_a_server_that_ends_again_before_the_link_of_its_lost_store_is_ready_has_told_of_the_loss(
    pair: LinkedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, leaf, again = pair.agent, pair.servers.leaf, list[asyncio.Task[None]]()
    for number in range(10):
        await one.submit(chunk(f"n{number}", key=f"n{number}"))

    async def end_again(*arguments: Any) -> None:
        monkeypatch.setattr(stream_setup, "ensure_rate", ensure_rate)
        await leaf.kill()
        again.append(asyncio.create_task(leaf.start()))
        await ensure_rate(*arguments)

    monkeypatch.setattr(publisher, "PATIENCE", 3.0)
    monkeypatch.setattr(stream_setup, "ensure_rate", end_again)
    leaf.proxy.cut()
    await leaf.wipe()
    await until(lambda: bool(again), "the server ends again")
    await again[0]
    await one.ready()
    assert pair.epochs("stream_recreated") == 1
    with pytest.raises(NotAtHubError):
        await one.submit(chunk("new"))
    with pytest.raises(NotAtHubError) as caught:
        await one.submit(chunk("n0", key="n0"))
    assert caught.value.lost, "a repeat is not answered that the hub has it"
