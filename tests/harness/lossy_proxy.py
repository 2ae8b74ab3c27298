"""A linked pair whose leaf discards its oldest messages when its stream is full."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

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
from agent.leaf.link.states import LinkState
from tests.harness.agents import CLASS, chunk, leaf_config
from tests.harness.linked_pair import QUICK, LinkedPair, open_pair
from tests.harness.servers import ServerPair
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until

MAX_BYTES = 128 * 1024
BULKY = 10_000
"""Bytes of noise in a message, so that a dozen of them fill the stream."""

Number = tuple[str, int]


class LossyPair(LinkedPair):
    """A linked pair whose leaf discards. `stored` are the readings of each batch that was acknowledged."""

    stored: dict[Number, int]

    async def fill(self, batches: int, readings: int = 3) -> None:
        """Store so many batches, one after the other."""
        for _ in range(batches):
            await self.agent.submit(chunk(os.urandom(BULKY).hex(), readings))
            last = self.agent.leaf._ledger_publisher.last(CLASS)
            self.stored[last.run, last.n] = readings

    async def push(self, messages: int) -> None:
        """As a device of this machine does, also without an agent."""
        device = await self.servers.leaf.connect("device")
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
async def open_lossy_pair(servers: ServerPair, directory: Path) -> AsyncIterator[LossyPair]:
    """A linked pair over which some batches have come to the hub."""
    cls = StreamClass(max_bytes=Size(MAX_BYTES), discard="old")
    config = leaf_config(servers.leaf, directory / "state", QUICK, cls)
    async with open_pair(LossyPair, servers, config, LinkState.FLOWING) as pair:
        pair.stored = {}
        await pair.fill(3)
        await pair.agreed()
        yield pair
