"""Recognises the messages that a broker sends again although they are stored. No I/O; times are monotonic
seconds that the caller brings.

A message with QoS 1 that was not acknowledged, or whose acknowledgement was lost, comes again over the next
connection, marked as a repeat. Packet id and digest of what was stored lately are kept in memory, and those
of the last seconds travel with each batch as its position, so that they are known after a SIGKILL, too.

That needs a broker that goes on with its packet ids over connections, as mosquitto does. RabbitMQ begins at 1
on each: what was 26 then is 1 now, and an id that is known with the same content may be another message. So
what is known is kept over a connection only where the ids provably mean what they meant: the first one that
comes is neither 1 nor the first of the connection before, and goes on from what came last; or nothing was
acknowledged in between, so that the broker begins at the same message again. Otherwise it is forgotten: what
the broker sends again is then stored again, and nothing is taken for stored that is not.

A broker that gives an id again as soon as it is free is recognised by that, and not trusted from then on.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from hashlib import blake2b
from typing import Final, NamedTuple

REMEMBERED: Final = 1_000
TRAVELLING: Final = 300
"""As many fit into a position."""
SECONDS: Final = 5.0
"""How long a position tells of a message whose acknowledgement was sent over a connection that lives."""
_LATELY: Final = 100
_IDS: Final = 65_535
_LISTED: Final = "(?: [0-9]{1,5}:[0-9a-f]{1,20})*"
_POSITION: Final = re.compile(rf"[12] [0-9a-f]{{8}} ([cgr])({_LISTED}) \|({_LISTED})\Z")


class MessageIdentity(NamedTuple):
    """What tells a message from others: its packet id, and a digest of topic and payload of 80 bits."""

    packet_id: int
    content: int


def identity_of(packet_id: int, topic: str, payload: bytes) -> MessageIdentity:
    name = topic.encode(errors="surrogatepass")
    digest = blake2b(len(name).to_bytes(4, "big") + name, digest_size=10)
    digest.update(payload)
    return MessageIdentity(packet_id, int.from_bytes(digest.digest(), "big"))


class Redelivery:
    """What was stored lately."""

    def __init__(self) -> None:
        self._stored: OrderedDict[int, tuple[int, float]] = OrderedDict()
        self._lately: OrderedDict[int, None] = OrderedDict()
        self.counts = True
        """Whether the broker counts its packet ids up, as far as was seen."""
        self.goes_on = False
        """Whether it was seen to go on with them over connections."""
        self._resumed = self._acknowledged = False
        self._first: int | None = None
        self._last: int | None = None

    def is_stored(self, message: MessageIdentity) -> bool:
        """Whether a message that is marked as a repeat is one that is stored."""
        stored = self._stored.get(message.packet_id)
        return self.counts and stored is not None and stored[0] == message.content

    def heard(self, message: MessageIdentity) -> None:
        """A message came, in its turn, marked as a repeat or not."""
        if self._resumed:
            self._resumed = False
            self._open(message)
            self._acknowledged, self._first = False, message.packet_id
        elif self._first is None:
            self._first = message.packet_id
        self._last = message.packet_id

    def note(self, message: MessageIdentity) -> None:
        """A message came for the first time."""
        if message.packet_id in self._lately:
            self.counts = False
        self._lately[message.packet_id] = None
        if len(self._lately) > _LATELY:
            self._lately.popitem(last=False)

    def store(self, message: MessageIdentity, now: float) -> None:
        """A message is stored."""
        self._stored.pop(message.packet_id, None)
        self._stored[message.packet_id] = (message.content, now)
        if len(self._stored) > REMEMBERED:
            self._stored.popitem(last=False)

    def acknowledged(self) -> None:
        """An acknowledgement is on its way to the broker."""
        self._acknowledged = True

    def connected(self, now: float, *, resumed: bool) -> None:
        """A connection begins. Whatever was acknowledged over the one before may come again where the broker
        has `resumed` the session; otherwise nothing does."""
        self._resumed = resumed
        if not resumed:
            self._stored.clear()
            self._lately.clear()
            self.counts, self.goes_on, self._acknowledged = True, False, False
            self._first = self._last = None
        for packet_id, (content, _) in self._stored.items():
            self._stored[packet_id] = (content, now)

    def position(self, mark: str, coming: list[MessageIdentity], now: float) -> str:
        """The position of a piece that stores what is `coming`; `mark` (8 hexadecimal digits) makes it unlike
        any other."""
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
        """Know what a position tells, and return what its own piece held: stored as well, unless it was only
        `begun`. Raises `ValueError` for a position of another kind."""
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
        """The first message over a connection that goes on with a session: forget what is known, unless it
        still means the same."""
        follows = self._follows(message)
        if not self.goes_on and follows and message.packet_id not in (1, self._first):
            self.goes_on = True
        if self.goes_on and follows:
            return
        self.goes_on = False
        if self._acknowledged or message.packet_id != self._first:
            self._stored.clear()

    def _follows(self, message: MessageIdentity) -> bool:
        """Whether a packet id goes on from what came before: as one of the last, or closely behind them."""
        stored = self._stored.get(message.packet_id)
        if stored is not None and stored[0] == message.content:
            return True
        return self._last is not None and 0 < (message.packet_id - self._last) % _IDS <= REMEMBERED


def _idents(text: str) -> list[MessageIdentity]:
    pairs = (pair.partition(":") for pair in text.split())
    return [MessageIdentity(int(packet_id), int(content, 16)) for packet_id, _, content in pairs]
