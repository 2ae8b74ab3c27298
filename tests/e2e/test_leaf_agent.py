"""The leaf's agent on a real server: what it takes in, stores, answers and writes down."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from agent.base import clock
from agent.config import Config, Publish, Size, User
from agent.contract import (
    H_ENCODING,
    H_RESENT,
    MAX_UNPACKED_BYTES,
    BatchHeaders,
    Clock,
    MessageId,
    Readings,
    batch_subject,
    direct_subject,
    leaf_stream,
    link_consumer,
    new_run,
    user_consumer,
)
from agent.jetstream import JetStream, TooLargeError
from agent.leaf.intake import Chunk, Intake, RefusalReason, RefusedError
from agent.leaf.publish import limits, stream_recovery
from hub_jobs.refine.messages import unpack
from tests.harness.agents import (
    CLASS,
    Agent,
    StreamProbe,
    agent,
    chunk,
    leaf_config,
    refusal_of,
)
from tests.harness.clocks import SECOND, SYNCHRONISED, FakeMachine
from tests.harness.servers import ServerPair
from tests.harness.wait import until


async def test_what_was_answered_is_in_the_stream(probe: StreamProbe, config: Config) -> None:
    async with agent(config) as one:
        await one.submit(chunk("a", 3))
        assert await probe.texts() == ["a/0", "a/1", "a/2"]


async def test_keys_of_two_scopes_are_known_apart_after_a_restart(probe: StreamProbe, config: Config) -> None:
    for _ in range(2):
        async with agent(config) as one:
            await one.submit(chunk("a", key="1", scope="http"))
            await one.submit(chunk("b", key="1", scope="socket"))
            with pytest.raises(RefusedError, match="used within ten minutes for another request"):
                await one.submit(chunk("c", key="1", scope="socket"))
            await one.crash()
    assert await probe.texts() == ["a/0", "b/0"]


async def test_requests_of_ten_minutes_are_known_after_a_restart_whatever_became_of_the_clock(
    probe: StreamProbe, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = FakeMachine(behind=50 * 365 * 86_400 * SECOND)
    monkeypatch.setattr(clock, "machine", machine)
    monkeypatch.setattr(stream_recovery, "_SPAN", 2)
    async with agent(config) as one:
        for number in range(9):
            await one.submit(chunk(str(number), key=str(number)))
    machine.behind = 0
    async with agent(config) as one:
        await until(lambda: one.value("petiole_known_requests") == 9, "all requests are known")
        await one.submit(chunk("0", key="0"))
    assert (await probe.texts()).count("0/0") == 1


async def test_a_request_is_known_after_a_kill_though_older_batches_were_published_again_behind_it(
    probe: StreamProbe, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "machine", FakeMachine(state=SYNCHRONISED))
    monkeypatch.setattr(stream_recovery, "_SPAN", 4)
    subject = batch_subject(config.domain, CLASS, "http")
    old, hour_ago = new_run(now_ns=10**18), time.time_ns() - 3_600 * SECOND
    async with agent(config) as one:
        await one.submit(chunk("a", key="k"))
        for n in range(1, 9):
            headers = BatchHeaders(MessageId(old, CLASS, n), 1, hour_ago, Clock(True, "boot-0", 1)).encode()
            await probe.js.publish(subject, chunk("old").payload, {**headers, H_RESENT: "1"})
        await one.crash()
    async with agent(config) as one:
        await one.submit(chunk("a", key="k"))
    assert (await probe.texts()).count("a/0") == 1


async def test_a_request_whose_sender_went_away_is_stored_and_known(
    probe: StreamProbe, config: Config
) -> None:
    async with agent(config) as one:
        gone = asyncio.create_task(one.submit(chunk("a", key="k")))
        await asyncio.sleep(0)
        gone.cancel()
        await one.submit(chunk("a", key="k"))
        assert await probe.texts() == ["a/0"]


async def test_a_chunk_above_the_servers_limit_is_refused_for_good(
    servers: ServerPair, probe: StreamProbe, config: Config
) -> None:
    async with agent(config) as one:
        limit = (await servers.leaf.connect("agent")).max_payload
        huge = Chunk(os.urandom(limit) + b"\n", 1)
        with pytest.raises(RefusedError) as caught:
            await one.submit(huge)
        assert caught.value.reason is RefusalReason.TOO_LARGE
        assert caught.value.retry_after is None
        await one.submit(chunk("a"))
        (batch,) = await probe.batches()
        assert batch.id.n == 1


def rows(size: int) -> Chunk:
    """Readings of so many bytes in all, which compress well."""
    line = b'{"ts":1,"device":"d","metric":"m","value":1}'
    count, rest = divmod(size, len(line) + 1)
    return Chunk((line + b"\n") * (count - 1) + line + b" " * rest + b"\n", count)


async def test_what_is_acknowledged_can_be_unpacked_by_the_jobs(probe: StreamProbe, config: Config) -> None:
    async with agent(config) as one:
        await one.submit(rows(MAX_UNPACKED_BYTES))
        with pytest.raises(RefusedError, match="send fewer readings") as caught:
            await one.submit(rows(MAX_UNPACKED_BYTES + 1))
        assert (caught.value.reason, caught.value.retry_after) == (RefusalReason.TOO_LARGE, None)
        assert one.value("petiole_unaccounted_readings", **{"class": CLASS}) == 0
        (stored,) = [m for m in await probe.messages() if H_ENCODING in m.headers]
        assert len(unpack(stored.data, compressed=True)) == MAX_UNPACKED_BYTES


async def test_a_piece_that_the_jobs_could_not_unpack_goes_into_several_batches(
    probe: StreamProbe, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_UNPACKED_BYTES", 200)
    async with agent(config) as one:
        await one.submit(chunk("a", 20, position="17"), "tail")
        assert await probe.texts() == [f"a/{number}" for number in range(20)]
        assert len(await probe.batches()) > 5
        assert (await one.leaf.intake.position("tail")).position == "17"


async def test_a_message_above_the_servers_limit_is_an_error_of_jetstream(
    servers: ServerPair, probe: StreamProbe, config: Config
) -> None:
    async with agent(config):
        limit = probe.nc.max_payload
        with pytest.raises(TooLargeError, match=f"{limit + 1} bytes, the server takes {limit}"):
            await probe.js.publish(batch_subject(servers.leaf.domain, CLASS, "http"), bytes(limit + 1))
        await probe.js.stream_info(probe.stream)


async def test_a_position_is_stored_with_its_batch_and_read_back(probe: StreamProbe, config: Config) -> None:
    async with agent(config) as one:
        assert (await one.leaf.intake.position("tail")).position is None
        await one.submit(chunk("a", position="17"), "tail")
        await one.submit(chunk("b", position="99"), "other")
        assert (await one.leaf.intake.position("tail")).position == "17"
        assert [one.position for one in await probe.batches()] == ["17", "99"]
    async with agent(config) as one:
        assert (await one.leaf.intake.position("tail")).position == "17"


async def test_an_ordered_stop_closes_the_run(probe: StreamProbe, config: Config) -> None:
    async with agent(config) as one:
        await one.submit(chunk("a", 3))
        await one.stop()
    first, last = await probe.ledgers()
    assert (first.run, first.n, first.final) == (one.run, 0, False)
    assert (last.run, last.n, last.final, last.stored) == (one.run, 1, True, ((1, 1),))
    assert last.readings == Readings(accepted=3, stored=3)
    assert one.state().acked[CLASS].closed


async def test_a_stop_answers_all_that_is_under_way_and_refuses_what_comes_after(
    probe: StreamProbe, config: Config
) -> None:
    async with agent(config) as one:
        under_way = [asyncio.create_task(one.submit(chunk(str(number)))) for number in range(50)]
        await asyncio.sleep(0)
        stopped = asyncio.create_task(one.stop())
        while (refusal := await refusal_of(one.submit(chunk("late")))) is None:
            continue
        assert refusal.reason is RefusalReason.STOPPING
        await stopped
        assert [task.done() and task.exception() for task in under_way] == [None] * 50
    assert {*await probe.texts()} >= {f"{number}/0" for number in range(50)}


class Late:
    """An input that holds something it has read when it is told to end."""

    name = "late"

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        await stopping.wait()
        await asyncio.sleep(0.05)
        await intake.submit(self.name, CLASS, chunk("late"))


async def test_what_an_input_had_read_before_a_stop_is_stored(probe: StreamProbe, config: Config) -> None:
    async with agent(config, [Late()]) as one:
        await one.stop()
        assert one.state().acked[CLASS].closed
    assert await probe.texts() == ["late/0"]


async def test_memory_in_flight_stays_within_its_bound_under_a_flood(
    servers: ServerPair, probe: StreamProbe, tmp_path: Path
) -> None:
    bound = 200_000
    publish = Publish(in_flight=Size(bound), window=4, batch_bytes=Size(50_000))
    highest = 0.0
    flooding = True

    async def watch(one: Agent) -> None:
        nonlocal highest
        while flooding:
            highest = max(highest, one.value("petiole_in_flight_bytes"))
            await asyncio.sleep(0)

    async with agent(leaf_config(servers.leaf, tmp_path / "state", publish)) as one:
        watcher = asyncio.create_task(watch(one))
        size = len(chunk("0000", 100).payload)
        await asyncio.gather(*(one.submit(chunk(f"{number:04}", 100)) for number in range(300)))
        flooding = False
        await watcher
        assert bound - size < highest <= bound
        assert one.value("petiole_in_flight_bytes") == 0
        labels = {"input": "http", "class": CLASS}
        assert one.value("petiole_accepted_readings_total", **labels) == 30_000
        assert one.value("petiole_stored_readings_total", **labels) == 30_000
    texts = await probe.texts()
    assert len(texts) == len({*texts}) == 30_000


async def test_a_device_that_publishes_on_its_own_does_no_harm(
    servers: ServerPair, probe: StreamProbe, config: Config
) -> None:
    device = await servers.leaf.connect("device")
    async with agent(config) as one:
        await one.submit(chunk("a", key="k", position="1"))
        for text in (b"21.5", b"not even JSON", b""):
            await device.publish(direct_subject(servers.leaf.domain, CLASS, "thermo", "celsius"), text)
        await device.flush()
        await _holds(probe, 5)
        epoch = one.state().epochs[CLASS]
        await one.crash()
    async with agent(config) as one:
        await one.submit(chunk("a", key="k", position="1"))
        assert (await one.leaf.intake.position("http")).position == "1"
        assert await probe.texts() == ["a/0"]
        assert one.state().epochs[CLASS] == epoch


async def _holds(probe: StreamProbe, messages: int) -> None:
    async def reached() -> bool:
        return len(await probe.messages()) == messages

    await until(reached, f"the stream holds {messages} messages")


async def test_a_user_is_shown_as_let_in_only_once_its_consumer_exists(
    servers: ServerPair, config: Config
) -> None:
    config.user = [User("app", "U" + 55 * "A", reads=[CLASS])]
    servers.leaf.pause()
    one = Agent(config)
    try:
        await asyncio.sleep(0)
        assert one.leaf.status()["users"] == ""
        servers.leaf.resume()
        await until(lambda: one.leaf.status()["users"] != "", "the user is let in")
        client = await servers.leaf.connect("agent")
        assert user_consumer("app") in await JetStream(client).consumer_names(leaf_stream("edge-1", CLASS))
    finally:
        servers.leaf.resume()
        await one.crash()


async def test_the_first_epoch_is_made_before_anything_is_stored(probe: StreamProbe, config: Config) -> None:
    async with agent(config) as one:
        await one.submit(chunk("a"))
        name = link_consumer(one.state().epochs[CLASS])
        assert await probe.link_consumers() == [name]
        made = (await probe.js.consumer_info(probe.stream, name)).created
        assert made < (await probe.messages())[0].time
