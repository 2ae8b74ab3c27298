"""The `syslog` input over real sockets, before a core that keeps what it is given in memory; its senders are
those that machines have."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import logging.handlers
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.base.metrics import Metrics
from agent.base.tls import client_context
from agent.cli.configuration import problems
from agent.config import Seconds, Size
from agent.contract import MAX_RECEIVED
from agent.demo.loopback import free_port
from agent.leaf.inputs.formats.ndjson import decode_ndjson
from agent.leaf.inputs.syslog import SyslogOptions
from agent.leaf.inputs.syslog.input import SyslogInput
from agent.leaf.intake import RefusalReason, RefusedError
from tests.harness.certificates import Authority
from tests.harness.http_harness import on_uvloop
from tests.harness.intakes import RunningInput, stopped_in_time
from tests.harness.syslog import counted, message, rsyslogd
from tests.harness.wait import until

FULL = RefusedError(RefusalReason.FULL, "the stream is full", 0.05)


class Listening(RunningInput):
    """A running input, its core and its connections."""

    def __init__(self, **options: Any) -> None:
        self.port = free_port()
        metrics = Metrics()
        self.input = SyslogInput(SyslogOptions(listen=f"127.0.0.1:{self.port}", **options), metrics)
        assert problems([self.input]) == []
        super().__init__(self.input, metrics)
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(
        self, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection; raises what TLS raises."""
        await until(lambda: self.running.done() or self.input.obstacles() != [], "it listens")
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)
        self.writers.append(writer)
        return reader, writer

    async def is_closed(self, reader: asyncio.StreamReader) -> bool:
        """Return once the input has closed a connection; whether it did so without a word."""
        with contextlib.suppress(ConnectionError):
            return await reader.read() == b""
        return True


@contextlib.asynccontextmanager
async def listening(**options: Any) -> AsyncIterator[Listening]:
    async with stopped_in_time(Listening(**options)) as one:
        await until(lambda: one.input.obstacles() != [], "it listens")
        yield one
    for writer in one.writers:
        writer.transport.abort()


@on_uvloop
async def test_messages_are_stored_in_order_and_what_can_not_be_read_is_a_dead_letter() -> None:
    async with listening() as one:
        _, writer = await one.connect()
        stream = counted(message("0")) + counted(b"no syslog") + counted(message("1\n2"))
        for piece in (stream[:9], stream[9:40], stream[40:]):
            writer.write(piece)
            await asyncio.sleep(0.02)
        await one.stored(2)
        assert one.core.values() == ["0", "1\n2"]
        assert {row["device"] for row in one.core.rows()} == {"edge-1"}, "a sender of this machine"
        await until(lambda: one.core.letters != [], "it is kept")
        (letter,) = one.core.letters
        assert (letter.received, letter.at[:10], one.invalid("bad_line")) == (b"no syslog", "127.0.0.1:", 1)
        writer.write(b"30 <13>1 half")
        writer.write_eof()
        await until(lambda: one.invalid("cut_off") == 1, "the last one may be a part of a message")
        await until(lambda: one.core.letters[-1].received == b"30 <13>1 half", "it is kept")
        await until(lambda: one.value("petiole_input_connections") == 0, "the connection is gone")
        _, writer = await one.connect()
        writer.write(counted(message("2")) + b"30 <13>1 quarter")
        await one.stored(3)
    assert one.core.letters[-1].received == b"30 <13>1 quarter", "the input stops in the middle of it"


@on_uvloop
async def test_a_sender_is_slowed_while_nothing_can_be_stored_and_every_message_is_stored_then() -> None:
    async with listening(buffer=Size(2**18), max_connections=4) as one:
        one.core.refuse = FULL
        _, writer = await one.connect()
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                writer.write(b"".join(counted(message(str(number))) for number in range(sent, sent + 500)))
                sent += 500
                await writer.drain()

        flooding = asyncio.create_task(flood())
        before = -1
        async with asyncio.timeout(60):
            while before < sent:  # kernels take some, then nothing
                before = sent
                await asyncio.sleep(0.3)
        flooding.cancel()
        await asyncio.wait([flooding])
        assert one.core.stored == []
        one.core.refuse = None
        await one.stored(sent)
        assert sorted(map(int, one.core.values())) == list(range(sent))


@on_uvloop
async def test_limits_hold_of_connections_messages_and_other_languages() -> None:
    async with listening(max_connections=2, message=Size(2048)) as one:
        (_, writer), (other_reader, other) = await one.connect(), await one.connect()
        await until(lambda: one.value("petiole_input_connections") == 2, "both are open")
        third, _ = await one.connect()
        assert await one.is_closed(third)
        assert one.invalid("connections") == 1
        other.write(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n" + counted(message("-1")))
        assert await one.is_closed(other_reader)
        assert one.invalid("http") == 1
        large = message("x" * 20_000)
        writer.write(counted(large) + counted(message("2")))
        await one.stored(1)
        assert (one.core.values(), one.invalid("too_long")) == (["2"], 1)
        (letter,) = one.core.letters
        assert (letter.received, letter.size) == (large[:MAX_RECEIVED], len(large))
        noise_reader, noise = await one.connect()
        noise.write(b"x\n" * 3000)
        assert await one.is_closed(noise_reader)
        assert one.invalid("garbage") == 1
        framing_reader, framing = await one.connect()
        framing.write(counted(message("3")) + b"<13>not counted\n")
        assert await one.is_closed(framing_reader)
        await one.stored(2)
        # The last of the noise may be kept after it.
        rest = b"<13>not counted\n"
        await until(lambda: rest in [letter.received for letter in one.core.letters], "it is kept")
        await until(lambda: one.value("petiole_input_connections") == 1, "the first is open")


@on_uvloop
async def test_a_connection_that_is_silent_is_closed() -> None:
    async with listening(idle=Seconds(0.5)) as one:
        reader, _ = await one.connect()
        assert await one.is_closed(reader)
        await until(lambda: one.value("petiole_input_connections") == 0, "none is left")


@on_uvloop
async def test_messages_that_are_no_syslog_take_no_more_than_a_share_of_memory_while_nothing_is_stored() -> (
    None
):
    async with listening(message=Size(2048), buffer=Size(2**18), max_connections=4) as one:
        one.core.refuse = FULL
        _, writer = await one.connect()
        large = counted(b"x" * 4096)
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                writer.write(large * 20)
                await writer.drain()
                sent += 20

        flooding = asyncio.create_task(flood())
        before = -1
        async with asyncio.timeout(60):
            while before < sent:
                before = sent
                await asyncio.sleep(0.3)
        flooding.cancel()
        await asyncio.wait([flooding])
        assert one.invalid("too_long") * 4096 < 2**20, "no more is read than may be held"


def contexts(directory: Path) -> tuple[Authority, dict[str, Any]]:
    """An authority, and the options of an input that lets only its clients in."""
    authority = Authority(directory)
    cert, key = authority.signed("server", 3600)
    return authority, {"tls_cert": cert, "tls_key": key, "tls_ca": authority.file}


@on_uvloop
async def test_over_tls_only_senders_with_a_certificate_come_in_and_others_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, files = contexts(tmp_path)
    trusted = client_context(authority.file)
    async with listening(**files) as one:
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            reader, writer = await one.connect(trusted)
            writer.write(counted(message("no certificate")))
            await reader.read()
        await until(lambda: one.invalid("handshake") == 1, "it is counted")
        trusted.load_cert_chain(*authority.signed("client", 3600))
        _, writer = await one.connect(trusted)
        for number in range(300):
            writer.write(counted(message(str(number))))
        await one.stored(300)
        assert one.core.values() == [str(number) for number in range(300)]
        assert one.invalid("handshake") == 1
    monkeypatch.setattr("agent.leaf.inputs.syslog.input.HANDSHAKE", 0.5)
    async with listening(**files) as one:
        reader, writer = await one.connect()
        writer.write(b"<13>1 - - - - - - plain\n")
        assert await one.is_closed(reader) in (True, False)
        await until(lambda: one.invalid("handshake") == 1, "a plain sender, too")


@on_uvloop
async def test_tls_on_a_plain_port_is_named() -> None:
    async with listening() as one:
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            await one.connect(ssl.create_default_context())
        await until(lambda: one.invalid("tls") == 1, "it is known for what it is")


LOGGER = shutil.which("logger")


@pytest.mark.skipif(LOGGER is None, reason="logger is missing; apt-get install bsdutils")
@pytest.mark.parametrize(
    ("form", "framing"),
    [("--rfc5424", "--octet-count"), ("--rfc5424", ""), ("--rfc3164", "--octet-count"), ("--rfc3164", "")],
)
async def test_logger_of_util_linux_is_understood(form: str, framing: str) -> None:
    assert LOGGER is not None
    async with listening() as one:
        where = ["--server", "127.0.0.1", "--port", str(one.port), "--tcp"]
        what = ["--tag", "press", "--id=77", "--priority", "local3.err", "jammed: roller 3"]
        process = await asyncio.create_subprocess_exec(
            LOGGER, *where, form, *([framing] if framing else []), *what
        )
        assert await process.wait() == 0
        await one.stored(1)
        (row,) = one.core.rows()
        assert (row["value"], row["device"]) == ("jammed: roller 3", socket.gethostname().split(".")[0])
        tags = row["tags"]
        assert [tags[name] for name in ("facility", "severity", "app", "procid")] == [
            *("local3", "err", "press", "77")
        ]
        assert ("timeQuality.tzKnown" in tags) == (form == "--rfc5424") == ("timestamp" not in tags)
        assert one.core.letters == []


async def test_the_handler_of_python_is_understood_and_a_traceback_stays_one_message() -> None:
    def log(port: int) -> None:
        handler = logging.handlers.SysLogHandler(("127.0.0.1", port), socktype=socket.SOCK_STREAM)
        logger = logging.Logger("press")
        logger.addHandler(handler)
        handler.ident = "press: "
        try:
            raise RuntimeError("jammed")
        except RuntimeError:
            logger.exception("roller 3")
        logger.warning("still jammed")
        handler.close()

    async with listening() as one:
        await asyncio.to_thread(log, one.port)
        await one.stored(2)
        first, second = one.core.rows()
        assert first["value"].startswith("press: roller 3\nTraceback")
        assert (first["tags"]["severity"], second["value"]) == ("err", "press: still jammed")
        assert one.core.letters == []


@pytest.mark.skipif(
    not any(Path("/usr").glob("lib*/**/rsyslog/lmnsd_gtls.so")),
    reason="rsyslog's TLS is missing; apt-get install rsyslog rsyslog-gnutls",
)
@pytest.mark.parametrize("framing", ["octet-counted", "traditional"])
async def test_rsyslog_forwards_over_tls_what_it_has(tmp_path: Path, framing: str) -> None:
    authority, files = contexts(tmp_path)
    cert, key = authority.signed("client", 3600)
    async with listening(**files) as one:
        action = (
            f'global(defaultNetstreamDriverCAFile="{authority.file}" defaultNetstreamDriverCertFile="{cert}"'
            f' defaultNetstreamDriverKeyFile="{key}")\n'
            f'action(type="omfwd" target="127.0.0.1" port="{one.port}" protocol="tcp"\n'
            f'  TCP_Framing="{framing}" template="RSYSLOG_SyslogProtocol23Format"\n'
            '  StreamDriver="gtls" StreamDriverMode="1" StreamDriverAuthMode="x509/certvalid")'
        )
        with rsyslogd(tmp_path / "rsyslog", action) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            for number in range(200):
                writer.write(b'<13>1 2026-11-23T08:36:40.5Z pump-7 press 1 id [a b="c"] %d\n' % number)
            await writer.drain()
            await one.stored(200)
            writer.close()
        assert one.core.values() == [str(number) for number in range(200)]
        row = one.core.rows()[0]
        assert (row["device"], row["ts"][:21]) == ("pump-7", "2026-11-23T08:36:40.5")
        assert row["tags"] == {
            "facility": "user",
            "severity": "notice",
            "app": "press",
            "procid": "1",
            "msgid": "id",
            "a.b": "c",
        }
        assert one.core.letters == []


def documented(title: str) -> str:
    """The configuration of rsyslog that follows a sentence of the document."""
    document = (Path(__file__).parents[2] / "docs" / "inputs.md").read_text()
    return document.partition(title)[2].partition("```")[2].partition("```")[0]


OLD = b"<13>Nov 28 18:00:00 pump-7 press:%s\n"
NEW = b"<13>1 2026-11-28T18:00:00Z pump-7 press 1 - -%s\n"
SENT = [
    OLD % b" roller 3",
    OLD % b"no blank",
    OLD % b"   indented",
    NEW % b" five four",
    NEW % b'  "two" \\ x',
]
TEXTS = ["roller 3", "no blank", "  indented", "five four", '"two" \\ x']
"""The second blank of the last is taken for that of RFC 3164."""


async def test_the_documented_forwarding_of_rsyslog_stores_texts_without_a_blank_of_the_header(
    tmp_path: Path,
) -> None:
    async with listening() as one:
        action = documented("an agent that is down:").replace('port="5514"', f'port="{one.port}"')
        with rsyslogd(tmp_path / "rsyslog", action) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.writelines(SENT)
            await writer.drain()
            await one.stored(len(SENT))
            writer.close()
        assert one.core.values() == TEXTS
        assert one.core.letters == []


async def test_the_documented_file_of_rsyslog_has_texts_without_a_blank_of_the_header(tmp_path: Path) -> None:
    written = tmp_path / "syslog.ndjson"
    action = documented("Without loss, through a file").replace("/var/log/plant/syslog.ndjson", str(written))
    with rsyslogd(tmp_path / "rsyslog", action) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.writelines(SENT)
        await writer.drain()
        writer.close()
        await until(lambda: written.exists() and written.read_bytes().count(b"\n") == len(SENT))
    decoded = decode_ndjson(written.read_bytes(), "edge-1", 0)
    rows = [json.loads(line) for line in decoded.payload.splitlines()]
    assert [row["value"] for row in rows] == TEXTS
    assert {row["device"] for row in rows} == {"pump-7"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"listen": "127.0.0.1"}, "is not host:port"),
        ({"metric": ""}, "metric must have 1 to 255 characters"),
        ({"tls_cert": Path("/x")}, "tls_cert and tls_key go together"),
        ({"tls_ca": Path("/x")}, "needs tls_cert and tls_key"),
        ({"message": Size(2**20)}, "message is 1048576 bytes"),
        ({"message": Size(100)}, "take 2KiB to 256KiB"),
        ({"max_connections": 1000}, "buffer does not hold a message"),
        ({"listen": "192.0.2.1:1"}, "choose an address of this machine"),
    ],
)
def test_what_stands_in_the_way_is_reported_with_a_remedy(given: dict[str, Any], expected: str) -> None:
    options = SyslogOptions(**{"listen": f"127.0.0.1:{free_port()}", **given})
    (problem,) = problems([SyslogInput(options, Metrics())])
    assert problem.startswith("input 'syslog': ")
    assert expected in problem


def test_an_authority_that_is_none_is_an_obstacle(tmp_path: Path) -> None:
    _, files = contexts(tmp_path)
    files["tls_ca"].write_text("nothing")
    options = SyslogOptions(listen=f"127.0.0.1:{free_port()}", **files)
    (problem,) = SyslogInput(options, Metrics()).obstacles()
    assert "holds no certificates in PEM" in problem
