"""A hub's server with a stream that is filled at once, for the benchmarks of the hub's side: a real
nats-server on this machine, which shares its cores with what is measured."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import ExternalStream, StorageType, StreamConfig, StreamSource

from agent.base.nats_server import find_binary
from agent.contract import DEFAULT_CLASS, HUB_DOMAIN, api_prefix, leaf_stream
from agent.demo.loopback import free_port
from hub_jobs.source.protocol import parse_headers
from hub_jobs.source.streams import SOURCE_HEADER, Columns

_TOGETHER: Final = 2_000
_WAIT_SECONDS: Final = 60.0
"""Without anything coming."""

Message = tuple[str, dict[str, str], bytes]
"""Subject, headers, payload."""


@dataclass(frozen=True, slots=True)
class Hub:
    """Where a hub's server runs: its files, its address, and where leaves dial."""

    directory: Path
    url: str
    leaf_url: str


@contextmanager
def hub() -> Iterator[Hub]:
    """A server with JetStream. Whoever reaches it may do anything."""
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as name:
        directory = Path(name)
        port = free_port()
        leafs = f'leafnodes {{ listen: "127.0.0.1:{port}" }}'
        with jetstream_server(directory / "hub", HUB_DOMAIN, leafs) as url:
            yield Hub(directory, url, f"nats-leaf://127.0.0.1:{port}")


@contextmanager
def jetstream_server(directory: Path, domain: str, more: str = "", jetstream: str = "") -> Iterator[str]:
    """A server in a directory of its own, at the address that it gives; `more` and `jetstream` are further
    lines of its configuration and of that of JetStream."""
    directory.mkdir()
    port = free_port()
    config = directory / "nats.conf"
    config.write_text(
        f'server_name: {domain}\nlisten: "127.0.0.1:{port}"\nmax_payload: 4MB\n{more}\n'
        f'jetstream: {{ store_dir: "{directory / "store"}", domain: {domain}, max_file_store: 64GB\n'
        f"  {jetstream} }}\n"
    )
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen([find_binary(), "-c", str(config)], stdout=log, stderr=log)
        try:
            yield f"nats://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


def fill(one: Hub, stream: str, messages: Iterable[Message]) -> None:
    asyncio.run(_fill(one.url, stream, messages))


def fill_from_leaf(one: Hub, stream: str, domain: str, messages: Iterable[Message]) -> None:
    """Make a stream at the hub that sources these messages from a leaf's; the leaf is gone afterwards."""
    dial = f'leafnodes {{ remotes: [ {{ urls: [ "{one.leaf_url}" ] }} ] }}'
    with jetstream_server(one.directory / domain, domain, dial) as url:
        held = asyncio.run(_fill(url, leaf_stream(domain, DEFAULT_CLASS), messages))
        asyncio.run(_source(one.url, stream, domain, held))
    shutil.rmtree(one.directory / domain)


async def _fill(url: str, stream: str, messages: Iterable[Message]) -> int:
    nc = await _connected(url)
    js = nc.jetstream()
    await js.add_stream(StreamConfig(name=stream, subjects=["tel.>"], storage=StorageType.FILE))
    count = 0
    # An answer for the last of some says that the server has taken in all of them.
    left = iter(messages)
    while some := list(islice(left, _TOGETHER)):
        for subject, headers, payload in some[:-1]:
            await nc.publish(subject, payload, headers=headers or None)
        subject, headers, payload = some[-1]
        await js.publish(subject, payload, headers=headers or None, timeout=_WAIT_SECONDS)
        count += len(some)
    held = (await js.stream_info(stream)).state.messages
    if held != count:
        raise RuntimeError(f"the server stored {held} of {count} messages")
    await nc.close()
    return count


async def _source(url: str, stream: str, domain: str, count: int) -> None:
    nc = await _connected(url)
    js = nc.jetstream()
    origin = ExternalStream(api=api_prefix(domain), deliver="")
    source = StreamSource(name=leaf_stream(domain, DEFAULT_CLASS), external=origin)
    await js.add_stream(StreamConfig(name=stream, sources=[source], storage=StorageType.FILE))
    loop, known = asyncio.get_running_loop(), 0
    async with asyncio.timeout(_WAIT_SECONDS) as limit:
        while known < count:
            await asyncio.sleep(0.05)  # nobody tells
            held = (await js.stream_info(stream)).state.messages
            if held > known:
                known = held
                limit.reschedule(loop.time() + _WAIT_SECONDS)
    await nc.close()


async def _connected(url: str) -> Client:
    async with asyncio.timeout(_WAIT_SECONDS):
        while True:
            try:
                return await nats.connect(url, allow_reconnect=False)
            except (NatsError, OSError):
                await asyncio.sleep(0.05)


def messages_of(columns: Columns) -> Iterator[Message]:
    """What a reader would hand out, as its device published it."""
    texts = columns.subjects, columns.headers, columns.payloads
    rows = zip(*(column.to_pylist() for column in texts), strict=True)
    for subject, block, payload in rows:
        headers = {name: value.decode() for name, value in parse_headers(block)}
        headers.pop(SOURCE_HEADER.decode(), None)
        yield subject.decode(), headers, payload
