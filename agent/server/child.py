"""Starts, finds, watches and reaps processes that outlive this one, and reads server greetings."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path

import psutil
from msgspec import Struct

from agent.base.listen_sockets import is_free, near_host
from agent.base.nats_server import ServerError, server_info
from agent.base.wait import timeout

_SUPERVISOR = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")

_GREETING_SECONDS = 1.0
_COMMAND_LINE_BYTES = 16_384
"""More than two paths."""

# Only its parent can reap a child that has ended; and a Popen that is collected while its process runs, as it
# should here, warns.
_children: dict[int, subprocess.Popen[bytes]] = {}


def spawn(command: list[str], directory: Path, output: Path) -> int:
    """Start a program in an own session without this process's sockets, and return its id. Output replaces
    `output`.

    Raises `OSError`.
    """
    with output.open("wb") as written:
        child = subprocess.Popen(
            command,
            cwd=directory,
            env={name: value for name, value in os.environ.items() if name not in _SUPERVISOR},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children[child.pid] = child
    return child.pid


def reap(pid: int) -> None:
    """Collect a child's exit."""
    child = _children.pop(pid, None)
    if child is not None:
        child.wait()
        return
    # It may be the child of this process before it became another program (the agent starts itself again).
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def process_of(configuration: Path) -> int | None:
    """Return our process with this configuration file, or None.

    The command line identifies it, since pid files may be stale or missing.
    """
    end = b"\0-c\0" + os.fsencode(configuration) + b"\0"
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            line = _command_line(pid)
            if (
                line.endswith(end)
                and line.count(b"\0") == 3
                and psutil.Process(pid).uids().real == os.getuid()
            ):
                return pid
    return None


def _command_line(pid: int) -> bytes:
    """Read a command line cheaply, as all processes are examined. Raises `OSError`."""
    descriptor = os.open(f"/proc/{pid}/cmdline", os.O_RDONLY)
    try:
        return os.read(descriptor, _COMMAND_LINE_BYTES)
    finally:
        os.close(descriptor)


class Watched:
    """A process watched by pidfd. Create in a running loop; `close` when done."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended = asyncio.Event()
        self._descriptor = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._end)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; ignored after the end."""
        if self._descriptor >= 0:
            try:
                signal.pidfd_send_signal(self._descriptor, number)
            except ProcessLookupError:
                return

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _end(self) -> None:
        self.close()
        self.ended.set()


class Greeting(Struct, frozen=True):
    """A nats-server's greeting."""

    server_name: str
    version: str
    jetstream: bool


class Stranger(Struct, frozen=True):
    """A listener without nats-server greeting."""


async def greeting(address: tuple[str, int]) -> Greeting | Stranger | None:
    """Return who answers within a second, None if nothing listens."""
    host, port = address
    try:
        async with timeout(_GREETING_SECONDS):
            reader, writer = await asyncio.open_connection(near_host(host), port)
    except (OSError, TimeoutError):
        return None
    try:
        async with timeout(_GREETING_SECONDS):
            line = await reader.readline()
    except (OSError, ValueError, TimeoutError):
        return Stranger()
    finally:
        writer.transport.abort()
    info = server_info(line)
    if info is None:
        return Stranger()
    return Greeting(str(info.get("server_name", "")), info["version"], bool(info.get("jetstream", False)))


async def need_free(listen: str, address: tuple[str, int]) -> None:
    """Raise `ServerError` naming the owner unless the address is free."""
    try:
        free = is_free(address)
    except OSError as error:
        raise ServerError(f"nats-server cannot listen on {listen}: {error.strerror}") from None
    if not free:
        said = await greeting(address)
        who = f"nats-server {said.server_name!r}" if isinstance(said, Greeting) else "another program"
        raise ServerError(f"{listen} is taken by {who}; end it, or choose another address")
