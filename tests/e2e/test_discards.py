"""A class that discards its oldest messages when it is full: what went is named, whatever happens."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from agent.config import Size, StreamClass
from agent.contract import (
    H_MESSAGE_ID,
    ContractError,
    Ledger,
    direct_subject,
    ledger_subject,
    parse_ledger,
    parse_message_id,
)
from agent.jetstream import RawMessage
from agent.link.states import LinkState
from tests.agents import CLASS, chunk, leaf_config, shelf
from tests.e2e.registrar import hub_of
from tests.roads import QUICK, Road
from tests.servers import World, until
from tests.streams import AGGREGATE

MAX_BYTES = 128 * 1024
BULKY = 10_000
"""Bytes of noise in a message, so that a dozen of them fill the stream."""

Number = tuple[str, int]


class Lossy(Road):
    """A road whose leaf discards. `stored` are the readings of each batch that was acknowledged."""

    stored: dict[Number, int]

    async def fill(self, batches: int, readings: int = 3) -> None:
        """Store so many batches, one after the other."""
        for _ in range(batches):
            await self.agent.submit(chunk(os.urandom(BULKY).hex(), readings))
            last = self.agent.leaf._books.last(CLASS)
            self.stored[last.run, last.n] = readings

    async def push(self, messages: int) -> None:
        """As a device of this machine does, also without an agent."""
        device = await self.world.leaf.connect("device")
        subject = direct_subject(self.config.domain, CLASS, "press", "noise")
        for _ in range(messages):
            await device.request(subject, b'"' + os.urandom(BULKY // 2).hex().encode() + b'"')

    async def arrived_numbers(self) -> set[Number]:
        """The batches that the hub holds."""
        return {number for message in await self._at_hub() if (number := _number(message.headers))}

    async def ledgers(self) -> dict[str, Ledger]:
        """For each run the record at the hub that names most."""
        found: dict[str, Ledger] = {}
        subject = ledger_subject(self.config.domain, CLASS)
        for message in await self._at_hub():
            if message.subject == subject:
                one = parse_ledger(message.data)
                known = found.get(one.run)
                if known is None or known.readings.discarded <= one.readings.discarded:
                    found[one.run] = one
        return found

    async def _at_hub(self) -> list[RawMessage]:
        info = await self.hub.js.stream_info(AGGREGATE)
        found = [await self.hub.js.get_message(AGGREGATE, seq=n) for n in range(info.first, info.last + 1)]
        return [one for one in found if one is not None]

    async def named(self) -> dict[Number, int]:
        """The batches that records at the hub call discarded; each range with its readings at its last
        number, 0 at the others."""
        return {
            (run, n): readings if n == last else 0
            for run, one in (await self.ledgers()).items()
            for first, last, readings, _ in one.discarded
            for n in range(first, last + 1)
        }

    async def adds_up(self) -> None:
        """Every batch that was acknowledged is at the hub or named, and not both."""

        async def all_told() -> bool:
            return (await self.arrived_numbers()) | (await self.named()).keys() >= self.stored.keys()

        await until(all_told, "each batch is at the hub or named as discarded", 30)
        arrived, named = await self.arrived_numbers(), await self.named()
        assert not arrived & named.keys()
        assert sum(named.values()) == sum(self.stored[one] for one in named)


def _number(headers: dict[str, str]) -> Number | None:
    try:
        ident = parse_message_id(headers.get(H_MESSAGE_ID, ""))
    except ContractError:
        return None
    return ident.run, ident.n


@asynccontextmanager
async def _open(world: World, directory: Path) -> AsyncIterator[Lossy]:
    cls = StreamClass(max_bytes=Size(MAX_BYTES), discard="old")
    config = leaf_config(world.leaf, directory / "state", QUICK, cls)
    road = Lossy(world, config, await hub_of(world), await shelf(world.leaf))
    road.stored = {}
    await road.start_registrar()
    await road.start_agent()
    try:
        await road.reaches(LinkState.FLOWING)
        await road.fill(3)
        await road.agreed()
        yield road
    finally:
        await road.agent.crash()
        await road.stop_registrar()


@pytest_asyncio.fixture
async def road(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lossy]:
    """A road over which some batches have come to the hub. Records come each second, not each minute."""
    monkeypatch.setattr("agent.bookkeeping.LEDGER_SECONDS", 1.0)
    async with _open(world, tmp_path) as one:
        yield one


async def test_a_full_stream_takes_on_and_what_it_discarded_while_the_link_was_cut_is_named(
    road: Lossy,
) -> None:
    road.world.leaf.proxy.cut()
    await road.reaches(LinkState.DOWN)
    await road.fill(20)
    await road.push(3)
    await road.fill(5)

    def told() -> bool:
        return (
            road.agent.value("petiole_discarded_readings_total", **{"class": CLASS}, reason="stream_full") > 9
        )

    await until(told, "the metric counts")
    road.world.leaf.proxy.restore()
    await road.reaches(LinkState.FLOWING)
    await road.adds_up()
    assert await road.named(), "something was discarded"
    mine = (await road.ledgers())[road.agent.run]
    assert {reason for *_, reason in mine.discarded} == {"stream_full"}
    assert mine.readings.discarded == sum(readings for _, _, readings, _ in mine.discarded)
    assert sum(direct for _, _, direct, _ in mine.gone) == 0, "the device's came last and are still there"
    status = road.agent.leaf.status()["classes"][CLASS]["discarded"]
    assert (status["readings"], status["in_doubt"]) == (mine.readings.discarded, 0)


@pytest.mark.parametrize("end", ["crash", "stop"])
async def test_what_a_device_pushed_out_while_no_agent_ran_is_named_by_the_next_one(
    road: Lossy, end: str
) -> None:
    road.world.leaf.proxy.cut()
    await road.reaches(LinkState.DOWN)
    await road.fill(6)
    await road.agent.leaf._discards.look(CLASS)  # the index is written with each look, in 10 s at the latest
    await (road.agent.crash() if end == "crash" else road.agent.stop())
    await road.push(20)
    await road.start_agent()
    road.world.leaf.proxy.restore()
    await road.reaches(LinkState.FLOWING)
    await road.adds_up()
    newest = (await road.ledgers())[road.agent.run]
    assert sum(direct for _, _, direct, _ in newest.gone) >= 7
    assert await road.named()


async def test_what_is_trimmed_is_not_discarded_and_a_hub_that_restarts_makes_nothing_lost(
    road: Lossy,
) -> None:
    for _ in range(3):
        await road.fill(8)
        await road.agreed()
    await road.world.hub.kill()
    await road.world.hub.start()
    await road.reaches(LinkState.FLOWING)
    await road.fill(8)
    await road.agreed()
    await road.adds_up()
    assert not await road.named()
    assert road.agent.value("petiole_trimmed_messages_total", **{"class": CLASS}) > 0
