"""The datagrams of a `socket` input. They are read only as long as they can be stored; then they wait in the
kernel's queue, and those for which that has no room are dropped there and counted. The sender of a Unix
datagram waits instead."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Final

from structlog.typing import FilteringBoundLogger

from agent.contract import MAX_RECEIVED, Letter
from agent.leaf.inputs.formats import LineParser
from agent.leaf.inputs.shared.gatherer import Buffer, Gatherer
from agent.leaf.inputs.shared.submitter import RetryingSubmitter

_LONGEST: Final = 64 * 1024
"""Bytes of a datagram; UDP has no longer ones."""
_READ: Final = 256 * 1024
_AT_A_TIME: Final = 256
_LOOK: Final = 1.0
_FORCE_BUFFER: Final = 33
"""SO_RCVBUFFORCE, for which a process needs CAP_NET_ADMIN; socket(7)."""
_MEMINFO: Final = 55
"""SO_MEMINFO: nine numbers, the last how many datagrams were dropped (linux/sock_diag.h)."""
_NUMBERS: Final = struct.Struct("9I")


class Datagrams:
    """Reads a bound socket that does not block. `dropped` gets the number of datagrams that the
    kernel has dropped since."""

    def __init__(
        self,
        socket_: socket.socket,
        buffer: Buffer,
        parser: LineParser,
        submitter: RetryingSubmitter,
        dropped: Callable[[int], None],
    ) -> None:
        self._socket = socket_
        self._submitter = submitter
        self._dropped = dropped
        self._drops = 0
        self._scratch = memoryview(bytearray(_READ))
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self._look: asyncio.TimerHandle | None = None
        self.source = Gatherer(buffer, parser, submitter, self._pause, self._resume, lambda: None)
        buffer.join(self.source)

    def start(self) -> None:
        """Read from now on."""
        self._resume()
        self._count_drops()

    def stop(self) -> None:
        """Read no more; what was read is under way."""
        if self._stopped:
            return
        self._stopped = True
        if self._look is not None:
            self._look.cancel()
        self._loop.remove_reader(self._socket)
        self._see_drops()
        self.source.flush()

    def _pause(self) -> None:
        self._loop.remove_reader(self._socket)

    def _resume(self) -> None:
        if not self._stopped:
            self._loop.add_reader(self._socket, self._read)

    def _read(self) -> None:
        scratch, receive, offset, last = self._scratch, self._socket.recvfrom_into, 0, None
        begin = 0
        for _ in range(_AT_A_TIME):
            try:
                size, sender = receive(scratch[offset:], _LONGEST, socket.MSG_TRUNC)
            except BlockingIOError:
                break
            except OSError as error:  # what a peer's machine has answered to something sent earlier
                self._submitter.skip("socket", "the socket", str(error))
                break
            if size > _LONGEST:
                self._pass_over(bytes(scratch[offset : offset + MAX_RECEIVED]), size, _origin(sender))
                continue
            if sender != last:
                self._hand_on(begin, offset, last)
                begin, last = offset, sender
            offset += size
            if size and scratch[offset - 1] != 10:
                scratch[offset] = 10
                offset += 1
            if len(scratch) - offset <= _LONGEST:
                break
        self._hand_on(begin, offset, last)

    def _hand_on(self, begin: int, end: int, sender: object) -> None:
        if end > begin:
            self.source.add(bytes(self._scratch[begin:end]), _origin(sender))

    def _pass_over(self, begin: bytes, size: int, origin: str) -> None:
        reason = f"a datagram of more than {_LONGEST} bytes"
        self.source.dead_letter("too_long", [Letter(begin, origin, reason, size)])

    def _count_drops(self) -> None:
        self._see_drops()
        self._look = self._loop.call_later(_LOOK, self._count_drops)

    def _see_drops(self) -> None:
        drops = _NUMBERS.unpack(self._socket.getsockopt(socket.SOL_SOCKET, _MEMINFO, _NUMBERS.size))[-1]
        if drops != self._drops:
            self._dropped((drops - self._drops) % 2**32)
            self._drops = drops


def widen(socket_: socket.socket, size: int, log: FilteringBoundLogger) -> None:
    """Let the kernel keep `size` bytes of datagrams that wait to be read, or as many as it allows."""
    with contextlib.suppress(OSError):
        socket_.setsockopt(socket.SOL_SOCKET, _FORCE_BUFFER, size)
    if socket_.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < size:
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    # The kernel doubles what it is given and says so; what it needs beside a datagram is its own half.
    granted = socket_.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
    if granted < size:
        log.warning(
            f"the kernel keeps {granted} bytes of waiting datagrams, not {size}; raise net.core.rmem_max"
        )


def _origin(sender: object) -> str:
    if isinstance(sender, tuple):
        return f"{sender[0]}:{sender[1]}"
    return f"{sender!r}" if sender else "a datagram"
