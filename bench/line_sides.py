"""What brings a backlog over a line, for the benchmark `lines`: Petiole, a raw source of nats-server, rsync,
a bridge of mosquitto, and plain TCP as the yardstick. Each has its hub's end at `Line.listen`, stores pieces
of random bytes at the other end while the line is cut, and tells which pieces the hub holds by content.

None encrypts or compresses on the line. rsync and mosquitto dial again after a second at most, and mosquitto
has more under way than the line holds. Petiole and nats-server keep their defaults.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import aiohttp
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from agent.contract import H_COUNT, aggregate, api_prefix, inbox_prefix
from agent.demo import plan
from agent.demo.loopback import free_port
from agent.jetstream import JetStream, RawMessage
from agent.leaf.link.status import LinkState
from agent.testing.stored_stream import lines_of
from bench.hub_stream import jetstream_server
from bench.relink_watch import deliver
from tests.faults.tools.line import Line
from tests.faults.world.configs import HubSettings, LeafSettings, hub_toml, leaf_toml
from tests.harness.agent_process import Agent
from tests.harness.wait import until

DOMAIN: Final = "edge-1"
_STORE: Final = "16GiB"
_STREAM: Final = "4GiB"
_TOGETHER: Final = 4
"""Requests, or messages read, at once."""
_REQUEST_BYTES: Final = 250_000
_READ: Final = 64
_LINKED_SECONDS: Final = 60.0
_AGAIN_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Way:
    """The line of a side and its figures: bytes a second, the round trip in seconds, and the bytes of a
    piece."""

    line: Line
    rate: float
    round_trip: float
    piece: int

    @property
    def together(self) -> int:
        """Pieces of a request of Petiole's: about as much as the line carries in a second."""
        return max(1, int(min(self.rate, _REQUEST_BYTES) / self.piece))


class Side(Protocol):
    """One side, running."""

    async def store(self, count: int) -> None:
        """Store the pieces from 0 on; returns when all are stored at the leaf."""

    def arrived(self) -> int:
        """About how many pieces the hub holds, at no cost."""

    async def pieces(self) -> Counter[int]:
        """How often the hub holds each piece. Raises `ValueError` for a piece that is not as it was sent."""


Opened = Callable[[Path, Way], AbstractAsyncContextManager[Side]]


def piece(number: int, size: int) -> bytes:
    """Return incompressible bytes that begin with their number."""
    return number.to_bytes(8, "big") + random.Random(number).randbytes(size - 8)


def numbered(pieces: Iterable[bytes]) -> Counter[int]:
    """The numbers of pieces. Raises `ValueError` for one that is not as it was sent."""
    found: Counter[int] = Counter()
    for one in pieces:
        number = int.from_bytes(one[:8], "big")
        if one != piece(number, len(one)):
            raise ValueError(f"piece {number} is not as it was sent")
        found[number] += 1
    return found


@dataclass(slots=True)
class Stream:
    """A stream of the hub that is followed, and read at the end. `unpack` gives the pieces of a message."""

    nc: Client
    name: str
    unpack: Callable[[RawMessage], Iterator[bytes]]
    came: dict[str, int] = field(default_factory=dict)
    """Pieces of each message, by its id."""

    async def follow(self) -> None:
        """Count the pieces of each message that comes from now on, by its headers."""

        async def see(message: Msg) -> None:
            headers = message.headers or {}
            # Records of Petiole's own come in between.
            if not message.subject.startswith("tel.") or "._batch.http" in message.subject:
                self.came[headers.get("Nats-Msg-Id", message.reply)] = int(headers.get(H_COUNT, 1))

        await deliver(self.nc, self.name, see, headers_only=True)

    async def pieces(self) -> Counter[int]:
        """How often it holds each piece."""
        js, found = JetStream(self.nc, timeout=30.0), Counter[int]()
        info = await js.stream_info(self.name)
        for begin in range(max(1, info.first), info.last + 1, _READ):
            span = range(begin, min(begin + _READ, info.last + 1))
            for message in await asyncio.gather(*(js.get_message(self.name, seq=seq) for seq in span)):
                if message is not None:
                    found += numbered(self.unpack(message))
        return found


@dataclass(slots=True)
class _Petiole:
    """Both agents with their servers; readings whose values are the pieces, over HTTP."""

    port: int
    way: Way
    hub: Stream

    async def store(self, count: int) -> None:
        places = asyncio.Semaphore(_TOGETHER)
        async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
            for first in range(0, count, self.way.together):
                await places.acquire()
                span = range(first, min(count, first + self.way.together))
                group.create_task(self._post(http, span, places))

    async def _post(self, http: aiohttp.ClientSession, span: range, places: asyncio.Semaphore) -> None:
        lines = []
        for number in span:
            text = base64.b64encode(piece(number, self.way.piece)).decode()
            reading = {"ts": number, "device": "camera", "metric": "picture", "value": {"base64": text}}
            lines.append(json.dumps(reading))
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": str(span.start)}
        url = f"http://127.0.0.1:{self.port}/v1/readings"
        async with http.post(url, data="\n".join(lines), headers=headers) as answer:
            if answer.status != 204:
                raise RuntimeError(f"a request was answered {answer.status}: {await answer.text()}")
        places.release()

    def arrived(self) -> int:
        return sum(self.hub.came.values())

    async def pieces(self) -> Counter[int]:
        return await self.hub.pieces()


def _readings(message: RawMessage) -> Iterator[bytes]:
    """The pieces of a batch of Petiole's."""
    if "._batch.http" in message.subject:
        for line in lines_of(message):
            yield base64.b64decode(json.loads(line)["value"]["base64"])


def _close(agent: Agent) -> None:
    """End an agent without a word, for its log ends with its directory."""
    with contextlib.redirect_stdout(None):
        agent.close()


@asynccontextmanager
async def petiole(directory: Path, way: Way, relayed: bool = False) -> AsyncIterator[Side]:
    """Run real agents as installed, with their defaults; `relayed`: the link continues after a break."""
    leaf_more, hub_more = "", ""
    if relayed:
        port = free_port()
        leaf_more, hub_more = f"[link]\nresume_port = {port}", f'resume_listen = "{way.line.near}:{port}"'
    member, centre = plan.member(directory, DOMAIN), plan.member(directory, "hub")
    url = f"nats-leaf://{way.line.host}:{way.line.port}"
    settings = LeafSettings(cls=f'max_bytes = "{_STREAM}"', max_file_store=_STORE, more=leaf_more)
    leaf = Agent(member, leaf_toml(member, url, settings))
    enrolled = (await asyncio.to_thread(leaf.petiole, "enrol")).stdout
    hub_settings = HubSettings(f'max_bytes = "{_STREAM}"', hub_more, _STORE)
    hub = Agent(centre, hub_toml(centre, way.line.listen, [enrolled], hub_settings))

    def flows() -> bool:
        return bool(leaf.status()["link"]["state"] == LinkState.FLOWING)

    async with AsyncExitStack() as stack:
        for agent in (hub, leaf):
            stack.callback(_close, agent)
            await asyncio.to_thread(agent.start)
        await until(lambda: asyncio.to_thread(flows), "the link flows", _LINKED_SECONDS)
        seed, prefix = str(centre.state / "keys" / "jobs.nk"), inbox_prefix("jobs")
        nc = await nats.connect(centre.nats_url, nkeys_seed=seed, inbox_prefix=prefix)
        stack.push_async_callback(nc.close)
        stream = Stream(nc, aggregate(0), _readings)
        await stream.follow()
        yield _Petiole(member.http_port, way, stream)


@dataclass(slots=True)
class _Raw:
    """Two servers; the hub's stream sources the leaf's, by a consumer that the hub's server makes."""

    leaf: Client
    size: int
    hub: Stream

    async def store(self, count: int) -> None:
        js = JetStream(self.leaf, timeout=30.0)
        for begin in range(0, count, _READ):
            span = range(begin, min(begin + _READ, count))
            await asyncio.gather(*(js.publish("piece", piece(n, self.size), _id(n)) for n in span))

    def arrived(self) -> int:
        return len(self.hub.came)

    async def pieces(self) -> Counter[int]:
        return await self.hub.pieces()


def _id(number: int) -> dict[str, str]:
    return {"Nats-Msg-Id": f"n{number}"}


def _data(message: RawMessage) -> Iterator[bytes]:
    yield message.data


@asynccontextmanager
async def raw(directory: Path, way: Way) -> AsyncIterator[Side]:
    """Two nats-servers with a stream each and the defaults of links, a message a piece. By default the server
    of the leaf waits a second for the first word of the hub (nats-server 2.15.1, `first_info_timeout`)."""
    listen = f'leafnodes {{ listen: "{way.line.listen}", no_advertise: true, compression: off }}'
    url = f"nats-leaf://{way.line.host}:{way.line.port}"
    dial = f'leafnodes {{ remotes: [ {{ urls: [ "{url}" ], compression: off }} ] }}'
    async with AsyncExitStack() as stack:
        clients = []
        for name, more in (("hub", listen), (DOMAIN, dial)):
            client = await _connected(stack.enter_context(jetstream_server(directory / name, name, more)))
            stack.push_async_callback(client.close)
            clients.append(client)
        hub, leaf = clients
        stream = {"storage": "file", "max_bytes": 4 * 2**30}
        await JetStream(leaf).api("STREAM.CREATE.pieces", stream | {"name": "pieces", "subjects": ["piece"]})
        source = {"name": "pieces", "external": {"api": api_prefix(DOMAIN), "deliver": ""}}
        await JetStream(hub).api("STREAM.CREATE.all", stream | {"name": "all", "sources": [source]})
        followed = Stream(hub, "all", _data)
        await followed.follow()
        yield _Raw(leaf, way.piece, followed)


async def _ignore(_: Exception) -> None:
    """The server is not there yet; the library would print it."""


async def _connected(url: str) -> Client:
    for _ in range(100):
        with contextlib.suppress(OSError, nats.errors.Error):
            return await nats.connect(url, allow_reconnect=False, error_cb=_ignore)
        await asyncio.sleep(_AGAIN_SECONDS)
    raise RuntimeError(f"no server at {url}")
