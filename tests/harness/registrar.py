"""A leaf and a hub by hand, for tests of the registrar: what the leaf's agent and the jobs would do; and a
hub that loses single messages for real."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.errors import NoRespondersError

from agent.base.metrics import Metrics
from agent.config import Config, LeafMember, Nats, Size, SyncInterval
from agent.config import RegistrarConfig as RegistrarConfig
from agent.contract import (
    DEFAULT_CLASS,
    H_MESSAGE_ID,
    H_SOURCE,
    Announce,
    Answer,
    Checkpoint,
    ClassAnswer,
    ClassState,
    Committed,
    announce_subject,
    batch_subject,
    committed_subject,
    leaf_stream,
    link_consumer,
    new_epoch,
    new_run,
    parse_answer,
)
from agent.hub.registrar.aggregate import parse_source_header
from agent.hub.registrar.service import Registrar
from agent.jetstream import JetStream, JetStreamError, StreamInfo
from agent.jetstream.connection import end
from agent.leaf.link.announcer import acknowledged
from agent.server import permissions
from tests.harness.servers import Leaf, ServerPair, open_server_pair
from tests.harness.streams import AGGREGATE, make_leaf_stream, make_link_consumer, stored_messages
from tests.harness.wait import SERVER_RETRY_SECONDS, WAIT_SECONDS, until

MACHINE = "test"
KEEP = 5
LAKE = "00000000-0000-4000-8000-000000000001"


class LeafHand:
    """The leaf's side of one class, by hand."""

    def __init__(self, leaf: Leaf, nc: Client, cls: str = DEFAULT_CLASS) -> None:
        self.domain, self.cls = leaf.domain, cls
        self.stream = leaf_stream(leaf.domain, cls)
        self.nc = nc
        self.js = JetStream(nc)
        self.epoch = new_epoch()
        self.run = new_run()
        self.sent = 0

    @classmethod
    async def make(cls, leaf: Leaf, stream_class: str = DEFAULT_CLASS) -> LeafHand:
        """With its stream and link consumer."""
        hand = cls(leaf, await leaf.connect("agent"), stream_class)
        await make_leaf_stream(hand.nc, hand.domain, hand.epoch, stream_class)
        return hand

    async def next_epoch(self, start: int) -> None:
        """Another link consumer, beginning at a sequence."""
        self.epoch = new_epoch()
        await make_link_consumer(
            self.nc,
            self.domain,
            self.epoch,
            self.cls,
            deliver_policy="by_start_sequence",
            opt_start_seq=start,
        )

    async def store(self, count: int = 1, size: int = 0) -> int:
        """Batches in the leaf's stream, padded to `size` bytes; returns the sequence of the last one."""
        seq = 0
        for _ in range(count):
            self.sent += 1
            message_id = f"{self.run}-{self.cls}-{self.sent}"
            subject = batch_subject(self.domain, self.cls, "http")
            seq = await self.js.publish(subject, b"{}\n".ljust(size), {H_MESSAGE_ID: message_id})
        return seq

    async def pause(self, until_time: str) -> None:
        """Let nothing flow until then (RFC 3339)."""
        consumer = link_consumer(self.epoch)
        await self.js.api(f"CONSUMER.PAUSE.{self.stream}.{consumer}", {"pause_until": until_time})

    async def acknowledged(self) -> bool:
        """Whether the leaf knows that the hub holds all."""
        info = await self.js.stream_info(self.stream)
        return (await self.js.consumer_info(self.stream, link_consumer(self.epoch))).ack_floor == info.last

    async def answers(self) -> bool:
        """Whether the leaf's server answers its agent."""
        try:
            await self.js.stream_info(self.stream)
        except JetStreamError:
            return False
        return True

    every: float | None = None
    """Seconds between its announcements, as it says."""

    async def announcement(self, checkpoint: Checkpoint | None = None, confirmed: int = 0) -> Announce:
        """What the leaf would announce now."""
        consumer = await self.js.find_consumer(self.stream, link_consumer(self.epoch))
        info = await self.js.stream_info(self.stream)
        acked = acknowledged(consumer, info)
        state = ClassState(
            self.epoch, info.created, info.first, info.last, confirmed, info.bytes, acked=acked
        )
        return Announce(
            domain=self.domain,
            machine=MACHINE,
            run=self.run,
            versions={"agent": "0.1.0"},
            classes={self.cls: state},
            checkpoint={} if checkpoint is None else {self.cls: checkpoint},
            every=self.every,
        )

    async def announce(self, checkpoint: Checkpoint | None = None, confirmed: int = 0) -> ClassAnswer:
        """The answer for the class; a refusal fails the test."""
        answer = await self.say((await self.announcement(checkpoint, confirmed)).encode())
        assert answer.refused is None, answer.refused
        return answer.classes[self.cls]

    async def refused(self, data: bytes) -> str:
        """The words in which an announcement is refused."""
        answer = await self.say(data)
        assert answer.refused is not None
        return answer.refused

    async def say(self, data: bytes) -> Answer:
        """The answer to whatever is announced, once the leaf's server knows of somebody who listens."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    reply = await self.nc.request(announce_subject(self.domain), data, timeout=30)
                except NoRespondersError:
                    await asyncio.sleep(0.05)
                else:
                    return parse_answer(reply.data)


class HubHand:
    """The hub's side: looks at the aggregate, starts and stops registrars."""

    def __init__(self, servers: ServerPair, nc: Client, jobs: Client) -> None:
        self.servers = servers
        self.js = JetStream(nc)
        self.nc = nc
        self.jobs = jobs
        self.metrics = Metrics()

    @asynccontextmanager
    async def registrar(
        self,
        *,
        knows_leaves: bool = True,
        members: list[LeafMember] | None = None,
        version: str | None = None,
        **settings: Any,
    ) -> AsyncIterator[Registrar]:
        """A registrar that runs as long as the context, on connections of its own. Its leaves are those that
        its server lets in, or these `members`. Its server says that it is of a `version`; `settings` are
        those of `[registrar]`."""
        self.metrics = Metrics()
        hub = self.servers.hub
        config = Config(
            domain="hub",
            role="hub",
            leaf=members
            or [
                LeafMember(user.domain, user.key, list(user.classes))
                for user in hub.config.leaves
                if knows_leaves
            ],
            nats=Nats(store_dir=hub.config.store_dir),
            registrar=RegistrarConfig(
                **{
                    "keep": KEEP,
                    "max_bytes": Size(64 * 2**20),
                    "sync_interval": SyncInterval(0.0),
                    **settings,
                }
            ),
        )
        async with (
            saying(version, hub.port) as port,
            self._run(config, f"nats://127.0.0.1:{port}") as registrar,
        ):
            yield registrar

    @asynccontextmanager
    async def _run(self, config: Config, url: str) -> AsyncIterator[Registrar]:
        hub = self.servers.hub
        nc = await hub.connect("registrar", servers=url)
        system = await hub.connect("registrar_system")
        registrar = Registrar(config, nc, system, self.metrics.registry)
        stopping = asyncio.Event()
        task = asyncio.create_task(registrar.run(stopping))
        try:
            await until(lambda: _ready(registrar), "the registrar is ready")
            yield registrar
        finally:
            stopping.set()
            async with asyncio.timeout(30):
                await task
            await end(nc)
            await end(system)

    async def aggregate(self) -> StreamInfo:
        """The aggregate now."""
        return await self.js.stream_info(AGGREGATE)

    async def holds(self, domain: str, seq: int) -> StreamInfo:
        """The aggregate, once its source of this leaf has reached a leaf sequence."""
        async with asyncio.timeout(SERVER_RETRY_SECONDS):
            while True:
                await asyncio.sleep(0.02)  # a connection that is closed answers without a turn of the loop
                try:
                    info = await self.aggregate()
                except JetStreamError:
                    continue
                if any(
                    one["name"] == leaf_stream(domain, "normal") and one.get("seq", 0) >= seq
                    for one in info.sources
                ):
                    # The server reads its last sequence first and the sources then: this one has both.
                    return await self.aggregate()

    async def leaf_sequences(self, domain: str, first: int) -> list[int]:
        """The leaf sequences that the aggregate holds of a leaf, from a hub sequence on, in its order."""
        messages = await stored_messages(self.js, AGGREGATE, first)
        found = [parse_source_header(message.headers[H_SOURCE]) for message in messages]
        return [leaf_seq for name, leaf_seq in found if name == leaf_stream(domain, "normal")]

    async def committed(self, record: Committed, stream: str = AGGREGATE) -> dict[str, Any]:
        """What the registrar answers to `ingest`, of the lake `LAKE` where the record names none."""
        whole = record if record.lake else replace(record, lake=LAKE)
        reply = await self.jobs.request(committed_subject(stream), whole.encode(), timeout=30)
        answer: dict[str, Any] = json.loads(reply.data)
        return answer

    def counted(self, name: str, **labels: str) -> float:
        """A metric of the running registrar."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def _ready(registrar: Registrar) -> bool:
    """Whether it has read the fleet back, or says why it does not."""
    begun = registrar._readiness.is_at(0) or registrar.trouble() is not None
    return begun and bool(registrar.status()["aggregates"])


@asynccontextmanager
async def saying(version: str | None, port: int) -> AsyncIterator[int]:
    """A port on which the server of another port answers as if it were of a version."""
    if version is None:
        yield port
        return
    said, instead = re.compile(rb'"version":"[0-9.]+"'), f'"version":"{version}"'.encode()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(said.sub(instead, data))
            await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, back), pass_on(there, writer), return_exceptions=True)

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def hub_of(servers: ServerPair) -> HubHand:
    """The hub's side of a server pair."""
    return HubHand(servers, await servers.hub.connect("registrar"), await servers.hub.connect("jobs"))


async def flowing(hub: HubHand, leaf: LeafHand, count: int = 1) -> StreamInfo:
    """The aggregate, once it has so many batches that a leaf stored after the registrar took it in."""
    await leaf.announce()
    return await hub.holds(leaf.domain, await leaf.store(count))


@asynccontextmanager
async def losing_world(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *domains: str
) -> AsyncIterator[ServerPair]:
    """Servers whose registrar's key may also delete single messages, which the product's may not."""
    with monkeypatch.context() as rendered:
        verbs = (*permissions._STREAM_VERBS, "MSG.DELETE")
        rendered.setattr(permissions, "_STREAM_VERBS", verbs)
        async with open_server_pair(directory, *domains) as one:
            yield one


async def lose(hub: HubHand, *seqs: int) -> None:
    """Take messages out of the aggregate."""
    for seq in seqs:
        await hub.js.api(f"STREAM.MSG.DELETE.{AGGREGATE}", {"seq": seq})


async def held_ids(hub: HubHand) -> dict[int, str]:
    """The message ids that the aggregate holds, by sequence."""
    return {one.seq: one.headers.get(H_MESSAGE_ID, "") for one in await stored_messages(hub.js, AGGREGATE)}
