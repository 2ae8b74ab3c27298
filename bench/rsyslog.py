"""rsyslogd in both places: at the edge, where it queues what it takes over RELP and forwards it over RELP,
and at the hub, where it writes a file that it syncs; these instances know nothing of a system's own. And a
sender of RELP, the protocol by which rsyslog acknowledges what it has queued (librelp, doc/relp.html): enough
of it to send messages and see each answered.

`python -m bench.rsyslog PORT CONNECTIONS READINGS` is the load: it sends as fast as answers come, so many
readings a message and 500 under way on a connection, and answers each line on its standard input with the
number of messages acknowledged so far.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, Literal

from agent.demo.loopback import free_port
from bench.agents import Daemon
from bench.load import Counter, body, counted
from bench.relink_load import NotStoredError

Queue = Literal["synced", "documented"]
"""`synced`: everything goes through a queue on disk that is synced for each message. `documented`: as
rsyslog's documents show reliable forwarding, in memory and on disk where that is full or at a shutdown."""

_MODULES: Final = Path("/usr/lib/x86_64-linux-gnu/rsyslog")

_SYNCED: Final = """\
main_queue(queue.type="Disk" queue.filename="main" queue.size="5000000" queue.maxDiskSpace="4g"
  queue.syncQueueFiles="on" queue.checkpointInterval="1" queue.saveOnShutdown="on")
"""
_DOCUMENTED: Final = """\
  queue.type="LinkedList" queue.filename="forward" queue.saveOnShutdown="on" queue.size="5000000"
"""
_QUEUES: Final[dict[Queue, tuple[str, str]]] = {"synced": (_SYNCED, ""), "documented": ("", _DOCUMENTED)}
"""That of the daemon, and of its forwarding."""


def _missing() -> str | None:
    """What has to be installed, in words, or None."""
    if shutil.which("rsyslogd") is None or not any(_MODULES.parent.parent.glob("*/rsyslog/omrelp.so")):
        return "rsyslogd with RELP is not here: apt-get install rsyslog rsyslog-relp"
    return None


def version() -> str:
    """That of the installed program. Raises `RuntimeError` without it."""
    if (why := _missing()) is not None:
        raise RuntimeError(why)
    said = subprocess.run(["rsyslogd", "-v"], check=True, capture_output=True, text=True).stdout
    return said.split()[1]


@contextmanager
def pair(directory: Path, queue: Queue, dialled: int, hub_port: int) -> Iterator[tuple[Daemon, Daemon, Path]]:
    """Edge, hub, and the file that the hub writes; not started. The edge dials `dialled`, which leads to the
    hub's port."""
    received = directory / "hub" / "received"
    main, action = _QUEUES[queue]
    edge_port = free_port()
    edge = _daemon(
        _made(directory / "edge"),
        _head(directory / "edge", edge_port)
        + f'module(load="omrelp")\n{main}'
        + f'action(type="omrelp" target="127.0.0.1" port="{dialled}" action.resumeRetryCount="-1"\n'
        + f'  action.resumeInterval="1" timeout="10"\n{action})\n',
        edge_port,
    )
    hub = _daemon(
        _made(directory / "hub"),
        _head(directory / "hub", hub_port)
        + 'template(name="line" type="string" string="%msg%\\n")\n'
        + f'action(type="omfile" file="{received}" template="line" sync="on" flushOnTXEnd="on")\n',
        hub_port,
    )
    try:
        yield edge, hub, received
    finally:
        edge.kill()
        hub.kill()


def _daemon(directory: Path, config: str, port: int) -> Daemon:
    path = directory / "rsyslog.conf"
    path.write_text(config)
    return Daemon(("rsyslogd", "-n", "-f", str(path), "-iNONE"), directory / "log", port)


def _head(directory: Path, port: int) -> str:
    return f"""\
global(workDirectory="{directory / "work"}" maxMessageSize="128k"
  parser.escapeControlCharactersOnReceive="off")
module(load="imrelp")
input(type="imrelp" port="{port}" address="127.0.0.1")
"""


def _made(directory: Path) -> Path:
    (directory / "work").mkdir(parents=True)
    return directory


_OFFERS: Final = b"relp_version=0\nrelp_software=bench\ncommands=syslog"
_ACCEPTED: Final = b" rsp 6 200 OK"
_HEAD: Final = b"<134>1 2026-11-21T00:00:00Z edge-1 bench - - - "
_UNDER_WAY: Final = 500


def message(line: bytes) -> bytes:
    return _HEAD + line


def frame(number: int, command: bytes, data: bytes) -> bytes:
    return b"%d %b %d %b\n" % (number, command, len(data), data)


class Relp:
    """One connection, on which many may send at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._answers: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()

    async def send(self, line: bytes) -> None:
        """Send a line and wait for its answer. Raises `NotStoredError`."""
        try:
            async with self._opening:
                if self._writer is None:
                    await self._open()
            await self._exchange(b"syslog", message(line))
        except OSError as error:
            self._lost()
            raise NotStoredError(str(error)) from error

    async def close(self) -> None:
        self._lost()
        if self._answers is not None:
            await asyncio.wait([self._answers])

    async def _open(self) -> None:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._numbers = count(1)
        self._answers = asyncio.create_task(self._answered(reader, self._writer))
        await self._exchange(b"open", _OFFERS)

    async def _exchange(self, command: bytes, data: bytes) -> None:
        if self._writer is None:
            raise NotStoredError("not connected")
        number = next(self._numbers)
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        self._writer.write(frame(number, command, data))
        await answer

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                number, _, rest = line.partition(b" ")
                if not number.isdigit() or (waiting := self._waiting.pop(int(number), None)) is None:
                    continue  # what follows the answer to `open`
                if waiting.done():
                    continue
                if b" 200 OK" in rest:
                    waiting.set_result(None)
                else:
                    waiting.set_exception(NotStoredError(line.decode(errors="replace")))
        except OSError:
            pass
        if self._writer is writer:
            self._lost()

    def _lost(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._writer = None
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if not one.done():
                one.set_exception(NotStoredError("the connection ended"))


def load(port: int, connection: int, readings: int, counter: Counter) -> None:
    """Send until the process ends."""
    bodies = [body(readings, seed=connection * 8 + variant) for variant in range(max(8, 4_000 // readings))]
    messages, window, number = [message(lines) for lines in bodies], max(1, _UNDER_WAY // readings), 2
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.sendall(frame(1, b"open", _OFFERS))
        one.recv(65536)
        while True:
            some = (messages[(number + at) % len(messages)] for at in range(window))
            one.sendall(b"".join(frame(number + at, b"syslog", data) for at, data in enumerate(some)))
            _await_answers(one, window, connection, counter)
            number += window


def _await_answers(one: socket.socket, window: int, connection: int, counter: Counter) -> None:
    left, answers = b"", 0
    while answers < window:
        left += one.recv(65536)
        *whole, left = left.split(b"\n")
        for line in whole:
            if not line.endswith(_ACCEPTED):
                os.write(2, line[:500] + b"\n")
                os._exit(1)
            counter.add(connection)
        answers += len(whole)


if __name__ == "__main__":
    counted(load, *map(int, sys.argv[1:]))
