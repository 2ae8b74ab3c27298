"""The leaf's agent when its server, its store or itself goes away: nothing acknowledged is lost or
doubled."""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections import Counter
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from agent.config import Config, Publish, Size, StreamClass
from agent.contract import H_SEALED_AT, direct_subject, parse_batch_headers
from agent.jetstream import JetStream, connection
from agent.leaf.intake import RefusalReason, RefusedError, UnknownOutcomeError
from agent.leaf.publish import limits, publisher, sender
from tests.harness.agents import CLASS, Agent, StreamProbe, agent, chunk, insist, leaf_config, probe_stream
from tests.harness.leaf_process import LeafProcess
from tests.harness.linked_pair import QUICK
from tests.harness.servers import Leaf as LeafServer
from tests.harness.servers import ServerPair, open_server_pair
from tests.harness.wait import until


class Load:
    """Senders that repeat each request under its key until it is answered."""

    def __init__(self, one: Agent, senders: int = 4) -> None:
        self.acknowledged: list[str] = []
        self._stopping = False
        self._tasks = [asyncio.create_task(self._send(one, f"s{number}")) for number in range(senders)]

    async def _send(self, one: Agent, name: str) -> None:
        number = 0
        while not self._stopping:
            number += 1
            await insist(one, chunk(f"{name}-{number}", key=f"{name}-{number}"))
            self.acknowledged.append(f"{name}-{number}/0")

    async def more(self, count: int) -> None:
        """Return when so many more requests were acknowledged."""
        want = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= want, f"{count} more requests are acknowledged")

    async def stop(self) -> None:
        """Return when all senders have their last answer."""
        self._stopping = True
        await asyncio.gather(*self._tasks)


def written_after(path: Path, moment: int) -> bool:
    """Whether a file was written after a moment of its clock (ns)."""
    return path.stat().st_mtime_ns > moment


async def all_is_there_once(probe: StreamProbe, acknowledged: list[str]) -> None:
    """Every acknowledged reading is in the stream exactly once, and so is every batch, without gaps."""
    batches = await probe.batches()
    assert Counter(text for batch in batches for text in batch.texts) == Counter(acknowledged)
    by_run: dict[str, list[int]] = {}
    for batch in batches:
        by_run.setdefault(batch.id.run, []).append(batch.id.n)
    for numbers in by_run.values():
        assert sorted(numbers) == list(range(1, len(numbers) + 1))


async def test_a_batch_that_waits_for_the_server_tells_when_it_was_sealed(
    servers: ServerPair, config: Config
) -> None:
    async with agent(config) as one:
        await servers.leaf.kill()
        await until(lambda: not one.leaf.ready()[0], "the agent has noticed")
        waiting = asyncio.create_task(one.submit(chunk("a")))
        await until(lambda: len(one.leaf._publisher.queue) == 1, "the draft is sealed")
        before, sealed_by = time.monotonic(), time.time_ns()
        await asyncio.sleep(0.5)  # the wait that has to show
        await servers.leaf.start()
        await waiting
        (message,) = [
            m for m in await (await probe_stream(servers.leaf)).messages() if H_SEALED_AT in m.headers
        ]
        headers = parse_batch_headers(message.headers)
        assert headers.sealed_at <= sealed_by
        assert headers.clock.monotonic <= before * 1e9
        assert one.value("petiole_publish_seconds_sum", **{"class": CLASS}) > 0.5


async def test_nothing_is_lost_or_doubled_when_the_server_is_killed_under_load(
    servers: ServerPair, config: Config
) -> None:
    async with agent(config) as one:
        load = Load(one)
        for _ in range(3):
            await load.more(100)
            await servers.leaf.kill()
            await servers.leaf.start()
        await load.more(100)
        await load.stop()
        await one.stop()
        assert one.value("petiole_reconnects_total") >= 3
        probe = await probe_stream(servers.leaf)
        await all_is_there_once(probe, load.acknowledged)
        record = (await probe.ledgers())[-1]
        assert record.final
        assert record.stored == ((1, record.n),)
        assert record.readings.stored == len(load.acknowledged)


async def test_the_outcome_of_a_hung_server_is_unknown_and_settles_when_it_goes_on(
    servers: ServerPair, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "PATIENCE", 0.6)
    monkeypatch.setattr(sender, "ACK_WAIT", 0.2)
    monkeypatch.setattr(sender, "RETRY_PAUSE", 0.1)
    async with agent(config) as one:
        await insist(one, chunk("before", key="before"))
        servers.leaf.pause()
        try:
            with pytest.raises(UnknownOutcomeError):
                await one.submit(chunk("a", key="k"))
            with pytest.raises(UnknownOutcomeError):
                await one.submit(chunk("a", key="k"))
        finally:
            servers.leaf.resume()
        await insist(one, chunk("a", key="k"))
        assert one.value("petiole_publish_retries_total", **{"class": CLASS}) > 0
        assert one.value("petiole_in_flight_bytes") == 0
        assert await (await probe_stream(servers.leaf)).texts() == ["before/0", "a/0"]


@pytest.mark.parametrize("noticed_by", ["pings", "unanswered batches"])
async def test_a_hung_server_that_reads_nothing_is_noticed_and_its_connection_dropped(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noticed_by: str
) -> None:
    config = leaf_config(servers.leaf, tmp_path / "state", Publish(in_flight=Size(2**26)))
    monkeypatch.setattr(publisher, "PATIENCE", 1.0)
    monkeypatch.setattr(sender, "ACK_WAIT", 60.0)
    monkeypatch.setattr(sender, "RETRY_WITHIN", 60.0 if noticed_by == "pings" else 0.5)
    monkeypatch.setattr(connection, "_PING_SECONDS", 0.3 if noticed_by == "pings" else 60.0)
    monkeypatch.setattr(connection, "_CONNECT_SECONDS", 0.5)
    others = _sockets(servers.leaf)
    async with agent(config) as one:
        load = Load(one, senders=1)
        await load.more(5)
        sockets = _sockets(servers.leaf) - others
        left = 0 if noticed_by == "pings" else 1  # system events are listened to over one of their own
        servers.leaf.pause()
        # More than sockets hold, so that the client is left with what it cannot send.
        huge = [
            chunk(base64.b64encode(os.urandom(1_000_000)).decode(), key=f"huge-{number}")
            for number in range(20)
        ]
        big = [asyncio.create_task(insist(one, what)) for what in huge]
        try:
            await until(lambda: not one.leaf.ready()[0], "the hung server is noticed")
            await until(lambda: len(sockets & _sockets(servers.leaf)) <= left, "its connection is gone")
        finally:
            monkeypatch.undo()  # a busy server is not taken for a hung one
            servers.leaf.resume()
        await asyncio.gather(*big)
        await load.more(5)
        await load.stop()
        probe = await probe_stream(servers.leaf)
        texts = Counter(await probe.texts())
        assert set(texts.values()) == {1}
        assert len(texts) == len(load.acknowledged) + len(huge)


def _sockets(server: LeafServer) -> set[int]:
    """The local ports of this process's connections to a server."""
    mine = psutil.Process().net_connections(kind="tcp")
    return {one.laddr.port for one in mine if one.raddr and one.raddr.port == server.port}


async def test_readings_are_refused_at_once_while_the_server_is_away(
    servers: ServerPair, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AWAY_GRACE", 0.3)
    monkeypatch.setattr(publisher, "PATIENCE", 0.5)
    async with agent(config) as one:
        await insist(one, chunk("before", key="before"))
        await servers.leaf.kill()
        # What was sent before the agent has seen it may be stored or not.
        await until(lambda: not one.leaf.ready()[0], "the agent sees it")
        refusals = [await _refusal(one, f"away-{number}") for number in range(20)]
        assert {refusal.reason for refusal in refusals} == {RefusalReason.UNAVAILABLE}
        assert all(refusal.retry_after for refusal in refusals)
        assert len(one.leaf._publisher.queue) == 0, "what was refused takes no memory"
        assert one.value("petiole_in_flight_bytes") == 0
        assert not one.leaf.ready()[0]
        await servers.leaf.start()
        await insist(one, chunk("after", key="after"))
        assert await (await probe_stream(servers.leaf)).texts() == ["before/0", "after/0"]


async def _refusal(one: Agent, text: str) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await one.submit(chunk(text, 100))
    return caught.value


async def test_a_stop_while_the_server_is_away_ends_and_leaves_the_run_open(
    servers: ServerPair, config: Config
) -> None:
    async with agent(config) as one:
        await one.submit(chunk("a"))
        await servers.leaf.kill()
        await until(lambda: not one.leaf.ready()[0], "the agent has noticed")
        late = asyncio.create_task(one.submit(chunk("late")))
        await asyncio.sleep(0)
        await asyncio.wait_for(one.stop(), 60)
        assert isinstance(late.exception(), RefusedError | UnknownOutcomeError)
        last = one.state().acked[CLASS]
        assert (last.run, last.n, last.closed) == (one.run, 1, False)
        await servers.leaf.start()
    assert not any(record.final for record in await (await probe_stream(servers.leaf)).ledgers())


async def test_a_first_start_that_never_saw_a_server_stops_in_order(
    servers: ServerPair, config: Config
) -> None:
    await servers.leaf.kill()
    one = Agent(config)
    await asyncio.sleep(0.3)
    await asyncio.wait_for(one.stop(), 60)
    assert one.state().acked == {}


async def test_requests_repeated_after_the_agent_was_killed_are_stored_once(
    probe: StreamProbe, config: Config
) -> None:
    for turn in range(3):
        process = await LeafProcess.start(config)
        process.ask(range(200 * turn + 200))
        await process.says("stored", 200 * turn + 50)
        await process.kill()
    process = await LeafProcess.start(config)
    process.ask(range(600))
    await process.says("stored", 600)
    await process.kill()
    await all_is_there_once(probe, [f"text-{number}/0" for number in range(600)])
    await _every_run_is_told_in_full(probe)


async def test_requests_that_a_stream_has_discarded_are_known_after_a_kill(
    servers: ServerPair, probe: StreamProbe, config: Config
) -> None:
    device = JetStream(await servers.leaf.connect("device"))
    subject = direct_subject(servers.leaf.domain, CLASS, "camera", "noise")
    small = {"max_bytes": 256 * 1024, "discard": "old"}
    process = await LeafProcess.start(config, **small)
    process.ask(range(20))
    await process.says("stored", 20)
    kept = config.state_dir / "requests.log"
    await until(lambda: kept.exists() and kept.read_text().count(":k") == 20, "the keys are on disk")

    async def discarded() -> bool:
        await device.publish(subject, os.urandom(20_000))
        return await probe.texts() == []

    await until(discarded, "the stream has discarded its batches")
    await process.kill()
    with kept.open("ab") as torn:
        torn.write(b'{"version":3,"kno')
    for _ in range(2):
        process = await LeafProcess.start(config, **small)
        process.ask(range(20))
        await process.says("stored", 20)
        await process.kill()
        assert await probe.texts() == [], "none is stored a second time"


async def test_requests_that_a_stream_has_discarded_are_known_after_it_discards_no_more(
    tmp_path: Path,
) -> None:
    discarding = StreamClass(CLASS, Size(256 * 1024), "old")
    refusing = StreamClass(CLASS, Size(2**20), "new")
    other = StreamClass("other", Size(2**20), "old")
    async with open_server_pair(tmp_path, "edge-1", classes=(CLASS, "other")) as servers:
        config = leaf_config(servers.leaf, tmp_path / "state", QUICK)
        device, probe = JetStream(await servers.leaf.connect("device")), await probe_stream(servers.leaf)
        subject = direct_subject(servers.leaf.domain, CLASS, "camera", "noise")
        kept = config.state_dir / "requests.log"

        async def discarded() -> bool:
            await device.publish(subject, os.urandom(20_000))
            return await probe.texts() == []

        async with agent(msgspec.structs.replace(config, class_=[discarding, other])) as one:
            await insist(one, chunk("text", key="key"))
            await until(lambda: kept.exists() and b":key" in kept.read_bytes(), "the key is on disk")
            await until(discarded, "the stream has discarded the batch")
        for _ in range(2):
            before = kept.stat().st_mtime_ns
            async with agent(msgspec.structs.replace(config, class_=[refusing, other])) as one:
                await until(partial(written_after, kept, before), "the keys are written again")
                await insist(one, chunk("text", key="key"))
            assert await probe.texts() == [], "it is not stored a second time"


async def _every_run_is_told_in_full(probe: StreamProbe) -> None:
    """The run after a killed one says how far that one came, whatever its state file knew."""
    stored: Counter[str] = Counter()
    highest: Counter[str] = Counter()
    for batch in await probe.batches():
        stored[batch.id.run] += batch.count
        highest[batch.id.run] = max(highest[batch.id.run], batch.id.n)
    told = {one.previous.run: one.previous for one in await probe.ledgers() if one.previous is not None}
    assert len(told) == 3
    for run, previous in told.items():
        assert (previous.n, previous.readings.stored) == (highest[run], stored[run])
        assert not previous.closed


async def test_a_batch_above_what_a_restarted_server_takes_is_refused_and_holds_up_nothing(
    servers: ServerPair, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "PATIENCE", 1.0)
    server = servers.leaf.server
    async with agent(config) as one:
        await insist(one, chunk("before", key="before"))
        servers.leaf.pause()
        with pytest.raises(UnknownOutcomeError):
            await one.submit(chunk(os.urandom(200_000).hex(), key="big"))
        await servers.leaf.kill()
        await server.set_config(replace(server.config, max_payload=100_000))
        async with asyncio.timeout(60):
            await insist(one, chunk("after", key="after"))
        assert one.value("petiole_in_flight_bytes") == 0
        await one.stop()
    probe = await probe_stream(servers.leaf)
    assert await probe.texts() == ["before/0", "after/0"]
    assert [reason for *_, reason in (await probe.ledgers())[-1].refused] == ["too_large"]
