"""A class that discards its oldest messages when it is full: what went is named, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from agent.config import LinkConfig
from agent.jetstream import JetStream, UnavailableError
from agent.jetstream.readers import StoredHeaders, read_headers
from agent.leaf.ledger.evictions.service import EvictionMonitor
from agent.leaf.link import controller
from agent.leaf.link.status import LinkState
from tests.harness.agents import CLASS
from tests.harness.linked_pair import LossyPair, open_lossy_pair
from tests.harness.servers import ServerPair
from tests.harness.wait import until


@pytest_asyncio.fixture
async def pair(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LossyPair]:
    """A linked pair with some batches at the hub. Records come each second, not each minute."""
    monkeypatch.setattr("agent.leaf.ledger.publisher.LEDGER_SECONDS", 1.0)
    async with open_lossy_pair(servers, tmp_path) as one:
        yield one


async def test_a_full_stream_takes_on_and_what_it_discarded_while_the_link_was_cut_is_named(
    pair: LossyPair,
) -> None:
    pair.servers.leaf.proxy.cut()
    await pair.reaches(LinkState.DOWN)
    await pair.fill(20)
    await pair.push(3)
    await pair.fill(5)

    def told() -> bool:
        return (
            pair.agent.value("petiole_discarded_readings_total", **{"class": CLASS}, reason="stream_full") > 9
        )

    await until(told, "the metric counts")
    pair.servers.leaf.proxy.restore()
    await pair.reaches(LinkState.FLOWING)
    await pair.adds_up()
    assert await pair.named(), "something was discarded"
    mine = (await pair.ledgers())[pair.agent.run]
    assert {reason for *_, reason in mine.discarded} == {"stream_full"}
    assert mine.readings.discarded == sum(readings for _, _, readings, _ in mine.discarded)
    assert sum(direct for _, _, direct, _ in mine.gone) == 0, "the device's came last and are still there"
    status = pair.agent.leaf.status()["classes"][CLASS]["discarded"]
    assert (status["readings"], status["in_doubt"]) == (mine.readings.discarded, 0)


async def test_a_class_is_changed_to_discard_and_back_by_a_restart_of_the_agent(pair: LossyPair) -> None:
    cls = pair.config.class_[0]
    for discard in ("new", "old"):
        await pair.agent.stop()
        pair.config.class_ = [msgspec.structs.replace(cls, discard=discard)]
        await pair.start_agent()
        info = await pair.probe.js.stream_info(pair.probe.stream)
        assert info.config["discard"] == discard
    await pair.fill(2)
    await pair.adds_up()
    assert not await pair.named()


@pytest.mark.parametrize("end", ["crash", "stop"])
async def test_what_a_device_pushed_out_while_no_agent_ran_is_named_by_the_next_one(
    pair: LossyPair, end: str
) -> None:
    pair.servers.leaf.proxy.cut()
    await pair.reaches(LinkState.DOWN)
    await pair.fill(6)
    await pair.agent.leaf._evictions.look(CLASS)  # the index is written with each look, in 10 s at the latest
    await (pair.agent.crash() if end == "crash" else pair.agent.stop())
    await pair.push(20)
    await pair.start_agent()
    pair.servers.leaf.proxy.restore()
    await pair.reaches(LinkState.FLOWING)
    await pair.adds_up()
    newest = (await pair.ledgers())[pair.agent.run]
    assert sum(direct for _, _, direct, _ in newest.gone) >= 7
    assert await pair.named()
    counted = pair.agent.value(
        "petiole_discarded_readings_total", **{"class": CLASS, "reason": "stream_full"}
    )
    assert pair.agent.leaf.status()["states"]["losing"].startswith(f"{counted:.0f} of class {CLASS};")


async def test_what_is_trimmed_is_not_discarded_and_a_hub_that_restarts_makes_nothing_lost(
    pair: LossyPair,
) -> None:
    for _ in range(3):
        await pair.fill(8)
        await pair.agreed()
    await pair.servers.hub.kill()
    await pair.servers.hub.start()
    await pair.reaches(LinkState.FLOWING)
    await pair.fill(8)
    await pair.agreed()
    await pair.adds_up()
    assert not await pair.named()
    assert pair.agent.value("petiole_trimmed_messages_total", **{"class": CLASS}) > 0


async def test_a_look_between_a_purge_and_its_answer_takes_nothing_trimmed_for_lost(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class rested since the look before, so the link consumer's counts begin anew and tell nothing."""
    monkeypatch.setattr(LinkConfig, "rest_seconds", lambda *_: 0.5)
    monkeypatch.setattr(LinkConfig, "announce_seconds", 1.5)
    monkeypatch.setattr(controller, "_LOOK_SECONDS", 0.5)
    looks: list[int] = []

    async def looks_later(_monitor: EvictionMonitor, _name: str) -> None:
        pass

    async def purge_and_look(js: JetStream, stream: str, up_to: int) -> int:
        purged = await purge(js, stream, up_to)
        await look(pair.agent.leaf._evictions, CLASS)
        looks.append(up_to)
        return purged

    purge, look = JetStream.purge, EvictionMonitor.look
    async with open_lossy_pair(servers, tmp_path) as pair:

        async def rests() -> bool:
            return not (await pair.hub.aggregate()).config.get("sources")

        await until(rests, "the hub has no source of the class")
        await pair.agent.leaf._evictions.look(CLASS)
        monkeypatch.setattr(EvictionMonitor, "look", looks_later)
        monkeypatch.setattr(JetStream, "purge", purge_and_look)
        while not looks:
            await pair.fill(1)
            await pair.agreed()
        monkeypatch.setattr(EvictionMonitor, "look", look)
        await pair.agent.leaf._evictions.look(CLASS)
        status = pair.agent.leaf.status()["classes"][CLASS]["discarded"]
        assert status == {"readings": 0, "direct": 0, "in_doubt": 0}


async def test_an_agent_takes_readings_while_it_reads_what_was_stored_without_it(
    pair: LossyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, goes_on = asyncio.Event(), asyncio.Event()

    async def read_slowly(*args: Any) -> bool:
        reading.set()
        await goes_on.wait()
        return await read_headers(*args)

    pair.servers.leaf.proxy.cut()
    await pair.reaches(LinkState.DOWN)
    await pair.fill(6)
    await pair.agent.crash()
    await pair.push(3)
    monkeypatch.setattr("agent.leaf.ledger.evictions.service.read_headers", read_slowly)
    await pair.start_agent()
    await reading.wait()
    await pair.fill(6)  # and these push out what is not read yet
    assert not goes_on.is_set()
    goes_on.set()
    pair.servers.leaf.proxy.restore()
    await pair.reaches(LinkState.FLOWING)
    await pair.adds_up()
    assert await pair.named()


async def test_a_reading_that_is_broken_off_goes_on_where_it_was(
    pair: LossyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    async def read_two(nc: Any, js: Any, stream: str, start: Any, take: Any) -> bool:
        taken = []

        def took(message: StoredHeaders) -> None:
            taken.append(message)
            take(message)

        begun.append(start["opt_start_seq"])
        if await read_headers(nc, js, stream, start, took, lambda: len(taken) >= 2):
            return True
        raise UnavailableError("the server stopped answering midway")

    monkeypatch.setattr("agent.jetstream.readers._PULL", 1)
    monkeypatch.setattr("agent.leaf.ledger.evictions.service.read_headers", read_two)
    monkeypatch.setattr("agent.leaf.ledger.evictions.service._SAVE_SECONDS", 0.05)
    pair.servers.leaf.proxy.cut()
    await pair.reaches(LinkState.DOWN)
    await pair.fill(5)
    await pair.agent.crash()
    (pair.config.state_dir / f"discards-{CLASS}.index").unlink()
    await pair.start_agent()
    await until(lambda: pair.agent.leaf._evictions._trackers[CLASS].loaded, "all of it is read")
    assert len(begun) >= 3
    assert begun == sorted(set(begun)), "none began where an earlier one had been"
    await pair.push(20)
    pair.servers.leaf.proxy.restore()
    await pair.reaches(LinkState.FLOWING)
    await pair.adds_up()
    assert await pair.named(), "by their batches, which only the index knows"


async def test_what_is_discarded_while_its_record_cannot_be_written_is_counted_and_told(
    pair: LossyPair,
) -> None:
    evictions, state_dir = pair.agent.leaf._evictions, pair.config.state_dir
    pair.servers.leaf.proxy.cut()
    await pair.reaches(LinkState.DOWN)
    in_the_way = state_dir / f".discards-{CLASS}.json.new"
    in_the_way.mkdir()
    await pair.fill(30)
    with pytest.raises(OSError, match=str(in_the_way)):
        await evictions.look(CLASS)
    in_the_way.rmdir()
    await evictions.look(CLASS)
    shown = evictions.status(CLASS)
    assert shown is not None
    labels = {"class": CLASS, "reason": "stream_full"}
    counted = pair.agent.value("petiole_discarded_readings_total", **labels)
    assert counted == shown["readings"] + shown["direct"] > 0
    ledger = pair.agent.leaf._ledger_publisher.last(CLASS)
    assert ledger.readings.discarded == shown["readings"]
