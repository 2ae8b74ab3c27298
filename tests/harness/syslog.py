"""Senders of syslog: one that makes sure by the stream, for syslog has no answer; and rsyslogd."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nats.errors
import pytest

from agent.demo.loopback import free_port
from agent.demo.plan import Member
from agent.testing.agent_process import AgentProcess
from tests.harness.agents import CLASS, StreamProbe, ask_stream
from tests.harness.wait import wait_for


def message(text: str) -> bytes:
    """A message of RFC 5424 that leaves out what it may."""
    return f"<13>1 - - - - - - {text}".encode()


def counted(body: bytes) -> bytes:
    """A message behind its length."""
    return b"%d %s" % (len(body), body)


def texts_in(leaf: AgentProcess) -> list[Any]:
    """The values of all readings that the leaf's stream holds, in order."""

    async def read(probe: StreamProbe) -> list[Any]:
        return [row["value"] for rows in await probe.rows(CLASS) for row in rows]

    return ask_stream(leaf.member, read)


def syslog_toml(member: Member) -> str:
    """An input whose messages are readings of the metric `n`."""
    return f'type = "syslog"\nlisten = "127.0.0.1:{member.http_port}"\nmetric = "n"\n'


def send_until_stored(leaf: AgentProcess, numbers: range) -> None:
    """Send numbers, and again what the stream does not hold once the agent that had read them is gone."""
    missing = [str(number) for number in numbers]

    def all_stored() -> bool:
        nonlocal missing
        with suppress(OSError), _connected(leaf) as connection:
            connection.sendall(b"".join(counted(message(text)) for text in missing))
            wait_for(lambda: _is_closed(connection) or _missing(leaf, missing) == [], "it is stored")
        wait_for(lambda: leaf.status_of("/readyz") == 200, "the next agent has looked at the stream")
        missing = _missing(leaf, missing)
        return missing == []

    wait_for(all_stored, "all messages are stored")


def send_once(leaf: AgentProcess, body: bytes) -> None:
    """Send a message; noise for the stream is syslog, anything else is not."""
    with suppress(OSError), _connected(leaf) as connection:
        connection.sendall(counted(b"<13>" + body if b'"noise"' in body else body))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)


def _connected(leaf: AgentProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", leaf.member.http_port), 15)


def _is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.1)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def _missing(leaf: AgentProcess, texts: list[str]) -> list[str]:
    try:
        stored = set(texts_in(leaf))
    except (nats.errors.Error, OSError):
        return texts
    return [text for text in texts if text not in stored]


@contextmanager
def rsyslogd(directory: Path, action: str) -> Iterator[int]:
    """A rsyslogd that takes messages of one line over TCP at this port and does `action` with each; it sends
    to no one else, and knows nothing of the system's."""
    program = shutil.which("rsyslogd")
    if program is None:
        pytest.skip("rsyslogd is missing; apt-get install rsyslog rsyslog-gnutls")
    directory.mkdir(exist_ok=True)
    port = free_port()
    config = directory / "rsyslog.conf"
    config.write_text(
        f'global(workDirectory="{directory}" maxMessageSize="64k")\nmodule(load="imtcp")\n'
        f'input(type="imtcp" port="{port}" address="127.0.0.1")\n{action}\n'
    )
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([program, "-n", "-iNONE", "-f", str(config)], stdout=log, stderr=log)
    try:
        wait_for(lambda: _listens(port), "rsyslogd listens")
        yield port
    finally:
        process.terminate()
        process.wait(60)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True
