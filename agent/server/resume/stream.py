"""Decides what the relays of a link send and accept: greeting, frames, offsets and bounds. Pure.

Each direction of a session is a stream of bytes that are numbered from 0. A sender keeps a byte until the
receiver acknowledges it. A connection begins with `Hello` from the leaf and `Answer` from the hub. Frames
follow, in network byte order: length, offset, and the number of bytes received. After a break the leaf sends
its frames right behind `Hello`, from the first byte that is not acknowledged; the receiver drops bytes that
it has. Whatever contradicts these numbers ends the session: no byte is guessed.

The first `Hello` has the leaf's public key of X25519 and the first `Answer` the hub's. Each later `Hello` is
authenticated by the secret that follows from both. So nobody who reads the line can continue a session.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

KEY_BYTES: Final = 32
MAX_FRAME: Final = 65_536
MAX_HASTY: Final = 14_480
"""Bytes that are sent before the other end answers: TCP's first window (RFC 6928)."""
LEAST_HELD: Final = 8_192
FIRST_HELD: Final = 32_768
MAX_HELD: Final = 4 * 2**20
"""Bytes that a session holds until they are acknowledged: at first and at most."""
_HELD_SECONDS: Final = 2.0
"""A session holds what the line acknowledges in this time; more would delay the servers' PONGs."""
_MEASURE_SECONDS, _MEMORY_SECONDS = 0.2, 1.0
"""Time between measurements of the line, and their time constant."""
_MAGIC: Final = b"PTR1"
_HELLO: Final = struct.Struct(f">4s{KEY_BYTES}sIQ")
_MAC_BYTES: Final = 16
_ANSWER: Final = struct.Struct(f">4sB{KEY_BYTES}sQ")
_FRAME: Final = struct.Struct(">IQQ")
_END: Final = 2**32 - 1
"""The length of the frame after the last byte."""
HELLO_BYTES: Final = _HELLO.size + _MAC_BYTES
ANSWER_BYTES: Final = _ANSWER.size
FRAME_BYTES: Final = _FRAME.size
PATIENCE: Final = 8.0
"""Seconds without a byte after which a line that owes an acknowledgement is dead. TCP itself repairs losses
and short silences, and a new connection sends again the bytes under way."""


class ProtocolError(Exception):
    """The other end contradicts the protocol; the session ends."""


class Verdict(IntEnum):
    """The hub's answer to a `Hello`."""

    RESUMED = 0
    UNKNOWN = 1
    """The session ended, or the hub's agent was restarted."""
    STALE = 2
    """A newer connection has the session."""
    FULL = 3
    AWAY = 4
    """The hub's server does not accept connections."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The leaf's greeting: its key, number of the connection (0: a new session), bytes received."""

    key: bytes
    number: int
    received: int
    mac: bytes = b""

    def encode(self, secret: bytes) -> bytes:
        body = self._body()
        return body + _mac(secret, body)

    @classmethod
    def decode(cls, data: bytes) -> Hello:
        """Decode a greeting. Raises `ProtocolError`."""
        magic, key, number, received = _HELLO.unpack_from(data)
        if magic != _MAGIC or (number == 0 and received):
            raise ProtocolError("the greeting is not a relay's")
        return cls(key, number, received, data[_HELLO.size :])

    def judge(self, newest: int | None, secret: bytes) -> Verdict:
        """Decide by the session's newest connection (None if the session is unknown) and its secret."""
        if newest is None:
            return Verdict.UNKNOWN if self.number else Verdict.RESUMED
        if not hmac.compare_digest(self.mac, _mac(secret, self._body())):
            return Verdict.UNKNOWN
        return Verdict.RESUMED if self.number > newest else Verdict.STALE

    def _body(self) -> bytes:
        return _HELLO.pack(_MAGIC, self.key, self.number, self.received)


def _mac(secret: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(body, key=secret, digest_size=_MAC_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Answer:
    """The hub's answer: its key (zeros unless the session is new) and the bytes received."""

    verdict: Verdict
    received: int = 0
    key: bytes = bytes(KEY_BYTES)

    def encode(self) -> bytes:
        return _ANSWER.pack(_MAGIC, self.verdict, self.key, self.received)

    @classmethod
    def decode(cls, data: bytes) -> Answer:
        """Decode an answer. Raises `ProtocolError`."""
        magic, verdict, key, received = _ANSWER.unpack(data)
        if magic != _MAGIC or verdict not in list(Verdict):
            raise ProtocolError("the answer is not a relay's")
        return cls(Verdict(verdict), received, key)


@dataclass(slots=True)
class Budget:
    """Bounds the bytes that all sessions hold beyond `FIRST_HELD` each."""

    left: int


class ByteStream:
    """One end of a session. Seconds are monotonic."""

    def __init__(self, budget: Budget) -> None:
        self._budget, self._borrowed = budget, 0
        self._held = bytearray()
        self._base = self._sent = self._highest = 0
        """Offsets of the first byte held, of the next to send, and behind the last that was ever sent."""
        self.received = self._acknowledged = 0
        self._place = 0
        """The offset of the next byte of the frame that is being received."""
        self._end_sent = False
        self.ended = self.other_ended = False
        self._greeting = False
        """Whether the other end has not answered on this connection yet."""
        self._moved = 0.0
        self.most = FIRST_HELD
        """Bytes that may be held now."""
        self._speed = 0.0
        self._measured: tuple[int, float] | None = None

    @property
    def end(self) -> int:
        """The offset behind the last byte from the local server."""
        return self._base + len(self._held)

    @property
    def waits(self) -> bool:
        """Whether the other end owes an answer or an acknowledgement."""
        return self._greeting or self._sent > self._base

    @property
    def owed(self) -> int:
        """Bytes received and not acknowledged."""
        return self.received - self._acknowledged

    def room(self) -> int:
        """Return how many bytes may be read from the local server now."""
        return min(self.most, FIRST_HELD + self._borrowed + self._budget.left) - len(self._held)

    def write(self, data: bytes) -> None:
        """Hold bytes from the local server, `room` at most."""
        self._held += data
        self._settle()

    def release(self) -> None:
        """Give up what is held."""
        self._held.clear()
        self._settle()

    def begin(self, now: float) -> None:
        """Begin a connection at the first byte that is not acknowledged, before the other end answers."""
        self._sent, self._acknowledged = self._base, self.received
        self._greeting, self._end_sent, self._moved, self._measured = True, False, now, None

    def resume(self, other_received: int) -> int:
        """Continue behind the bytes that the other end has; return how many were sent beyond them in vain.
        Raises `ProtocolError`.
        """
        if not self._base <= other_received <= self._highest:
            raise ProtocolError(
                f"the other end has {other_received} of {self._base} to {self._highest} bytes"
            )
        self._greeting = False
        self._drop(other_received)
        self._sent = max(self._sent, other_received)
        return self._highest - other_received

    def take(self, now: float) -> bytes:
        """Return the next bytes for the line, empty if there are none."""
        at, length = self._sent - self._base, 0
        data = bytes(self._held[at : MAX_HASTY if self._greeting else at + MAX_FRAME])
        if data:
            if not self.waits:
                self._moved = now
            length = len(data)
        elif self.ended and not self._end_sent and not self._greeting:
            self._end_sent, length = True, _END
        elif not self.owed:
            return b""
        frame = _FRAME.pack(length, self._sent, self.received) + data
        self._acknowledged = self.received
        self._sent += len(data)
        self._highest = max(self._highest, self._sent)
        return frame

    def read(self, header: bytes, now: float) -> int:
        """Read a frame's header and return how many bytes follow. Raises `ProtocolError`."""
        self._moved = now
        length, offset, acknowledged = _FRAME.unpack(header)
        if not self._base <= acknowledged <= self._highest:
            raise ProtocolError(f"the other end has {acknowledged} of {self._base} to {self._highest} bytes")
        if acknowledged > self._base:
            self._measure(acknowledged, now)
            self._drop(acknowledged)
            self._sent = max(self._sent, acknowledged)
        if length == _END:
            if offset != self.received:
                raise ProtocolError(f"an end at {offset} does not follow {self.received}")
            self.other_ended = True
            return 0
        if offset > self.received or length > MAX_FRAME:
            raise ProtocolError(f"{length} bytes at {offset} do not follow {self.received}")
        self._place = offset
        return int(length)

    def accept(self, data: bytes, now: float) -> bytes:
        """Return those bytes of a frame that are new."""
        self._moved = now
        known = min(self.received - self._place, len(data))
        self._place += len(data)
        self.received = max(self.received, self._place)
        return data[known:] if known else data

    def _measure(self, offset: int, now: float) -> None:
        """Adapt the bound to the speed of the line; it shrinks only where the line sets the pace."""
        if self._measured is None:
            self._measured = offset, now
        before, at = self._measured
        if (elapsed := now - at) < _MEASURE_SECONDS:
            return
        self._measured = offset, now
        weight = -math.expm1(-elapsed / _MEMORY_SECONDS) if self._speed else 1.0
        self._speed += ((offset - before) / elapsed - self._speed) * weight
        wanted = int(min(max(self._speed * _HELD_SECONDS, LEAST_HELD), MAX_HELD))
        if wanted > self.most or len(self._held) > self.most / 2:
            self.most = wanted

    def _drop(self, offset: int) -> None:
        del self._held[: offset - self._base]
        self._base = offset
        self._settle()

    def _settle(self) -> None:
        """Borrow from the budget the bytes held beyond `FIRST_HELD`."""
        borrowed = max(0, len(self._held) - FIRST_HELD)
        self._budget.left += self._borrowed - borrowed
        self._borrowed = borrowed

    def dead_in(self, now: float) -> float | None:
        """Return the seconds until the line counts as dead, None while nothing waits."""
        return self._moved + PATIENCE - now if self.waits else None
