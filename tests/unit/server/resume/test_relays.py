"""Both relays over real sockets, with a line between them that breaks, hangs and comes back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from nacl.public import PrivateKey

from agent.base.metrics import Metrics
from agent.server.resume import hub, leaf, session
from agent.server.resume.hub import HubRelay
from agent.server.resume.leaf import LeafRelay
from agent.server.resume.stream import ANSWER_BYTES, HELLO_BYTES, Answer, Hello, Verdict
from tests.harness.http_harness import on_uvloop
from tests.harness.wait import until

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HOST = "127.0.0.1"


class BreakingLine:
    """Forwards bytes to the hub's relay. Where `most` is set, a connection breaks after so many bytes."""

    def __init__(self) -> None:
        self.to, self.port, self.most, self.hangs = 0, 0, 0, False
        self.made = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        try:
            other_reader, other_writer = await asyncio.open_connection(HOST, self.to)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, other_writer}
        self._writers |= ends
        left = [random.Random(self.made).randrange(self.most) if self.most else 2**62]
        ways = self._way(reader, other_writer, left), self._way(other_reader, writer, left)
        tasks = [asyncio.create_task(way) for way in ways]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.transport.abort()
        self._writers -= ends
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int]) -> None:
        with suppress(OSError):
            while data := await reader.read(5_000):
                if self.hangs:
                    continue
                writer.write(data[: max(0, left[0])])
                await writer.drain()
                left[0] -= len(data)
                if left[0] < 0:
                    return

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


class Relays:
    """A server at the hub that gives back what it gets, both relays and the line."""

    def __init__(self) -> None:
        self.line = BreakingLine()
        self.at_hub: list[Pair] = []
        self.links: list[asyncio.StreamWriter] = []
        self.metrics = Metrics()
        self.leaf: LeafRelay
        self.hub: HubRelay
        self.leaf_port = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.at_hub.append((reader, writer))
        with suppress(OSError):
            while data := await reader.read(3_000):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def run(self, name: str, relay: HubRelay | LeafRelay, port: int) -> None:
        self._tasks[name] = asyncio.create_task(relay.run())
        await until(lambda: _listens(port))

    async def end(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.gather(self._tasks.pop(name), return_exceptions=True)

    async def end_all(self) -> None:
        for name in list(self._tasks):
            await self.end(name)

    async def link(self, target: str = "hub.example:7422") -> Pair:
        """Link as a leaf's server does, through its proxy."""
        reader, writer = await asyncio.open_connection(HOST, self.leaf_port)
        self.links.append(writer)
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        self.answer = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[0]
        return reader, writer


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.transport.abort()
    return True


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Relays]:
    one = Relays()
    server = await asyncio.start_server(one.echo, HOST, 0)
    line = await asyncio.start_server(one.line.serve, HOST, 0)
    one.line.port = line.sockets[0].getsockname()[1]
    one.line.to, one.leaf_port = free_port(), free_port()
    one.hub = HubRelay((HOST, one.line.to), (HOST, server.sockets[0].getsockname()[1]), one.metrics)
    one.leaf = LeafRelay((HOST, one.leaf_port), ["nats-leaf://hub.example:7422"], one.line.port, one.metrics)
    monkeypatch.setitem(one.leaf._targets, "hub.example:7422", (HOST, one.line.port))
    await one.run("hub", one.hub, one.line.to)
    await one.run("leaf", one.leaf, one.leaf_port)
    try:
        yield one
    finally:
        await one.end_all()
        one.line.cut()
        for writer in (*one.links, *(writer for _, writer in one.at_hub)):
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
        server.close()
        line.close()


async def exchanged(link: Pair, size: int) -> None:
    """Send bytes and expect exactly these back."""
    data = random.Random(size).randbytes(size)
    reader, writer = link

    async def send() -> None:
        writer.write(data)
        await writer.drain()

    async with asyncio.timeout(60):
        sending = asyncio.create_task(send())
        assert await reader.readexactly(size) == data
        await sending


async def closed(link: Pair) -> None:
    async with asyncio.timeout(60):
        with suppress(OSError):
            assert await link[0].read() == b""


@on_uvloop
async def test_a_link_continues_over_breaks_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as relays:
        relays.line.most = 60_000
        link = await relays.link()
        await exchanged(link, 500_000)
        status = relays.leaf.status()
        assert status["bridged"] >= 5
        assert len(relays.at_hub) == 1
        counted = relays.metrics.registry.get_sample_value("petiole_link_bridged_total")
        assert counted is not None
        assert counted >= status["bridged"]


@on_uvloop
async def test_a_half_open_line_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as relays:
        link = await relays.link()
        await exchanged(link, 1_000)
        relays.line.hangs = True
        link[1].write(b"PING\r\n")
        await until(lambda: relays.line.made >= 3)
        relays.line.hangs = False
        relays.line.cut()
        assert await link[0].readexactly(6) == b"PING\r\n"
        await exchanged(link, 100_000)


@pytest.mark.parametrize("end", ["leaf", "hub"])
@on_uvloop
async def test_the_end_of_a_server_ends_the_link_at_the_other(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(monkeypatch) as relays:
        link = await relays.link()
        await exchanged(link, 1_000)
        near, far = (link, relays.at_hub[0]) if end == "leaf" else (relays.at_hub[0], link)
        near[1].close()
        if end == "hub":
            await closed(far)
        else:
            await until(lambda: far[1].is_closing())
        await until(lambda: relays.hub.status() == {"sessions": 0})


@on_uvloop
async def test_a_hub_relay_that_starts_again_ends_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as relays:
        link = await relays.link()
        await exchanged(link, 1_000)
        await relays.end("hub")
        again = HubRelay((HOST, relays.line.to), relays.hub._leaf_port, relays.metrics)
        await relays.run("hub", again, relays.line.to)
        await closed(link)
        await exchanged(await relays.link(), 10_000)


@on_uvloop
async def test_a_leaf_relay_that_starts_again_leaves_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "SESSION_SECONDS", 0.2)
    async with running(monkeypatch) as relays:
        await exchanged(await relays.link(), 1_000)
        await relays.end("leaf")
        await until(lambda: relays.hub.status() == {"sessions": 0})
        await until(lambda: relays.at_hub[0][1].is_closing())


@on_uvloop
async def test_a_link_ends_after_a_break_that_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf, "SESSION_SECONDS", 0.5)
    async with running(monkeypatch) as relays:
        link = await relays.link()
        await exchanged(link, 1_000)
        relays.line.to = free_port()
        relays.line.cut()
        await closed(link)


@on_uvloop
async def test_only_addresses_of_the_hub_are_relayed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as relays:
        await relays.link("other.example:7422")
        assert relays.answer.startswith("HTTP/1.1 403 ")


@on_uvloop
async def test_the_server_hears_why_the_hub_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as relays:
        relays.hub._leaf_port = (HOST, free_port())
        await relays.link()
        assert relays.answer.endswith(": its server is away")


@on_uvloop
async def test_a_stranger_gets_no_session_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as relays:
        link = await relays.link()
        await exchanged(link, 1_000)
        assert await asked(relays.line.to, Hello(bytes(32), 1, 0).encode(b"")) is Verdict.UNKNOWN
        assert await asked(relays.line.to, b"GET / HTTP/1.1\r\nHost: hub\r\n" + bytes(HELLO_BYTES)) is None
        await exchanged(link, 2_000)


@on_uvloop
async def test_a_silent_stranger_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_GREETING_SECONDS", 0.1)
    async with running(monkeypatch) as relays:
        assert await asked(relays.line.to, b"PT") is None
        assert relays.hub._greeting == 0


@on_uvloop
async def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as relays:
        monkeypatch.setattr(hub, "_MOST_SESSIONS", 1)
        link = await relays.link()
        await relays.link()
        assert relays.answer == f"HTTP/1.1 502 Relay {HOST}:{relays.line.port}: too many sessions"
        await exchanged(link, 1_000)


@on_uvloop
async def test_a_hub_that_claims_bytes_nobody_sent_ends_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = asyncio.Event()

    async def lies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(HELLO_BYTES)
        writer.write(Answer(Verdict.RESUMED, 1, bytes(PrivateKey.generate().public_key)).encode())
        await reader.read()
        writer.close()
        dropped.set()

    async with running(monkeypatch) as relays:
        liar = await asyncio.start_server(lies, HOST, 0)
        relays.line.to = liar.sockets[0].getsockname()[1]
        await closed(await relays.link())
        async with asyncio.timeout(60):
            await dropped.wait()
        liar.close()


async def asked(port: int, greeting: bytes) -> Verdict | None:
    """What the hub's relay answers; None where it closes the connection."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(greeting)
    async with asyncio.timeout(60):
        try:
            answer = await reader.read()
        except OSError:
            answer = b""
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()
    return Answer.decode(answer[:ANSWER_BYTES]).verdict if answer else None


@on_uvloop
async def test_a_closed_connection_is_a_broken_line() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), HOST, 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.transport.abort()
    await writer.wait_closed()
    with pytest.raises(ConnectionResetError):
        session.put(writer, b"a")
    server.close()


def test_a_session_ends_before_the_servers_give_up() -> None:
    """With a ping each 5 s and two that may be missing a server closes the link after 15 s."""
    assert session.SESSION_SECONDS < 15
