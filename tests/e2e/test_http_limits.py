"""What bounds the `http` input: sizes, times and connections, and what it does when it begins and stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import zstandard

from agent import contract
from agent.base.metrics import Metrics
from agent.config import ConfigError, Seconds, Size
from agent.leaf.inputs.http import HttpOptions
from agent.leaf.inputs.http.input import HttpInput
from tests.harness.http_harness import FULL, Served, request, serving
from tests.harness.intakes import Core
from tests.harness.wait import until


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.ZstdCompressor().compress)]
)
async def test_a_body_that_unpacks_to_too_much_is_refused(
    encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    async with serving(body=Size(2**20)) as served:
        bomb = pack(b"\n" * 2**26)
        status, body, _ = await served.post(bomb, {"Content-Encoding": encoding})
        assert (status, body["error"].partition(";")[0]) == (413, "the body is above 1048576 bytes")
        assert (await served.post(FULL))[0] == 204


async def test_a_body_above_the_limit_is_refused_however_it_comes() -> None:
    async with serving(body=Size(1000)) as served:

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(50):
                yield FULL

        for body in (FULL * 50, pieces()):
            status, answer, _ = await served.post(body)
            assert status == 413
            assert "above 1000 bytes" in answer["error"]
        assert (await served.post(FULL))[0] == 204
        assert len(served.core.stored) == 1


async def test_a_body_is_refused_by_its_announced_length_before_it_is_sent() -> None:
    async with serving(body=Size(1000)) as served, served.connection() as (reader, writer):
        writer.write(request(b"", "Content-Length: 1001", "Expect: 100-continue"))
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")


@contextlib.asynccontextmanager
async def trickling(writer: asyncio.StreamWriter, piece: bytes) -> AsyncIterator[None]:
    """Sends a piece every few milliseconds."""

    async def trickle() -> None:
        while True:
            writer.write(piece)
            await asyncio.sleep(0.02)

    task = asyncio.create_task(trickle())
    try:
        yield
    finally:
        task.cancel()


@pytest.mark.parametrize(
    ("begun", "piece", "part"),
    [
        (request(FULL[:5], "Content-Length: 1000"), b"", b"body"),
        (request(b"", "Content-Length: 1000"), b" ", b"body"),
        (b"POST /v1/readings HTTP/1.1\r\nHost: localhost\r\n", b"", b"header"),
        (b"POST /v1/readings HTTP/1.1\r\nHost: localhost\r\n", b"X: y\r\n", b"header"),
    ],
)
async def test_what_does_not_come_or_trickles_is_answered_408(
    begun: bytes, piece: bytes, part: bytes
) -> None:
    async with serving(timeout=Seconds(0.3)) as served, served.connection() as (reader, writer):
        writer.write(begun)
        async with trickling(writer, piece):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
            assert b"the %b of the request did not come in time" % part in await reader.read()
        assert served.metric("petiole_invalid_requests_total", reason="timeout") == 1


async def test_a_slow_core_is_not_taken_for_a_slow_sender() -> None:
    async with serving(timeout=Seconds(0.1)) as served:
        served.core.open.clear()
        answer = asyncio.create_task(served.post(FULL))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.4):
                assert await asyncio.shield(answer) is None, "answered before it was stored"
        served.core.open.set()
        assert (await answer)[0] == 204


async def test_a_connection_may_rest_between_requests_longer_than_a_header_may_take() -> None:
    async with serving(timeout=Seconds(0.1)) as served, served.connection() as (reader, writer):
        for _ in range(3):
            writer.write(request(FULL, f"Content-Length: {len(FULL)}"))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204 ")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    assert await reader.read(1) is None, "the input spoke or closed"


async def answered(served: Served, status: bytes) -> bytes:
    """Repeats a request on connections of their own until it is answered by a status."""
    answer = b""
    while status not in answer[:20]:
        with contextlib.suppress(ConnectionError):
            answer = await served.raw(request(FULL, f"Content-Length: {len(FULL)}", "Connection: close"))
    return answer


async def test_connections_beyond_the_limit_are_answered_503_and_log_nothing(
    logged: pytest.LogCaptureFixture,
) -> None:
    async with serving(max_connections=2) as served:
        async with served.connection(), served.connection():
            answer = await answered(served, b" 503 ")
            assert b"Retry-After: 1" in answer
            assert b"all 2 connections are in use; nothing of this attempt was stored" in answer
            for _ in range(50):
                assert b" 503 " in (await served.raw(b""))[:20]
        await answered(served, b" 204 ")
    gc.collect()
    assert not logged.records


async def test_bodies_beyond_the_buffer_are_answered_503_and_the_others_go_on() -> None:
    async with serving(buffer=Size(100_000)) as served:
        served.core.open.clear()
        first = asyncio.create_task(served.post(FULL * 2000))
        await until(lambda: served.core.waiting == 1)
        status, body, headers = await served.post(FULL * 2000)
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "too many bodies are under way" in body["error"]
        served.core.open.set()
        assert (await first)[0] == 204
        assert (await served.post(FULL * 2000))[0] == 204


async def test_a_stop_answers_what_is_under_way_and_refuses_what_is_new() -> None:
    async with serving() as served, served.connection() as (reader, writer):
        served.core.open.clear()
        under_way = asyncio.create_task(served.post(FULL))
        writer.write(request(b"", f"Content-Length: {len(FULL)}")[:-2])
        await until(lambda: served.core.waiting == 1)
        served.stopping.set()
        await until(lambda: not accepts(served.port))
        writer.write(b"\r\n" + FULL)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: " in answer
        assert b"the agent is stopping; nothing of the request was stored" in answer
        served.core.open.set()
        assert (await under_way)[0] == 204
        assert len(served.core.stored) == 1


async def test_a_body_that_is_still_coming_does_not_hold_up_a_stop() -> None:
    async with serving() as served, served.connection() as (reader, writer):
        writer.write(request(FULL[:5], "Content-Length: 1000", "Expect: 100-continue"))
        await reader.readuntil(b"\r\n\r\n")
        served.stopping.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")


async def test_a_stop_closes_idle_connections() -> None:
    async with serving() as served, served.connection() as (reader, _):
        assert (await served.post(FULL))[0] == 204
        served.stopping.set()
        assert await reader.read() == b""


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_a_taken_port_is_told_before_anything_runs() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        one = HttpInput(HttpOptions(listen=listen), Metrics())
        assert one.obstacles() == [
            f"input 'http': {listen} is taken by another program; stop it or choose another port"
        ]
        with pytest.raises(ConfigError, match="is taken by another program"):
            await one.run(Core(), asyncio.Event())


@pytest.mark.parametrize("more", [0, 1])
def test_a_body_above_what_a_batch_holds_is_a_problem(more: int) -> None:
    options = HttpOptions(listen="127.0.0.1:0", body=Size(contract.MAX_UNPACKED_BYTES + more))
    assert len(HttpInput(options, Metrics()).check()) == more


@pytest.mark.parametrize("listen", ["192.0.2.1:0", "no-such-host.invalid:80"])
def test_an_address_that_is_not_this_machines_is_told(listen: str) -> None:
    (told,) = HttpInput(HttpOptions(listen=listen), Metrics()).obstacles()
    assert "cannot be listened on" in told


def alike(count: int) -> bytes:
    """Readings of a plant that hardly moves: 20 series, each second."""
    return b"".join(
        b'{"ts":%d,"device":"pump-%d","metric":"pressure","value":2.5,"tags":{"unit":"bar","site":"north"}}\n'
        % (1_790_000_000 + number // 20, number % 20)
        for number in range(count)
    )


async def test_an_honest_sender_may_pack_a_hundredfold_and_a_bomb_is_refused_with_its_bound() -> None:
    async with serving() as served:
        same = FULL * 20_000
        few = zstandard.ZstdCompressor().compress(same)
        assert len(same) < 2**20 < 10_000 * len(few), "any ratio is taken below a mebibyte"
        assert (await served.post(few, {"Content-Encoding": "zstd"}))[0] == 204
        packed = zstandard.ZstdCompressor(level=19).compress(alike(50_000))
        assert (await served.post(packed, {"Content-Encoding": "zstd"}))[0] == 204
        bomb = zstandard.ZstdCompressor().compress(FULL * 40_000)
        status, body, _ = await served.post(bomb, {"Content-Encoding": "zstd"})
        assert status == 413
        assert (
            "unpacks to more than 200 times the bytes that came, and more than 1048576 bytes" in body["error"]
        )
        dense = zstandard.ZstdCompressor().compress(b'{"metric":"m","value":1}\n' * 40_000)
        status, body, _ = await served.post(dense, {"Content-Encoding": "zstd"})
        assert status == 413
        assert "its readings have more than 200 times" in body["error"]
        assert [chunk.count for chunk in served.core.stored] == [20_000, 50_000]
