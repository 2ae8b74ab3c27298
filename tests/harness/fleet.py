"""A leaf of several classes by hand: what its agent and its link keeper would do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from nats.aio.client import Client
from nats.errors import Error as NatsError

from agent.contract import (
    H_MESSAGE_ID,
    H_SOURCE,
    Announce,
    Answer,
    Checkpoint,
    ClassAnswer,
    ClassState,
    announce_subject,
    batch_subject,
    deliver_subject,
    leaf_stream,
    leaf_subjects,
    link_consumer,
    new_epoch,
    new_run,
    parse_answer,
)
from agent.hub.registrar.aggregate import parse_source_header
from agent.jetstream import JetStream, JetStreamError
from tests.harness.servers import Leaf
from tests.harness.streams import STREAM

MACHINE = "test"
_PAYLOAD = b'{"device": "d", "metric": "m", "value": 1}\n'


@dataclass
class Shelf:
    """One class: its stream, link and checkpoint, and how many messages were stored."""

    domain: str
    cls: str
    epoch: str = field(default_factory=new_epoch)
    start: int = 1
    stored: int = 0
    confirmed: int = 0
    checkpoint: Checkpoint | None = None

    @property
    def stream(self) -> str:
        """The leaf's stream."""
        return leaf_stream(self.domain, self.cls)


class Member:
    """One leaf with its classes."""

    def __init__(self, leaf: Leaf, nc: Client, classes: Sequence[str]) -> None:
        self.leaf = leaf
        self.domain = leaf.domain
        self.nc = nc
        self.js = JetStream(nc)
        self.run = new_run()
        self.shelves = {cls: Shelf(leaf.domain, cls) for cls in classes}

    @classmethod
    async def make(cls, leaf: Leaf, classes: Sequence[str]) -> Member:
        """With its streams and link consumers."""
        member = cls(leaf, await leaf.connect("agent"), classes)
        for probe in member.shelves.values():
            subjects = [leaf_subjects(probe.domain, probe.cls)]
            await member.js.ensure_stream({**STREAM, "name": probe.stream, "subjects": subjects})
            await member._consume(probe)
        return member

    async def store(self, count: int, size: int = len(_PAYLOAD)) -> None:
        """So many batches in each class."""
        for probe in self.shelves.values():
            await asyncio.gather(*(self._store(probe, probe.stored + n, size) for n in range(1, count + 1)))
            probe.stored += count

    async def announce(self) -> Answer:
        """The answer, once the hub's registrar gives one; what it says is taken in as the agent would."""
        while True:
            try:
                data = (await self._announcement()).encode()
                reply = await self.nc.request(announce_subject(self.domain), data, timeout=30)
            except (NatsError, JetStreamError):
                await asyncio.sleep(0.1)
                continue
            answer = parse_answer(reply.data)
            if answer.refused is None:
                for cls, one in answer.classes.items():
                    self._take_in(self.shelves[cls], one)
                return answer
            await asyncio.sleep(1.0)

    async def repair(self, answer: Answer) -> int:
        """A new epoch for each class of which the hub has lost something; how many."""
        lost = [self.shelves[cls] for cls, one in answer.classes.items() if await self._is_lost(cls, one)]
        for probe in lost:
            probe.epoch, probe.start, probe.confirmed, probe.checkpoint = new_epoch(), 1, 0, None
            await self._consume(probe)
        return len(lost)

    async def begin_anew(self) -> None:
        """A new epoch for each class."""
        for probe in self.shelves.values():
            probe.epoch, probe.start = new_epoch(), probe.stored + 1
            await self._consume(probe)

    async def pause(self, until_time: str) -> None:
        """Let nothing flow until then (RFC 3339)."""
        for probe in self.shelves.values():
            verb = f"CONSUMER.PAUSE.{probe.stream}.{link_consumer(probe.epoch)}"
            await self.js.api(verb, {"pause_until": until_time})

    def ids(self) -> set[str]:
        """The ids of all that was stored."""
        return {
            f"{self.run}-{probe.cls}-{number}"
            for probe in self.shelves.values()
            for number in range(1, probe.stored + 1)
        }

    async def _store(self, probe: Shelf, number: int, size: int) -> None:
        subject = batch_subject(self.domain, probe.cls, "http")
        headers = {H_MESSAGE_ID: f"{self.run}-{probe.cls}-{number}"}
        await self.js.publish(subject, _PAYLOAD.ljust(size), headers)

    async def _consume(self, probe: Shelf) -> None:
        name = link_consumer(probe.epoch)
        await self.js.create_consumer(
            probe.stream,
            {
                "name": name,
                "durable_name": name,
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": probe.start,
                "ack_policy": "flow_control",
                "max_ack_pending": 10_000,
                "deliver_subject": deliver_subject(self.domain, probe.cls, probe.epoch),
            },
        )

    async def _announcement(self) -> Announce:
        classes = {}
        for cls, probe in self.shelves.items():
            info = await self.js.stream_info(probe.stream)
            classes[cls] = ClassState(
                probe.epoch, info.created, info.first, info.last, probe.confirmed, info.bytes
            )
        agreed = {cls: one.checkpoint for cls, one in self.shelves.items() if one.checkpoint is not None}
        return Announce(self.domain, MACHINE, self.run, {}, classes, agreed)

    def _take_in(self, probe: Shelf, answer: ClassAnswer) -> None:
        if answer.agreed is False:
            return
        probe.confirmed = answer.cursor
        probe.checkpoint = answer.checkpoint or probe.checkpoint

    async def _is_lost(self, cls: str, answer: ClassAnswer) -> bool:
        probe = self.shelves[cls]
        info = await self.js.consumer_info(probe.stream, link_consumer(probe.epoch))
        below = answer.certain and answer.cursor < info.ack_floor and info.ack_floor >= probe.start
        return answer.agreed is False or below


async def ids_in(js: JetStream, stream: str) -> dict[str, list[str]]:
    """The ids of all messages of an aggregate, by the leaf's stream, in its order."""
    info = await js.stream_info(stream)
    found: dict[str, list[str]] = {}
    for seq in range(info.first, info.last + 1):
        message = await js.get_message(stream, seq=seq)
        assert message is not None
        name, _ = parse_source_header(message.headers[H_SOURCE])
        found.setdefault(name, []).append(message.headers[H_MESSAGE_ID])
    return found
