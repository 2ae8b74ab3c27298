"""The server of single questions over real connections: clients that are slow, wrong or gone."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from agent.base.http.framing import HttpRequest
from agent.base.http.response import Response
from agent.base.http.server import TEXT, QuestionServer
from tests.harness.http_harness import on_uvloop
from tests.harness.wait import until

ASKED = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG = 600.0


async def hello(_request: HttpRequest) -> Response:
    return Response(200, b"hello", TEXT)


@asynccontextmanager
async def serving(
    answer: Callable[[HttpRequest], Awaitable[Response]] = hello, *, limit: int = 1, seconds: float = LONG
) -> AsyncIterator[int]:
    server = QuestionServer(("127.0.0.1", 0), answer, limit=limit, seconds=seconds)
    port = await server.open()
    try:
        async with asyncio.timeout(60):
            yield port
    finally:
        await server.close()


async def answered(port: int, *sent: bytes) -> bytes:
    """All that comes back until the server closes; raises `OSError` for a reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in sent:
            writer.write(part)
            await writer.drain()
        return await reader.read(-1)
    finally:
        writer.transport.abort()


async def is_free(port: int) -> bool:
    """Whether a connection is answered, where one at a time is."""
    try:
        return (await answered(port, ASKED)).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


class Blocks(list[bytes]):
    """Counts those that were taken."""

    taken = 0

    def __iter__(self) -> Iterator[bytes]:
        for block in super().__iter__():
            self.taken += 1
            yield block


@on_uvloop
async def test_a_slow_reader_takes_a_large_answer_at_its_own_pace() -> None:
    blocks = Blocks([b"%c" % (65 + number % 26) * 65_536 for number in range(400)])

    async def large(_request: HttpRequest) -> Response:
        response = Response(200, content_type=TEXT, blocks=blocks)
        blocks.taken = 0
        return response

    async with serving(large) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASKED)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(100_000)
        assert blocks.taken < len(blocks)
        assert b"Content-Length: %d\r\n" % sum(map(len, blocks)) in head
        assert await reader.read(-1) == b"".join(blocks)[100_000:]
        writer.close()
        await writer.wait_closed()


@on_uvloop
async def test_a_client_that_never_reads_is_cut_off_without_a_word_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    many = [bytes(65_536)] * 400

    async def large(request: HttpRequest) -> Response:
        return Response(200, content_type=TEXT, blocks=many if request.path == "/large" else ())

    async with serving(large, seconds=0.2) as port:
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.sendall(b"GET /large HTTP/1.0\r\n\r\n")
            await until(lambda: is_free(port), "its connection is free again")
    assert not caplog.records


@pytest.mark.parametrize("begun", [b"", b"GET /x HTTP/1.1\r\nHost: local"])
async def test_a_client_that_leaves_before_its_request_is_whole_gets_no_answer(begun: bytes) -> None:
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begun)
        writer.write_eof()
        assert await reader.read(-1) == b""
        writer.close()
        await until(lambda: is_free(port), "its connection is free again")


async def test_a_connection_carries_one_request_whatever_comes_behind_it() -> None:
    async with serving(limit=3) as port:
        for sent in ((ASKED * 3,), (ASKED[:9], ASKED[9:] + ASKED), (ASKED, *[bytes(65_536)] * 16)):
            whole = await answered(port, *sent)
            assert whole.count(b"HTTP/1.1 200 OK") == 1
            assert whole.endswith(b"\r\nConnection: close\r\n\r\nhello")


async def test_a_client_that_says_that_it_sends_no_more_is_answered() -> None:
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASKED)
        writer.write_eof()
        assert (await reader.read(-1)).endswith(b"hello")
        writer.close()


async def test_head_has_the_head_of_the_answer_alone() -> None:
    async with serving() as port:
        whole = await answered(port, ASKED.replace(b"GET", b"HEAD"))
    assert b"Content-Length: 5\r\n" in whole
    assert whole.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (
            b"GET /x HTTP/1.1\r\nHost: h\r\nX-Long: " + b"a" * 100_000 + b"\r\n\r\n",
            b"a line above 8192 bytes",
        ),
        (b"GET /x HTTP/1.1\r\nHost: h\r\n" + b"X: a\r\n" * 100 + b"\r\n", b"more than 64 headers"),
        (b"GET /x HTTP/1.1\r\n\r\n", b"no header host"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"the request is not HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00", b"TLS, and this port has none"),
        (b"\x00\r\n\r\n", b"the request is not HTTP"),
    ],
)
async def test_what_is_no_request_is_answered_with_the_reason(sent: bytes, said: bytes) -> None:
    async with serving() as port:
        whole = await answered(port, sent)
    assert whole.startswith(b"HTTP/1.1 400")
    assert said in whole


@on_uvloop
async def test_an_abrupt_end_frees_the_connection_without_a_word_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    going, gone = asyncio.Event(), asyncio.Event()

    async def large(request: HttpRequest) -> Response:
        if request.path == "/large":
            going.set()
            await gone.wait()
            return Response(200, content_type=TEXT, blocks=[bytes(65_536)] * 100)
        return await hello(request)

    with capture_logs() as logs:
        async with serving(large) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASKED.replace(b"/x", b"/large"))
            await going.wait()
            at_once = struct.pack("ii", 1, 0)  # by a reset
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            writer.transport.abort()
            gone.set()
            await until(lambda: is_free(port), "its connection is free again")
    assert not logs
    assert not caplog.records


@on_uvloop
async def test_an_answer_that_takes_longer_than_a_connection_lasts_is_made_all_the_same() -> None:
    begun, cut, made = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(request: HttpRequest) -> Response:
        begun.set()
        await cut.wait()
        made.set()
        return await hello(request)

    async with serving(slow, seconds=0.1) as port:
        while not begun.is_set():  # a connection may be cut before its request is read
            assert await answered(port, ASKED) == b""
        cut.set()
        await made.wait()


async def test_an_answer_that_fails_is_said_and_logged() -> None:
    async def fail(_request: HttpRequest) -> Response:
        raise LookupError("of a test")

    with capture_logs() as logs:
        async with serving(fail) as port:
            assert (await answered(port, ASKED)).startswith(b"HTTP/1.1 500")
    assert [(entry["event"], entry["path"]) for entry in logs] == [("request failed", "/x")]


async def test_an_answer_under_way_is_sent_before_the_server_closes() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def wait(request: HttpRequest) -> Response:
        asked.set()
        await go.wait()
        return await hello(request)

    async with serving(wait, limit=2) as port:
        answer = asyncio.create_task(answered(port, ASKED))
        await asked.wait()
        asyncio.get_running_loop().call_soon(go.set)
    assert (await answer).endswith(b"hello")
