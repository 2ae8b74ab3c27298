"""The tools do what the tests of faults take for granted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.demo.loopback import Proxy
from tests.faults.tools.disk import small_disk
from tests.faults.tools.old_servers import old_server
from tests.faults.tools.wire import Wire, missing, wire
from tests.harness.servers import LinkProxy

needs_root = pytest.mark.skipif(missing() is not None, reason=str(missing()))


class Echo:
    """Two ends of a connection through a proxy, which says back what it hears."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._heard = reader, writer, b""

    @classmethod
    async def through(cls, proxy: LinkProxy) -> Echo:
        """A new connection."""
        return cls(*await asyncio.open_connection(proxy.host, proxy.port))

    async def answers(self, text: bytes = b"x", seconds: float = 0.7) -> bool:
        """Whether what is said comes back in time. Raises `ConnectionError` where the connection ended."""
        self._writer.write(text)
        return await self.hears(text, seconds)

    async def hears(self, text: bytes, seconds: float = 5.0) -> bool:
        """Whether this comes in time."""
        try:
            async with asyncio.timeout(seconds):
                while len(self._heard) < len(text):
                    data = await self._reader.read(65536)
                    if not data:
                        raise ConnectionResetError
                    self._heard += data
        except TimeoutError:
            return False
        heard, self._heard = self._heard[: len(text)], self._heard[len(text) :]
        return heard == text

    def close(self) -> None:
        """End it."""
        self._writer.transport.abort()


@asynccontextmanager
async def echo_server(host: str, port: int = 0) -> AsyncIterator[int]:
    """A server that says back what it hears, and its port; its connections end with the context."""
    writers: list[asyncio.StreamWriter] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError):
            while data := await reader.read(4096):
                writer.write(data)

    server = await asyncio.start_server(echo, host, port)
    yield server.sockets[0].getsockname()[1]
    for writer in writers:
        writer.transport.abort()
    server.close()


async def _a_cable_breaks_and_mends(proxy: LinkProxy) -> None:
    one = await Echo.through(proxy)
    assert await one.answers()
    proxy.stall()
    assert not await one.answers(b"late")
    proxy.restore()
    assert await one.hears(b"late"), "what was sent into a half-open link comes when it is restored"
    proxy.cut()
    with pytest.raises(ConnectionError):
        await one.answers()
    with pytest.raises(ConnectionError):
        await (await Echo.through(proxy)).answers()
    proxy.restore()
    again = await Echo.through(proxy)
    assert await again.answers()
    for echo in (one, again):
        echo.close()


async def test_a_proxy_breaks_and_mends() -> None:
    async with echo_server("127.0.0.1") as port:
        proxy = Proxy(port)
        await proxy.start()
        await _a_cable_breaks_and_mends(proxy)
        proxy.stall()
        asleep = await Echo.through(proxy)
        async with asyncio.timeout(5):
            await proxy.stop()
        asleep.close()


@needs_root
async def test_a_wire_breaks_and_mends() -> None:
    with wire() as one:
        async with echo_server(*_address(one)):
            await _a_cable_breaks_and_mends(one)


@needs_root
async def test_a_wire_loses_packets_and_is_slow() -> None:
    with wire() as one:
        assert _datagrams(one) == 200
        one.lose(40)
        assert 20 < _datagrams(one) < 180
        one.restore()
        async with echo_server(*_address(one)):
            one.throttle(400)
            echo = await Echo.through(one)
            assert not await echo.answers(bytes(40_000)), "1.6 s at this rate, there and back"
            assert await echo.hears(bytes(40_000), 10.0)
            echo.close()


def _address(one: Wire) -> tuple[str, int]:
    host, _, port = one.listen.partition(":")
    return host, int(port)


def _datagrams(one: Wire) -> int:
    """How many of two hundred get through."""
    with socket.socket(type=socket.SOCK_DGRAM) as far, socket.socket(type=socket.SOCK_DGRAM) as near:
        far.bind(_address(one))
        far.settimeout(0.3)
        for _ in range(200):
            near.sendto(b"x", (one.host, one.port))
        got = 0
        with contextlib.suppress(TimeoutError):
            while far.recv(1):
                got += 1
    return got


@needs_root
def test_a_wire_leaves_nothing_behind_when_its_user_fails() -> None:
    def spaces() -> str:
        return subprocess.run(("ip", "netns", "list"), capture_output=True, text=True, check=True).stdout

    found = []
    with contextlib.suppress(ZeroDivisionError), wire() as one:
        found += [one._space, spaces()]
        raise ZeroDivisionError
    assert found[0] in found[1]
    assert found[0] not in spaces()


@needs_root
def test_a_small_disk_fills_and_is_freed(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        disk.fill()
        assert disk.room() < 4096
        with pytest.raises(OSError) as full:
            (disk.path / "more").write_bytes(bytes(8192))
        assert full.value.errno == errno.ENOSPC
        disk.free()
        assert disk.room() > 3 * 2**20
    assert not disk.path.is_mount()


def test_an_old_server_is_the_one_that_was_asked_for() -> None:
    said = subprocess.run((old_server("2.14.6"), "--version"), capture_output=True, text=True, check=True)
    assert "v2.14.6" in said.stdout
