"""The tools do what the tests of faults take for granted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from agent.demo.loopback import LoopbackProxy
from tests.faults.tools import line as lines
from tests.faults.tools.disk import small_disk
from tests.faults.tools.line import Forwarder, Line, Quality, Windows, line
from tests.faults.tools.old_servers import old_server
from tests.faults.tools.packets import ACK, RST, SYN, Segment
from tests.harness.servers import LinkProxy

needs_tun = pytest.mark.skipif(lines.missing() is not None, reason=str(lines.missing()))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs root")


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
        proxy = LoopbackProxy(port)
        await proxy.start()
        await _a_cable_breaks_and_mends(proxy)
        proxy.stall()
        asleep = await Echo.through(proxy)
        async with asyncio.timeout(5):
            await proxy.stop()
        asleep.close()


@needs_tun
async def test_a_line_breaks_and_mends() -> None:
    with line() as one:
        async with echo_server(*_address(one)):
            await _a_cable_breaks_and_mends(one)


@needs_tun
async def test_a_line_loses_packets_and_carries_every_byte() -> None:
    with line(Quality(rate=1e6, round_trip=0.01, loss=20)) as one:
        async with echo_server(*_address(one)):
            echo = await Echo.through(one)
            assert await echo.answers(bytes(100_000), 60.0)
            echo.close()
        up, back = one.passed()
        assert up.lost > 0
        assert back.payload >= 100_000


HUB, LEAF = bytes([240, 0, 0, 1]), bytes([240, 0, 0, 2])


def _packet(ports: tuple[int, int], flags: int, acknowledged: int = 0, size: int = 0) -> bytes:
    """A packet with a segment, whose checksums nobody looks at."""
    tcp = struct.pack("!HHIIBBHHH", *ports, 7, acknowledged, 5 << 4, flags, 0, 0, 0)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40 + size, 0, 0, 64, 6, 0, LEAF, HUB)
    return ip + tcp + bytes(size)


def _played(quality: Quality) -> tuple[Forwarder, list[bytes]]:
    """A line of this quality since time 0, and what it gave back."""
    sent: list[bytes] = []
    one = Forwarder(sent.append)
    one.told("set", asdict(quality), 0.0)
    return one, sent


def test_a_packet_arrives_when_rate_and_round_trip_let_it() -> None:
    one, sent = _played(Quality(rate=1000, round_trip=2.0))
    for _ in range(2):
        one.take(_packet((5, 80), ACK, size=960), 0.0)
    arrived = []
    while (at := one.next()) is not None:
        one.step(at)
        arrived.append((at, len(sent)))
    assert arrived == [(2.0, 1), (3.0, 2)]


def test_a_segment_that_is_carried_again_is_counted_as_repeated() -> None:
    one, _ = _played(Quality())
    for acknowledged in (1, 1, 2):
        one.take(_packet((5, 80), ACK, acknowledged, size=100), 0.0)
    one.step(1.0)
    assert (one.ways[1].passed.payload, one.ways[1].passed.repeated) == (300, 200), (
        "its number is 7 each time"
    )


def test_a_packet_that_is_too_large_is_lost_without_a_word() -> None:
    one, sent = _played(Quality(largest=600))
    for size in (560, 561):
        one.take(_packet((5, 80), ACK, size=size), 0.0)
    one.step(1.0)
    assert [len(packet) for packet in sent] == [600]


def test_a_packet_that_finds_the_queue_full_is_dropped() -> None:
    one, _ = _played(Quality(rate=1000))
    for _ in range(20):
        one.take(_packet((5, 80), ACK, size=960), 0.0)
    way = next(way.passed for way in one.ways if way.passed.queue_full)
    assert way.queue_full == 5, "15,000 bytes wait at most"


def test_a_window_ends_with_a_reset_at_both_ends_and_new_connections_are_refused_until_the_next() -> None:
    one, sent = _played(Quality(windows=Windows(5.0, 1.0)))
    one.take(_packet((5, 80), SYN), 1.0)
    one.take(_packet((80, 5), ACK, acknowledged=8), 2.0)
    one.step(4.0)
    del sent[:]
    one.step(5.0)
    resets = [Segment.of(packet) for packet in sent]
    assert [(s.flags, s.ports) for s in resets if s] == [(RST | ACK, (80, 5)), (RST | ACK, (5, 80))]
    for at, answered in ((5.5, RST | ACK), (6.5, SYN)):
        del sent[:]
        one.step(at)
        one.take(_packet((6, 80), SYN), at)
        one.step(at + 0.1)
        segment = Segment.of(sent[-1])
        assert segment is not None
        assert segment.flags == answered


def test_an_end_that_missed_its_reset_is_reset_when_it_sends() -> None:
    one, sent = _played(Quality(windows=Windows(5.0, 1.0)))
    one.take(_packet((5, 80), ACK, acknowledged=8), 1.0)
    one.step(6.5)
    del sent[:]
    one.take(_packet((5, 80), ACK, acknowledged=9), 7.0)
    (segment,) = map(Segment.of, sent)
    assert segment is not None
    assert segment.flags == RST | ACK


def test_a_silent_window_loses_packets_and_resets_nothing() -> None:
    one, sent = _played(Quality(windows=Windows(5.0, 1.0, silent=True)))
    for at in (4.0, 5.5, 6.5):
        one.step(at)
        one.take(_packet((5, 80), ACK), at)
        one.step(at + 0.1)
    assert len(sent) == 2
    assert sum(way.passed.down for way in one.ways) == 1


def _address(one: Line) -> tuple[str, int]:
    host, _, port = one.listen.partition(":")
    return host, int(port)


@needs_tun
def test_a_line_leaves_nothing_behind_when_its_user_fails() -> None:
    def devices() -> str:
        return subprocess.run(("ip", "link"), capture_output=True, text=True, check=True).stdout

    found = []
    with contextlib.suppress(ZeroDivisionError), line() as one:
        found += [one._name, devices()]
        raise ZeroDivisionError
    assert found[0] in found[1]
    assert found[0] not in devices()


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
