"""A whole link: a leaf's agent and the hub's registrar over real servers, and what arrived where; and the
same with a leaf that discards its oldest messages when its stream is full."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from agent.config import Config, Publish, Seconds, Size, StreamClass
from agent.contract import (
    H_MESSAGE_ID,
    ContractError,
    Ledger,
    direct_subject,
    ledger_subject,
    link_consumer,
    parse_ledger,
    parse_message_id,
)
from agent.hub.registrar.service import Registrar
from agent.jetstream import ConsumerInfo, JetStreamError
from agent.leaf.inputs.shared import InputOptions
from agent.leaf.link.status import LinkState
from agent.testing.stored_stream import lines_of
from tests.harness.agents import (
    CHUNK_DEVICE,
    CLASS,
    Agent,
    StreamProbe,
    chunk,
    leaf_config,
    probe_stream,
)
from tests.harness.registrar import HubHand, hub_of
from tests.harness.servers import ServerPair
from tests.harness.streams import AGGREGATE, stored_messages
from tests.harness.wait import WAIT_SECONDS, until

QUICK = Publish(drain=Seconds(1.0))


class LinkedPair:
    """One leaf and the hub with their agents. `sent` are the texts that were acknowledged."""

    def __init__(self, servers: ServerPair, config: Config, hub: HubHand, probe: StreamProbe) -> None:
        self.servers, self.config, self.hub, self.probe = servers, config, hub, probe
        self.stack = AsyncExitStack()
        self.agent: Agent
        self.registrar: Registrar
        self.sent: list[str] = []
        self._registrar_stack = AsyncExitStack()

    async def start_agent(self) -> None:
        """A new run of the leaf's agent."""
        self.agent = Agent(self.config)
        await self.agent.ready()

    async def start_registrar(self, **options: Any) -> None:
        """A new registrar, with the options of `HubHand.registrar`."""
        self.registrar = await self._registrar_stack.enter_async_context(self.hub.registrar(**options))

    async def stop_registrar(self) -> None:
        """End the registrar."""
        await self._registrar_stack.aclose()

    async def send(self, count: int = 1) -> None:
        """Store readings on the leaf, a batch each."""
        for _ in range(count):
            text = str(len(self.sent))
            await self.agent.submit(chunk(text))
            self.sent.append(f"{text}/0")

    async def send_bytes(self, text: str) -> None:
        """Store one reading of this text."""
        await self.agent.submit(chunk(text))
        self.sent.append(f"{text}/0")

    @property
    def state(self) -> LinkState:
        return self.agent.leaf.link.status.state

    async def reaches(self, state: LinkState, seconds: float = WAIT_SECONDS) -> None:
        """Return when the link is in this state."""
        await until(lambda: self.state is state, f"the link is {state}, now {self.state}", seconds)

    async def arrived(self) -> list[str]:
        """The readings that the hub holds, by the texts of their batches, in its order."""
        batches = [one for one in await stored_messages(self.hub.js, AGGREGATE) if "._batch." in one.subject]
        rows = [json.loads(line) for batch in batches for line in lines_of(batch)]
        # The agent's own readings, such as the time to the first loss, come in between.
        return [row["value"] for row in rows if row.get("device") == CHUNK_DEVICE]

    async def all_there(self, seconds: float = WAIT_SECONDS) -> list[str]:
        """What the hub holds, once that is all that was sent."""

        async def reached() -> bool:
            try:
                return set(self.sent) <= set(await self.arrived())
            except JetStreamError:
                return False

        await until(reached, f"all {len(self.sent)} readings are at the hub", seconds)
        return await self.arrived()

    async def exactly_once(self, seconds: float = WAIT_SECONDS) -> None:
        """All that was sent is at the hub, once and in order."""
        assert await self.all_there(seconds) == self.sent

    async def agreed(self) -> None:
        """Return when leaf and hub agree on a checkpoint that covers what was sent so far."""
        last = (await self.probe.js.stream_info(self.probe.stream)).last
        keeper = self.agent.leaf.link.controller

        await self.hub.holds(self.config.domain, last)

        async def reached() -> bool:
            checkpoint = self.agent.leaf._state.current.checkpoint.get(CLASS)
            if checkpoint is not None and checkpoint.leaf_seq >= last:
                return True
            keeper.announce_now()
            await asyncio.sleep(0.5)  # the registrar takes ten announcements at once and then one a second
            return False

        await until(reached, "leaf and hub agree on what was sent")
        await self.reaches(LinkState.FLOWING)

    async def link_consumer(self) -> ConsumerInfo:
        """The link consumer of the present epoch."""
        return await self.probe.js.consumer_info(self.probe.stream, link_consumer(self.epoch))

    @property
    def epoch(self) -> str:
        """The present epoch."""
        return self.agent.leaf._state.current.epochs[CLASS]

    def epochs(self, why: str) -> float:
        """How many epochs were begun for a reason."""
        return self.agent.epochs(why)


Pair = TypeVar("Pair", bound=LinkedPair)


@asynccontextmanager
async def open_pair(
    kind: type[Pair], servers: ServerPair, config: Config, state: LinkState, **registrar: Any
) -> AsyncIterator[Pair]:
    """A pair of this kind whose link is in this state; `registrar` are options of `HubHand.registrar`."""
    pair = kind(servers, config, await hub_of(servers), await probe_stream(servers.leaf))
    await pair.start_registrar(**registrar)
    await pair.start_agent()
    try:
        await pair.reaches(state)
        yield pair
    finally:
        await pair.agent.crash()
        await pair.stop_registrar()


@asynccontextmanager
async def open_linked_pair(
    servers: ServerPair,
    state_dir: Path,
    state: LinkState = LinkState.FLOWING,
    inputs: Sequence[InputOptions] = (),
    **registrar: Any,
) -> AsyncIterator[LinkedPair]:
    """The same with the levels of these `inputs`."""
    config = leaf_config(servers.leaf, state_dir, QUICK)
    config.input = list(inputs)
    async with open_pair(LinkedPair, servers, config, state, **registrar) as pair:
        yield pair


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
        return {
            number
            for message in await stored_messages(self.hub.js, AGGREGATE)
            if (number := _number(message.headers))
        }

    async def ledgers(self) -> dict[str, Ledger]:
        """For each run the record at the hub that names most."""
        found: dict[str, Ledger] = {}
        subject = ledger_subject(self.config.domain, CLASS)
        for message in await stored_messages(self.hub.js, AGGREGATE):
            if message.subject == subject:
                one = parse_ledger(message.data)
                known = found.get(one.run)
                if known is None or known.readings.discarded <= one.readings.discarded:
                    found[one.run] = one
        return found

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

        await until(all_told, "each batch is at the hub or named as discarded")
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
