"""Recognises stored messages that a broker sends again. No I/O; times are monotonic seconds.

Unacknowledged QoS 1 messages return marked as repeats. Packet id and digest of recent ones are in memory, and
each batch's position has those of the last seconds, which survives SIGKILL.

That needs a broker that continues packet ids over connections, as mosquitto does; RabbitMQ restarts at 1. So
entries are kept only if the first id proves continuity: neither 1 nor the previous connection's first, and
following the last ones; or if nothing was acknowledged in between. Otherwise they are dropped, and repeats
are stored twice rather than lost. A broker that reuses freed ids at once is detected and not trusted.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from hashlib import blake2b
from typing import Final, NamedTuple

REMEMBERED: Final = 1_000
TRAVELLING: Final = 300
"""Entries per position."""
SECONDS: Final = 5.0
"""Time for which a position keeps acknowledged messages."""
_LATELY: Final = 100
_IDS: Final = 65_535
_LISTED: Final = "(?: [0-9]{1,5}:[0-9a-f]{1,20})*"
_POSITION: Final = re.compile(rf"[12] [0-9a-f]{{8}} ([cgr])({_LISTED}) \|({_LISTED})\Z")


class MessageIdentity(NamedTuple):
    """Packet id and 80-bit digest of topic and payload, whose lowest 32 bits are their CRC-32."""

    packet_id: int
    content: int


def identity_of(packet_id: int, topic: str, payload: bytes) -> MessageIdentity:
    name = topic.encode(errors="surrogatepass")
    digest = blake2b(len(name).to_bytes(4, "big") + name, digest_size=10)
    digest.update(payload)
    return MessageIdentity(packet_id, int.from_bytes(digest.digest(), "big"))


class Redelivery:
    """Recently stored messages."""

    def __init__(self) -> None:
        self._stored: OrderedDict[int, tuple[int, float]] = OrderedDict()
        self._lately: OrderedDict[int, None] = OrderedDict()
        self.counts = True
        """Whether the broker counts packet ids up, as seen so far."""
        self.goes_on = False
        """Whether it continued them over connections."""
        self._resumed = self._acknowledged = False
        self._first: int | None = None
        self._last: int | None = None

    def is_stored(self, message: MessageIdentity) -> bool:
        """Tell whether a marked repeat is stored."""
        stored = self._stored.get(message.packet_id)
        return self.counts and stored is not None and stored[0] == message.content

    def heard(self, message: MessageIdentity) -> None:
        """Note a message in its turn, repeat or not."""
        if self._resumed:
            self._resumed = False
            self._open(message)
            self._acknowledged, self._first = False, message.packet_id
        elif self._first is None:
            self._first = message.packet_id
        self._last = message.packet_id

    def note(self, message: MessageIdentity) -> None:
        """Note a new message."""
        if message.packet_id in self._lately:
            self.counts = False
        self._lately[message.packet_id] = None
        if len(self._lately) > _LATELY:
            self._lately.popitem(last=False)

    def store(self, message: MessageIdentity, now: float) -> None:
        self._stored.pop(message.packet_id, None)
        self._stored[message.packet_id] = (message.content, now)
        if len(self._stored) > REMEMBERED:
            self._stored.popitem(last=False)

    def acknowledged(self) -> None:
        """Note that an acknowledgement is being sent."""
        self._acknowledged = True

    def connected(self, now: float, *, resumed: bool) -> None:
        """Begin a connection. Acknowledged messages may return only if the broker `resumed` the session."""
        self._resumed = resumed
        if not resumed:
            self._stored.clear()
            self._lately.clear()
            self.counts, self.goes_on, self._acknowledged = True, False, False
            self._first = self._last = None
        for packet_id, (content, _) in self._stored.items():
            self._stored[packet_id] = (content, now)

    def position(self, mark: str, coming: list[MessageIdentity], now: float) -> str:
        """Return the position of a piece with the messages `coming`; `mark` (8 hex digits) makes
        it unique.
        """
        stored = [
            MessageIdentity(packet_id, content)
            for packet_id, (content, at) in self._stored.items()
            if now - at < SECONDS
        ]
        room = max(0, TRAVELLING - len(coming))
        lists = (stored[len(stored) - min(room, len(stored)) :], coming)
        texts = [
            " ".join(["", *(f"{message.packet_id}:{message.content:x}" for message in listed)])
            for listed in lists
        ]
        how = "r" if not self.counts else "g" if self.goes_on else "c"
        return f"2 {mark} {how}{texts[0]} |{texts[1]}"

    def restore(self, position: str, now: float, *, begun: bool = False) -> list[MessageIdentity]:
        """Load a position and return its piece's messages, stored unless only `begun`.
        Raises `ValueError`.
        """
        match = _POSITION.match(position)
        if match is None:
            raise ValueError(f"position {position!r:.80} is none of an mqtt input")
        self.counts, self.goes_on = match[1] != "r", match[1] == "g"
        stored, coming = _idents(match[2]), _idents(match[3])
        for message in stored if begun else stored + coming:
            self.store(message, now)
        self._last = next((message.packet_id for message in reversed(stored + coming)), None)
        # It is unknown whether the agent acknowledged anything before it ended.
        self._acknowledged = True
        return coming

    def _open(self, message: MessageIdentity) -> None:
        """Forget entries unless the first message of a resumed session proves continuity."""
        follows = self._follows(message)
        if not self.goes_on and follows and message.packet_id not in (1, self._first):
            self.goes_on = True
        if self.goes_on and follows:
            return
        self.goes_on = False
        if self._acknowledged or message.packet_id != self._first:
            self._stored.clear()

    def _follows(self, message: MessageIdentity) -> bool:
        """Tell whether a packet id is among the last or closely after."""
        stored = self._stored.get(message.packet_id)
        if stored is not None and stored[0] == message.content:
            return True
        return self._last is not None and 0 < (message.packet_id - self._last) % _IDS <= REMEMBERED


def _idents(text: str) -> list[MessageIdentity]:
    pairs = (pair.partition(":") for pair in text.split())
    return [MessageIdentity(int(packet_id), int(content, 16)) for packet_id, _, content in pairs]
