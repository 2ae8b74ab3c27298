"""The `socket` input over real sockets, before a core that keeps what it is given in memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.base.metrics import Metrics
from agent.cli.configuration import problems
from agent.config import Seconds, Size
from agent.contract import MAX_BATCH_READINGS, request_scope
from agent.demo.loopback import free_port
from agent.leaf.inputs.socket import SocketOptions
from agent.leaf.inputs.socket.input import SocketInput
from agent.leaf.intake import Chunk, RefusalReason, RefusedError, UnknownOutcomeError
from tests.harness.http_harness import on_uvloop
from tests.harness.input_senders import lines
from tests.harness.intakes import RunningInput, stopped_in_time
from tests.harness.wait import WAIT_SECONDS, until

FULL = RefusedError(RefusalReason.FULL, "the stream is full", 0.05)


class Listening(RunningInput):
    """A running input, its core and its connections."""

    def __init__(self, options: SocketOptions) -> None:
        metrics = Metrics()
        self.options = options
        self.input = SocketInput(options, metrics)
        super().__init__(self.input, metrics)
        self.writers: list[asyncio.StreamWriter] = []

    @property
    def place(self) -> str:
        """What stands after the scheme."""
        return self.options.listen.partition("://")[2]

    async def connect(self, host_from: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection, as soon as somebody listens; over TCP from the address `host_from`, if given."""
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
                    if self.options.listen.startswith("unix"):
                        reader, writer = await asyncio.open_unix_connection(self.place)
                    else:
                        host, _, port = self.place.rpartition(":")
                        reader, writer = await asyncio.open_connection(
                            host, int(port), local_addr=(host_from, 0) if host_from else None
                        )
                    self.writers.append(writer)
                    return reader, writer
                assert not self.running.done(), self.running
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def listening(listen: str, **options: Any) -> AsyncIterator[Listening]:
    async with stopped_in_time(Listening(SocketOptions(listen=listen, **options))) as one:
        yield one
    for writer in one.writers:
        writer.transport.abort()


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a stream listens."""
    return f"tcp://127.0.0.1:{free_port()}" if request.param == "tcp" else f"unix://{tmp_path}/lines.sock"


@on_uvloop
async def test_lines_are_stored_however_they_are_cut_and_bad_ones_are_counted(address: str) -> None:
    async with listening(address) as one:
        _, writer = await one.connect()
        for piece in (b"\n", lines(range(10))[:-7], lines([9])[-7:], b"nonsense\n", lines([10, 11])):
            writer.write(piece)
            await asyncio.sleep(0.02)
        writer.write(lines([12])[:-1])  # without its newline
        writer.write_eof()
        await one.stored(13)
        assert one.core.values() == list(range(13))
        assert one.invalid("bad_line") == 1
        await until(lambda: one.value("petiole_input_connections") == 0, "the connection is gone")
        assert [letter.received for letter in one.core.letters] == [b"nonsense"]
        assert ("pid " if address.startswith("unix") else "127.0.0.1:") in one.core.letters[0].at


@on_uvloop
async def test_line_protocol_is_taken_with_its_unit_and_its_device(address: str) -> None:
    async with listening(address, format="influx", precision="s", device_tag="box") as one:
        _, writer = await one.connect()
        writer.write(b'm,box=b7,t=x a=1,b="open 1790000000\nm a=2i 1790000000\nm a=3')
        writer.write_eof()
        await one.stored(1)
        assert one.core.rows() == [
            {"ts": "2026-09-21T14:13:20Z", "device": "edge-1", "metric": "m_a", "value": 2}
        ]
        await until(lambda: len(one.core.letters) == 2, "the last line may be a part of one")
        assert one.invalid("cut_off") == 1
        assert b"m a=3" in [letter.received for letter in one.core.letters]
        assert one.invalid("bad_line") == 1


@on_uvloop
async def test_a_sender_is_slowed_while_nothing_can_be_stored_and_a_small_one_gets_its_turn(
    address: str,
) -> None:
    async with listening(address, buffer=Size(2**18), max_connections=4) as one:
        one.core.open.clear()
        _, fast = await one.connect()
        sent, many = 0, lines(range(500))

        async def flood() -> None:
            nonlocal sent
            while True:
                fast.write(many)
                await fast.drain()
                sent += 500

        flooding = asyncio.create_task(flood())
        try:
            await until(lambda: one.core.waiting > 0, "the first are on their way")
            before = -1
            async with asyncio.timeout(WAIT_SECONDS):
                while before < sent:  # its kernel takes some, then nothing
                    before = sent
                    await asyncio.sleep(0.3)
            held = one.core.waiting * 2**18
            assert held <= 2**20
            assert not flooding.done()
            one.core.open.set()
            await one.stored(before + 2000)
            _, small = await one.connect()
            small.write(lines([-1]))
            own = lines([-1])[1:]  # the time of arrival is written before it
            await until(lambda: any(own in chunk.payload for chunk in one.core.stored), "it had its turn")
        finally:
            flooding.cancel()
            await asyncio.wait([flooding])


@on_uvloop
async def test_a_sender_of_lines_that_are_too_long_is_slowed_while_nothing_can_be_kept(address: str) -> None:
    async with listening(address, buffer=Size(2**18), max_connections=4, line=Size(256)) as one:
        one.core.refuse = FULL
        _, writer = await one.connect()
        sent, most, line = 0, 2**24, b"x" * 300 + b"\n"

        async def flood() -> None:
            nonlocal sent
            while sent < most:
                writer.write(line * 50)
                await writer.drain()
                sent += 50 * len(line)

        flooding = asyncio.create_task(flood())
        before = -1
        async with asyncio.timeout(60):
            while before < sent:  # its kernel takes some, then nothing
                before = sent
                await asyncio.sleep(0.5)
        flooding.cancel()
        await asyncio.wait([flooding])
        assert sent < most, "no more is read than may be held"


@on_uvloop
async def test_lines_of_a_connection_are_stored_in_order_however_many_fit_a_block(address: str) -> None:
    """A block of short lines has more readings than a batch may have."""
    async with listening(address) as one:
        store, refusals = one.core.submit, iter([FULL] * 3)

        async def slowly(input_name: str, cls: str, chunk: Chunk) -> None:
            if one.core.stored and (refusal := next(refusals, None)) is not None:
                raise refusal
            await store(input_name, cls, chunk)
            await asyncio.sleep(0.01)

        one.core.submit = slowly  # type: ignore[method-assign]
        _, writer = await one.connect()
        for first in range(0, 30_000, 100):
            writer.write(b"".join(b'{"metric":"n","value":%d}\n' % n for n in range(first, first + 100)))
            await writer.drain()
        await one.stored(30_000)
        assert max(chunk.count for chunk in one.core.stored) == MAX_BATCH_READINGS
        assert one.core.values() == list(range(30_000))


@on_uvloop
async def test_limits_hold_of_connections_lines_and_other_languages(address: str) -> None:
    async with listening(address, max_connections=2, line=Size(1024)) as one:
        (_, writer), (_, other) = await one.connect(), await one.connect()
        await until(lambda: one.value("petiole_input_connections") == 2, "both are open")
        third, _ = await one.connect()
        with contextlib.suppress(ConnectionResetError):
            assert await third.read() == b""
        assert one.invalid("connections") == 1
        other.write(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n" + lines([-1]))
        await until(lambda: one.invalid("http") == 1, "HTTP is known for what it is")
        writer.write(b"x" * 5000 + b"\n" + lines([1], "y" * 2000) + lines([2]) + b"\x1b[2J<b>\n")
        await one.stored(1)
        assert one.core.values() == [2]
        assert (one.invalid("too_long"), one.invalid("bad_line")) == (2, 1)
        assert sorted(letter.received for letter in one.core.letters) == [b"", b"", b"\x1b[2J<b>"]
        _, noise = await one.connect()
        noise.write(b"x\n" * 3000)
        await until(lambda: one.invalid("garbage") == 1, "a sender of nothing but noise is let go")
        await until(lambda: one.value("petiole_input_connections") == 1, "the first is open")


@on_uvloop
async def test_a_connection_that_is_silent_is_closed(address: str) -> None:
    async with listening(address, idle=Seconds(0.5)) as one:
        reader, _ = await one.connect()
        assert await reader.read() == b""
        await until(lambda: one.value("petiole_input_connections") == 0, "none is left")


@on_uvloop
async def test_a_group_is_answered_and_stored_once(address: str) -> None:
    async with listening(address, reply=True, max_connections=4, buffer=Size(2**18)) as one:
        reader, writer = await one.connect()

        async def say(group: bytes) -> bytes:
            writer.write(group)
            return (await reader.readline()).strip()

        assert await say(lines([1, 2]) + b"#k1\n") == b"ok k1 2"
        assert await say(lines([1, 2]) + b"#k1\n") == b"ok k1 2"
        assert one.core.values() == [1, 2]
        assert (await say(lines([3]) + b"#k1\n")).startswith(b"refused k1 the key was used")
        assert (await say(lines([3]) + b"\nnonsense\n#k2\n")).startswith(b"refused k2 line 3: ")
        assert await say(b"#k3\n") == b"refused k3 the group holds no reading"
        assert (await say(lines([3]) + b"#no key\n")).startswith(b"refused - ")
        one.core.refuse = RefusedError(RefusalReason.FULL, "the stream\n is full", 7)
        assert await say(lines([4]) + b"#k4\n") == b"later k4 7 the stream\\n is full"
        one.core.refuse = UnknownOutcomeError("nobody knows")
        assert (await say(lines([4]) + b"#k4\n")).startswith(b"later k4 1 nobody knows")
        one.core.refuse = None
        assert await say(lines([4]) + b"#k4\n") == b"ok k4 1"
        writer.write(lines([5]) + b"#k5\n" + lines([6]))
        writer.write_eof()
        assert await reader.read() == b"ok k5 1\n", "what no key closed is not stored"
        assert one.core.values() == [1, 2, 4, 5]
        reader, writer = await one.connect()
        writer.write(lines(range(10_000)))
        assert (await reader.readline()).startswith(b"refused - a group has 65536 bytes at most")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""


@on_uvloop
async def test_senders_that_go_in_the_middle_of_a_group_leave_its_room_to_others(address: str) -> None:
    async with listening(address, reply=True, max_connections=4, buffer=Size(2**18)) as one:
        for _ in range(10):
            _, writer = await one.connect()
            writer.write(lines(range(600)))
            writer.write_eof()
            await until(lambda: one.value("petiole_input_connections") == 0, "it has gone")
        reader, writer = await one.connect()
        writer.write(lines([1]) + b"#k1\n")
        async with asyncio.timeout(WAIT_SECONDS):
            assert await reader.readline() == b"ok k1 1\n"
        assert one.core.values() == [1]


@on_uvloop
async def test_two_machines_that_count_alike_do_not_meet_and_one_that_connects_again_is_known() -> None:
    listen = f"tcp://127.0.0.1:{free_port()}"
    async with listening(listen, reply=True) as one:
        for host in ("127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.2"):
            reader, writer = await one.connect(host)
            writer.write(lines([1]) + b"#1\n")
            assert await reader.readline() == b"ok 1 1\n"
        assert len(one.core.stored) == 2
        writer.write(lines([2]) + b"#1\n")
        assert (await reader.readline()).startswith(b"refused 1 the key was used for another request")


@on_uvloop
async def test_a_user_of_a_unix_socket_is_known_over_connections(tmp_path: Path) -> None:
    async with listening(f"unix://{tmp_path}/lines.sock", reply=True) as one:
        for _ in range(2):
            reader, writer = await one.connect()
            writer.write(lines([1]) + b"#1\n")
            assert await reader.readline() == b"ok 1 1\n"
        [chunk] = one.core.stored
        scope = request_scope("socket", f"uid {os.getuid()}")
        assert chunk.request is not None
        assert chunk.request.scope == scope


@on_uvloop
async def test_a_sender_of_groups_that_reads_no_answers_is_let_go(tmp_path: Path) -> None:
    async with listening(f"unix://{tmp_path}/lines.sock", reply=True) as one:
        _, writer = await one.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: _flooded(writer) or one.invalid("unread") == 1, "it is let go")


def _flooded(writer: asyncio.StreamWriter) -> bool:
    writer.write(b"#k\n" * 2000)
    return False


@pytest.mark.parametrize("scheme", ["udp", "unixgram"])
@on_uvloop
async def test_datagrams_are_stored_and_bad_lines_of_them_counted(scheme: str, tmp_path: Path) -> None:
    listen = f"udp://127.0.0.1:{free_port()}" if scheme == "udp" else f"unixgram://{tmp_path}/d.sock"
    async with listening(listen) as one:
        with socket.socket(socket.AF_INET if scheme == "udp" else socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            host, _, port = one.place.rpartition(":")
            where = (host, int(port)) if scheme == "udp" else one.place
            await until(lambda: one.input.obstacles() != [], "it listens")
            for number in range(100):
                out.sendto(lines([number])[: -1 if number % 2 else None], where)
                await asyncio.sleep(0)
            out.sendto(lines([100]) + b"nonsense\n" + lines([101]), where)
            out.sendto(b"", where)
            await one.stored(102)
            assert sorted(one.core.values()) == list(range(102))
            assert one.invalid("bad_line") == 1
            assert one.value("petiole_dropped_messages_total") == 0


@on_uvloop
async def test_every_datagram_is_stored_or_counted_as_dropped_while_nothing_can_be_stored() -> None:
    async with listening(
        f"udp://127.0.0.1:{free_port()}", buffer=Size(2**17), receive_buffer=Size(2**17)
    ) as one:
        await until(lambda: one.input.obstacles() != [], "it listens")
        one.core.open.clear()
        host, _, port = one.place.rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            for number in range(20_000):
                out.sendto(lines([number]), (host, int(port)))
                if number % 500 == 0:
                    await asyncio.sleep(0.001)
        await until(lambda: one.value("petiole_dropped_messages_total") > 0, "drops are counted")
        one.core.open.set()
        await until(
            lambda: len(one.core.values()) + one.value("petiole_dropped_messages_total") == 20_000,
            "each is stored or counted as dropped",
        )
        assert len(set(one.core.values())) == len(one.core.values()) > 500


@on_uvloop
async def test_a_unix_socket_has_its_mode_replaces_what_is_stale_and_goes_with_the_input(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lines.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    options: dict[str, Any] = {"mode": "0622", "user": "root", "group": "nogroup"}
    async with listening(f"unix://{path}", **options) as one:
        await one.connect()
        found = path.stat()
        assert stat.S_IMODE(found.st_mode) == 0o622
        assert found.st_gid != os.getgid()
        second = SocketInput(SocketOptions(listen=f"unix://{path}"), Metrics())
        assert ["is listened on by another program" in text for text in second.obstacles()] == [True]
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - in a coroutine
    path.write_text("mine")
    third = SocketInput(SocketOptions(listen=f"unix://{path}"), Metrics())
    assert "is not a socket" in third.obstacles()[0]
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"listen": "127.0.0.1:1"}, "does not begin with tcp://"),
        ({"listen": "tcp://127.0.0.1"}, "is not host:port"),
        ({"listen": "unix://relative"}, "is not an absolute path"),
        ({"listen": "unix:///nowhere/at/all"}, "the directory /nowhere/at is not there"),
        ({"listen": "udp://127.0.0.1:0", "reply": True}, "reply is for streams"),
        ({"listen": "unix:///tmp/x.sock", "mode": "u+w"}, "write it in octal"),
        ({"listen": "unix:///tmp/x.sock", "group": "nobody at all"}, "there is no group"),
        ({"listen": "tcp://127.0.0.1:0", "line": Size(2**23)}, "line is 8388608 bytes"),
        ({"listen": "tcp://127.0.0.1:0", "max_connections": 1000}, "buffer does not hold a line"),
        ({"listen": "tcp://192.0.2.1:1"}, "choose an address of this machine"),
    ],
)
def test_what_stands_in_the_way_is_told_with_a_remedy(given: dict[str, Any], told: str) -> None:
    (problem,) = problems([SocketInput(SocketOptions(**given), Metrics())])
    assert problem.startswith("input 'socket': ")
    assert told in problem
