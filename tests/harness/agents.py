"""A leaf's agent in this process, and what its stream holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agent.base.metrics import Metrics
from agent.config import Config, LeafMember, Nats, Publish, RegistrarConfig, Size, StreamClass
from agent.contract import (
    H_MESSAGE_ID,
    H_POSITION,
    Ledger,
    MessageId,
    batch_subject,
    ledger_subject,
    make_request,
    parse_ledger,
    parse_message_id,
    request_scope,
)
from agent.demo.plan import Member
from agent.jetstream import RawMessage
from agent.leaf.intake import Chunk, Input, RefusedError, UnknownOutcomeError
from agent.leaf.publish.pull_progress import parse_progress
from agent.leaf.state import State
from agent.leaf.state_file import StateFile, load
from agent.process.hub import HubAgent
from agent.process.leaf import LeafAgent
from agent.server.health import ServerHealth
from agent.testing.stored_stream import StoredStream, connected, rows_of
from tests.harness.servers import Leaf as LeafServer
from tests.harness.servers import ServerPair
from tests.harness.wait import until

CLASS = "normal"
CHUNK_DEVICE = "d"
"""The device of the readings in a `chunk`."""
_Answer = TypeVar("_Answer")


def leaf_config(
    server: LeafServer, state_dir: Path, publish: Publish | None = None, stream: StreamClass | None = None
) -> Config:
    """The configuration of an agent beside a test's server."""
    return Config(
        domain=server.domain,
        state_dir=state_dir,
        nats=Nats(
            server="external",
            listen=server.config.listen,
            seed_file=server.keys["agent"],
            system_seed_file=server.keys["agent_system"],
        ),
        class_=[stream or StreamClass()],
        publish=publish or Publish(),
    )


class Agent:
    """One run of a leaf's agent."""

    def __init__(self, config: Config, inputs: Iterable[Input] = ()) -> None:
        self.config = config
        self.metrics = Metrics()
        self.health = ServerHealth(self.metrics)
        config.state_dir.mkdir(exist_ok=True)
        self.state_path = config.state_dir / "state.json"
        self.leaf = LeafAgent(
            config,
            StateFile(self.state_path, load(self.state_path, config.domain)),
            self.metrics,
            list(inputs),
            self.health,
        )
        self._stopping = asyncio.Event()
        self._task = asyncio.create_task(self.leaf.run(self._stopping))

    @property
    def run(self) -> str:
        """The name of this run."""
        return str(self.leaf.status()["run"])

    def state(self) -> State:
        """The state as it is on disk."""
        return load(self.state_path, self.config.domain)

    async def ready(self) -> None:
        """Return when readings are taken."""
        await until(lambda: self.leaf.ready()[0], "the agent takes readings")

    async def submit(self, chunk: Chunk, input_name: str = "http") -> None:
        """Hand a chunk in."""
        await self.leaf.intake.submit(input_name, CLASS, chunk)

    async def stop(self) -> None:
        """Stop in good order."""
        self._stopping.set()
        await self._task

    async def crash(self) -> None:
        """End without draining or saving."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def value(self, name: str, **labels: str) -> float:
        """The value of a metric, 0 where it has none yet."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def epochs(self, why: str, cls: str = CLASS) -> float:
        """How many epochs this run began for a reason."""
        return self.value("petiole_epochs_total", **{"class": cls}, reason=why)


@asynccontextmanager
async def agent(config: Config, inputs: Iterable[Input] = ()) -> AsyncIterator[Agent]:
    """An agent that takes readings; it is stopped with the context unless it has ended by then."""
    one = Agent(config, inputs)
    try:
        await one.ready()
        yield one
    finally:
        await one.crash()


def chunk(
    text: str, count: int = 1, *, key: str | None = None, scope: str = "http", position: str | None = None
) -> Chunk:
    """A chunk of `count` readings that are told apart by `text`; a request of `scope` under `key`."""
    lines = b"".join(
        json.dumps({"ts": 1, "device": CHUNK_DEVICE, "metric": "m", "value": f"{text}/{number}"}).encode()
        + b"\n"
        for number in range(count)
    )
    request = None if key is None else make_request(key, request_scope(scope), lines)
    return Chunk(lines, count, request, position)


async def insist(one: Agent, what: Chunk) -> None:
    """Repeat a request under its key until it is stored, as a careful sender does."""
    assert what.request is not None
    async with asyncio.timeout(60):
        while True:
            try:
                return await one.submit(what)
            except RefusedError as refusal:
                if refusal.retry_after is None:
                    raise
                await asyncio.sleep(min(refusal.retry_after, 0.2))
            except UnknownOutcomeError:
                continue


@dataclass(frozen=True)
class Batch:
    """A batch as the stream holds it; `texts` are the values of its readings, `position` is that of its input
    without what the core puts before it."""

    seq: int
    id: MessageId
    count: int
    position: str | None
    time: str
    texts: list[str]


class StreamProbe(StoredStream):
    """What this project's own tests look for in a leaf's stream."""

    async def batches(self) -> list[Batch]:
        """All batches, in order."""
        prefix = batch_subject(self.domain, CLASS, "")
        return [_batch(one) for one in await self.messages() if one.subject.startswith(prefix)]

    async def texts(self) -> list[str]:
        """The values of all readings, in order."""
        return [text for one in await self.batches() for text in one.texts]

    async def ledgers(self) -> list[Ledger]:
        """All ledger records, in order."""
        subject = ledger_subject(self.domain, CLASS)
        return [parse_ledger(one.data) for one in await self.messages() if one.subject == subject]

    async def link_consumers(self) -> list[str]:
        """The names of the consumers that a link has, or had; those of a reader go by themselves."""
        return [name for name in await self.js.consumer_names(self.stream) if name.startswith("hub-")]


async def probe_stream(server: LeafServer) -> StreamProbe:
    """What this server's stream holds."""
    return StreamProbe(server.domain, await server.connect("agent"))


def ask_stream(
    member: Member, question: Callable[[StreamProbe], Awaitable[_Answer]], cls: str = CLASS
) -> _Answer:
    """Ask the stream of a leaf that runs as processes of its own."""

    async def run() -> _Answer:
        async with connected(member) as client:
            return await question(StreamProbe(member.domain, client, cls))

    return asyncio.run(run())


def _batch(message: RawMessage) -> Batch:
    rows = rows_of(message)
    return Batch(
        message.seq,
        parse_message_id(message.headers[H_MESSAGE_ID]),
        len(rows),
        None if H_POSITION not in message.headers else parse_progress(message.headers[H_POSITION]).position,
        message.time,
        [str(row["value"]) for row in rows],
    )


async def refusal_of(submitted: Awaitable[None]) -> RefusedError | None:
    """How a chunk was refused, None where it was stored."""
    try:
        await submitted
    except RefusedError as refusal:
        return refusal
    return None


@asynccontextmanager
async def registrar(servers: ServerPair, tmp_path: Path) -> AsyncIterator[None]:
    """The hub's agent."""
    config = Config(
        domain="hub",
        role="hub",
        state_dir=tmp_path / "hub-state",
        nats=Nats(
            server="external",
            listen=servers.hub.config.listen,
            seed_file=servers.hub.keys["registrar"],
            system_seed_file=servers.hub.keys["registrar_system"],
        ),
        registrar=RegistrarConfig(max_bytes=Size(64 * 2**20)),
        leaf=[LeafMember(user.domain, user.key, list(user.classes)) for user in servers.hub.config.leaves],
    )
    stopping, metrics = asyncio.Event(), Metrics()
    task = asyncio.create_task(HubAgent(config, metrics, ServerHealth(metrics)).run(stopping))
    try:
        yield
    finally:
        stopping.set()
        await task
