"""A leaf whose stream is full, and what it trims once the hub has confirmed it."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from agent.config import Config, Size, StreamClass
from agent.contract import (
    Answer,
    Checkpoint,
    ClassAnswer,
    announce_subject,
    direct_subject,
    parse_announce,
)
from agent.jetstream import ApiError
from agent.leaf.intake import Chunk, RefusalReason, RefusedError
from tests.harness.agents import (
    CLASS,
    Agent,
    StreamProbe,
    agent,
    chunk,
    insist,
    leaf_config,
    refusal_of,
    registrar,
)
from tests.harness.servers import ServerPair
from tests.harness.wait import until

SMALL = StreamClass(max_bytes=Size(256 * 1024))
"""A stream that some incompressible chunks fill."""


def small_leaf(servers: ServerPair, tmp_path: Path) -> Config:
    """An agent whose stream is soon full."""
    return leaf_config(servers.leaf, tmp_path / "state", stream=SMALL)


def noise(key: str) -> Chunk:
    """A reading of about 20 KB that hardly compresses."""
    return chunk(os.urandom(10_000).hex(), key=key)


async def fill(one: Agent) -> int:
    """Submit until the stream is full; how many requests were stored."""
    stored = 0
    while (refusal := await refusal_of(one.submit(noise(f"fill-{one.run}-{stored}")))) is None:
        stored += 1
    assert refusal.reason is RefusalReason.FULL
    assert refusal.retry_after
    return stored


async def test_a_full_stream_refuses_and_the_ledger_names_what_was_refused(
    servers: ServerPair, probe: StreamProbe, tmp_path: Path
) -> None:
    config = small_leaf(servers, tmp_path)
    async with agent(config) as one:
        stored = await fill(one)
        assert one.leaf.status()["classes"][CLASS]["readings"] == {
            "accepted": stored + 1,
            "stored": stored,
            "refused": 1,
            "discarded": 0,
            "dead": 0,
            "refused_late": 0,
        }
        with pytest.raises(RefusedError) as caught:
            await one.submit(chunk("at once", key="at once"))
        assert caught.value.reason is RefusalReason.FULL
        await _make_room(probe)
        await one.stop()
    record = (await probe.ledgers())[-1]
    assert (record.run, record.n, record.final) == (one.run, stored + 1, True)
    assert record.stored == ((1, stored),)
    assert record.refused == ((stored + 1, stored + 1, "stream_full"),)


async def _make_room(probe: StreamProbe) -> None:
    await probe.js.purge(probe.stream, (await probe.js.stream_info(probe.stream)).last)


async def test_a_full_stream_takes_readings_again_once_the_hub_has_them(
    servers: ServerPair, probe: StreamProbe, tmp_path: Path
) -> None:
    config = small_leaf(servers, tmp_path)
    async with agent(config) as one:
        await one.submit(chunk("a", position="17"), "tail")
        await fill(one)
        async with registrar(servers, tmp_path):
            await insist(one, noise("after"))
            await until(
                lambda: one.value("petiole_trimmed_messages_total", **{"class": CLASS}) > 0, "trimmed"
            )
            first = await _first(probe)
            assert first <= one.leaf.status()["classes"][CLASS]["confirmed"]
            assert (await one.leaf.intake.position("tail")).position == "17"
        await one.stop()
    record = (await probe.ledgers())[-1]
    assert record.final
    assert [reason for _, _, reason in record.refused] == ["stream_full"] * len(record.refused)
    numbers = {n for first, last in record.stored for n in range(first, last + 1)}
    refused = {n for first, last, _ in record.refused for n in range(first, last + 1)}
    assert refused
    assert numbers | refused == set(range(1, record.n + 1))


async def test_a_full_class_has_no_time_left_while_it_refuses_and_after_a_restart_until_the_hub_takes_some(
    servers: ServerPair, probe: StreamProbe, tmp_path: Path
) -> None:
    config = small_leaf(servers, tmp_path)

    def said(one: Agent) -> tuple[float, bool, float, bool]:
        row = one.leaf.status()["classes"][CLASS]
        return (
            row["seconds_to_loss"],
            row["held_back"] is not None,
            one.value("petiole_seconds_to_loss", **{"class": CLASS}),
            one.leaf.accepts()[0],
        )

    async with agent(config) as one:
        await fill(one)
        assert said(one) == (0.0, True, 0.0, False)
        await _stuff(probe)
        await one.crash()
    async with agent(config) as one:
        await until(lambda: one.leaf.status()["classes"][CLASS]["last"] > 0, "the stream was looked at")
        assert said(one) == (0.0, True, 0.0, False)
        async with registrar(servers, tmp_path):
            await until(lambda: said(one) == (math.inf, False, math.inf, True), "the hub has taken it")


async def test_a_request_whose_batch_was_trimmed_is_known_after_a_crash(
    servers: ServerPair, tmp_path: Path
) -> None:
    config = small_leaf(servers, tmp_path)
    first = chunk("a", key="a-1")
    async with agent(config) as one:
        await one.submit(first)
        await fill(one)
        async with registrar(servers, tmp_path):
            await insist(one, noise("after"))
            await until(
                lambda: one.value("petiole_trimmed_messages_total", **{"class": CLASS}) > 0, "trimmed"
            )
        await one.crash()
    async with agent(config) as two:
        await two.submit(first)
        assert two.value("petiole_stored_readings_total", input="http", **{"class": CLASS}) == 0


class HubByHand:
    """Answers announcements as a test says, in the registrar's place."""

    def __init__(self) -> None:
        self.answer = ClassAnswer("TELEMETRY_0", 0, "", "flowing")
        self.asked = 0

    async def serve(self, servers: ServerPair) -> None:
        """Answer from now on."""
        nc = await servers.hub.connect("registrar")

        async def reply(msg: Msg) -> None:
            parse_announce(msg.data, servers.leaf.domain)
            self.asked += 1
            await msg.respond(Answer({CLASS: self.answer}).encode())

        await nc.subscribe(announce_subject(servers.leaf.domain), cb=reply)
        await nc.flush()

    async def round(self, one: Agent) -> None:
        """Return when the agent has taken in an answer that was given from now on."""
        for _ in range(2):
            asked = self.asked
            one.leaf.link.controller.announce_now()
            await until(lambda before=asked: self.asked > before, "an announcement")  # type: ignore[misc]


async def test_nothing_beyond_the_confirmed_message_is_trimmed(
    servers: ServerPair, probe: StreamProbe, tmp_path: Path
) -> None:
    hub = HubByHand()
    async with agent(small_leaf(servers, tmp_path)) as one:
        await fill(one)
        await hub.serve(servers)
        seq, ident = await _some_batch(probe, 4)

        hub.answer = ClassAnswer("TELEMETRY_0", seq, "another id", "flowing")
        await hub.round(one)
        assert await _first(probe) == 1, "the cursor's message is not ours"

        hub.answer = ClassAnswer("TELEMETRY_0", seq, ident, "flowing", agreed=False)
        await hub.round(one)
        assert await _first(probe) == 1, "leaf and hub disagree on the checkpoint"

        checkpoint = Checkpoint(seq, ident, "TELEMETRY_0", 7)
        hub.answer = ClassAnswer("TELEMETRY_0", seq, ident, "flowing", None, checkpoint)
        await hub.round(one)

        async def trimmed() -> bool:
            return await _first(probe) == seq

        await until(trimmed, "all up to the confirmed message is trimmed")
        await hub.round(one)
        assert await _first(probe) == seq, "the confirmed message itself stays"
        await until(lambda: one.state().checkpoint.get(CLASS) == checkpoint, "the checkpoint is remembered")


async def test_a_hub_that_holds_less_than_before_confirms_less(
    servers: ServerPair, probe: StreamProbe, config: Config
) -> None:
    hub = HubByHand()
    await hub.serve(servers)
    async with agent(config) as one:
        for number in range(5):
            await one.submit(chunk(str(number)))
        for place in (4, 2):
            seq, ident = await _some_batch(probe, place)
            hub.answer = ClassAnswer("TELEMETRY_0", seq, ident, "flowing")
            await hub.round(one)
            assert one.leaf.status()["classes"][CLASS]["confirmed"] == seq
        hub.answer = ClassAnswer("TELEMETRY_0", 0, "", "linking")
        await hub.round(one)
        assert one.leaf.status()["classes"][CLASS]["confirmed"] == 0


async def _some_batch(probe: StreamProbe, place: int) -> tuple[int, str]:
    batch = (await probe.batches())[place]
    return batch.seq, str(batch.id)


async def _first(probe: StreamProbe) -> int:
    return (await probe.js.stream_info(probe.stream)).first


async def test_an_agent_that_starts_on_a_full_stream_is_trimmed_and_goes_on(
    servers: ServerPair, probe: StreamProbe, tmp_path: Path
) -> None:
    config = small_leaf(servers, tmp_path)
    async with agent(config) as one:
        await fill(one)
        # A ledger record is small, so fill the last bytes too.
        await _stuff(probe)
        await one.crash()
    async with agent(config) as one, registrar(servers, tmp_path):
        await insist(one, chunk("a", key="a"))
        assert (await probe.texts())[-1] == "a/0"


async def _stuff(probe: StreamProbe) -> None:
    subject = direct_subject(probe.domain, CLASS, "d", "m")
    for size in (1000, 100, 10, 0):
        with contextlib.suppress(ApiError):
            for _ in range(100):
                await probe.js.publish(subject, b"x" * size)
    with pytest.raises(ApiError):
        await probe.js.publish(subject, b"")


async def test_a_position_outlives_the_batch_that_carried_it(probe: StreamProbe, config: Config) -> None:
    async with agent(config) as one:
        await one.submit(chunk("a", position="17"), "tail")
        await one.stop()
    await _make_room(probe)
    async with agent(config) as one:
        assert (await one.leaf.intake.position("tail")).position == "17"
