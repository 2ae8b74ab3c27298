"""The `http` input and its connections: what a proxy may read differently, several requests at once, senders
that read slowly or send no more. On the agent's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Iterator

import pytest

from agent.config import Seconds, Size
from tests.harness.http_harness import FULL, on_uvloop, request, serving
from tests.harness.wait import until

LENGTH = f"Content-Length: {len(FULL)}"
CHUNKED = "Transfer-Encoding: chunked"
IN_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(FULL), FULL)
STORED = b"HTTP/1.1 204 No Content\r\nServer: petiole\r\n\r\n"
PING = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
PONG = (
    b"HTTP/1.1 204 No Content\r\nServer: petiole\r\n"
    b"X-Influxdb-Version: petiole\r\nX-Influxdb-Build: petiole\r\n\r\n"
)
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def reading(number: int) -> bytes:
    return b'{"ts":%d,"device":"d","metric":"m","value":1}\n' % number


@pytest.mark.parametrize(
    "data",
    [
        request(IN_CHUNKS, LENGTH, CHUNKED),
        request(IN_CHUNKS, CHUNKED, LENGTH),
        request(IN_CHUNKS, CHUNKED, CHUNKED),
        request(IN_CHUNKS, "Transfer-Encoding: gzip, chunked"),
        request(IN_CHUNKS, "Transfer-Encoding: chunked, identity"),
        request(IN_CHUNKS, "Transfer-Encoding: ,chunked"),
        request(IN_CHUNKS, "Transfer-Encoding : chunked"),
        request(IN_CHUNKS, "Transfer-Encoding: \x0bchunked"),
        request(IN_CHUNKS, "Transfer-Encoding: xchunked"),
        request(IN_CHUNKS, CHUNKED, first="POST /v1/readings HTTP/1.0"),
        request(FULL, "Transfer-Encoding:", LENGTH),
        request(FULL, LENGTH, LENGTH),
        request(FULL, LENGTH, "Content-Length: 1"),
        request(FULL, f"{LENGTH}, {len(FULL)}"),
        request(FULL, f"Content-Length: +{len(FULL)}"),
        request(FULL, "Content-Length: 0x2d"),
        request(FULL, "Content-Length: 4_5"),
        request(FULL, f"Content-Length : {len(FULL)}"),
        request(FULL, "Content-Length:\r\n 45"),
        request(FULL, LENGTH, "X: a\r\n b"),
        request(FULL, LENGTH, "X: a\nContent-Length: 1"),
        request(FULL, LENGTH, "X: a\rContent-Length: 1"),
        request(FULL, LENGTH, "X: a\0b"),
        request(FULL, LENGTH, "no colon"),
        request(FULL, LENGTH, "Host: evil.example"),
        request(FULL, LENGTH, "Content-Type: text/plain"),
        request(FULL, LENGTH).replace(b"\r\n", b"\n"),
        request(FULL, LENGTH, first="POST /v1/readings HTTP/1.2"),
        request(FULL, LENGTH, first="POST /v1/readings HTTP/2.0"),
        request(FULL, LENGTH, first="POST /v1/rea dings HTTP/1.1"),
        request(b"%x\n%b\n0\n\n" % (len(FULL), FULL), CHUNKED),
        request(b"0x%b" % IN_CHUNKS, CHUNKED),
        request(b"%x\r\n%bX\r\n0\r\n\r\n" % (len(FULL), FULL), CHUNKED),
    ],
)
@on_uvloop
async def test_what_another_may_read_differently_is_refused_with_all_behind_it(data: bytes) -> None:
    async with serving() as served:
        answer = await served.raw(data + request(FULL, LENGTH))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"Server: petiole") == 1
        assert b"Connection: close" in answer
        assert b"the request is not HTTP" in answer
        assert served.core.stored == []
        assert served.metric("petiole_invalid_requests_total", reason="not_http") == 1


@on_uvloop
async def test_an_upgrade_is_not_made_and_the_body_is_read() -> None:
    async with serving() as served, served.connection() as (reader, writer):
        upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARA")
        writer.write(request(FULL, LENGTH, *upgrade) + request(IN_CHUNKS, CHUNKED, *upgrade))
        assert await reader.readexactly(2 * len(STORED)) == STORED * 2
        assert len(served.core.stored) == 2


@pytest.mark.parametrize("piece", [1, 7, 10_000])
@on_uvloop
async def test_requests_sent_at_once_are_answered_in_turn(piece: int) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (reading(2)[:9], reading(2)[9:]))
    bodies = [
        request(reading(1), f"Content-Length: {len(reading(1))}"),
        request(chunks + b"0\r\nX: y\r\n\r\n", CHUNKED),
        b"\r\n" + request(b"no json", "Content-Length: 7"),
        HEALTH,
        request(reading(3), f"Content-Length: {len(reading(3))}", "Connection: close"),
        request(reading(4), f"Content-Length: {len(reading(4))}"),
    ]
    data = b"".join(bodies)
    async with serving() as served, served.connection() as (reader, writer):
        for begin in range(0, len(data), piece):
            writer.write(data[begin : begin + piece])
            if piece == 1:
                await asyncio.sleep(0)
        statuses = re.findall(rb"HTTP/1.1 (\d+)", await reader.read())
        assert statuses == [b"204", b"204", b"400", b"200", b"204"]
        assert [chunk.payload for chunk in served.core.stored] == [reading(1), reading(2), reading(3)]


@on_uvloop
async def test_a_head_that_came_before_means_the_same_again() -> None:
    async with serving() as served, served.connection() as (reader, writer):
        for number in range(600):  # more than are remembered
            writer.write(request(FULL, LENGTH, f"X: {number % 300}"))
        assert await reader.readexactly(600 * len(STORED)) == STORED * 600
        writer.write(request(b"x" * len(FULL), LENGTH))
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")


@on_uvloop
async def test_a_sender_that_sends_no_more_is_answered() -> None:
    async with serving() as served, served.connection() as (reader, writer):
        served.core.open.clear()
        writer.write(request(FULL, LENGTH) * 2)
        await until(lambda: served.core.waiting == 1)
        writer.write_eof()
        served.core.open.set()
        assert await reader.read() == STORED * 2


@pytest.mark.parametrize("data", [b"POST / HT", request(FULL, "Content-Length: 1000"), b""])
@on_uvloop
async def test_a_sender_that_ends_within_a_request_is_not_answered(data: bytes) -> None:
    async with serving() as served, served.connection() as (reader, writer):
        writer.write(data)
        writer.write_eof()
        assert await reader.read() == b""
        assert served.core.stored == []


@contextlib.contextmanager
def hardly_reading(port: int) -> Iterator[socket.socket]:
    """A sender for which its kernel keeps a few kilobytes only."""
    with socket.socket() as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sender.connect(("127.0.0.1", port))
        sender.setblocking(False)
        yield sender


@on_uvloop
async def test_a_sender_that_reads_late_gets_every_answer() -> None:
    count, got = 20_000, b""
    loop = asyncio.get_running_loop()
    async with serving() as served:
        with hardly_reading(served.port) as sender:
            sending = asyncio.create_task(loop.sock_sendall(sender, PING * count))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(sending), 0.3)
            while len(got) < count * len(PONG):
                got += await loop.sock_recv(sender, 2**20)
            await sending
    assert got == PONG * count


@on_uvloop
async def test_a_sender_that_never_reads_is_given_up() -> None:
    async with serving(timeout=Seconds(0.2)) as served:
        with hardly_reading(served.port) as sender, contextlib.suppress(ConnectionError):
            while True:
                await asyncio.get_running_loop().sock_sendall(sender, PING * 1000)
        assert (await served.post(FULL))[0] == 204


@on_uvloop
async def test_what_comes_behind_a_request_under_way_is_not_read_into_memory() -> None:
    body = FULL * 20_000
    async with serving() as served:
        served.core.open.clear()
        with socket.create_connection(("127.0.0.1", served.port)) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
            sender.setblocking(False)
            loop = asyncio.get_running_loop()
            data = request(body, f"Content-Length: {len(body)}") * 12
            sending = asyncio.create_task(loop.sock_sendall(sender, data))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(sending), 1.0)
                raise AssertionError("10 MB were taken although nothing was stored")
            served.core.open.set()
            await sending
            got = b""
            while len(got) < 12 * len(STORED):
                got += await loop.sock_recv(sender, 65536)
        assert got == STORED * 12


@on_uvloop
async def test_a_refused_body_is_read_so_that_its_sender_reads_the_answer() -> None:
    async with serving(body=Size(1000)) as served, served.connection() as (reader, writer):
        writer.write(request(b"x" * 2_000_000, "Content-Length: 2000000"))
        await writer.drain()
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert answer.endswith(b"}")
