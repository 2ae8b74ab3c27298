"""Telling apart what a broker sends again although it is stored. Pure; times are monotonic seconds that the
caller brings.

A message with QoS 1 that was not acknowledged, or whose acknowledgement was lost, comes again under its
packet id and marked as a repeat. Packet id and digest of what was stored lately are kept in memory, and those
of the last seconds travel with each batch as its position, so that they are known after a SIGKILL, too.

That needs a broker that counts its packet ids up, as most do. One that gives an id anew as soon as it is
free is recognised by that: from then on what is marked as a repeat is stored again, for it could be another
message with the same content.
"""

from __future__ import annotations

import re
import zlib
from collections import OrderedDict
from typing import Final, NamedTuple

REMEMBERED: Final = 1_000
TRAVELLING: Final = 300
"""As many fit into a position."""
SECONDS: Final = 5.0
"""How long a position tells of a message whose acknowledgement was sent over a connection that lives."""
_LATELY: Final = 100
_IDS: Final = "(?: [0-9]{1,5}:[0-9a-f]{1,8})*"
_POSITION: Final = re.compile(rf"1 [0-9a-f]{{8}} ([cr])({_IDS}) \|({_IDS})\Z")


class Ident(NamedTuple):
    """What tells a message from others: its packet id, and a digest of topic and payload."""

    packet_id: int
    content: int


def ident_of(packet_id: int, topic: str, payload: bytes) -> Ident:
    """The identity of a message."""
    return Ident(packet_id, zlib.crc32(payload, zlib.crc32(topic.encode(errors="surrogatepass"))))


class Repeats:
    """What was stored lately."""

    def __init__(self) -> None:
        self._stored: OrderedDict[int, tuple[int, float]] = OrderedDict()
        self._lately: OrderedDict[int, None] = OrderedDict()
        self.counts = True
        """Whether the broker counts its packet ids up, as far as was seen."""

    def is_stored(self, one: Ident) -> bool:
        """Whether a message that is marked as a repeat is one that is stored."""
        known = self._stored.get(one.packet_id)
        return self.counts and known is not None and known[0] == one.content

    def note(self, one: Ident) -> None:
        """A message came for the first time."""
        if one.packet_id in self._lately:
            self.counts = False
        self._lately[one.packet_id] = None
        if len(self._lately) > _LATELY:
            self._lately.popitem(last=False)

    def store(self, one: Ident, now: float) -> None:
        """A message is stored."""
        self._stored.pop(one.packet_id, None)
        self._stored[one.packet_id] = (one.content, now)
        if len(self._stored) > REMEMBERED:
            self._stored.popitem(last=False)

    def connected(self, now: float, *, resumed: bool) -> None:
        """A connection begins. Whatever was acknowledged over the one before may come again where the broker
        has `resumed` the session; otherwise nothing does."""
        if not resumed:
            self._stored.clear()
            self._lately.clear()
            self.counts = True
        for packet_id, (content, _) in self._stored.items():
            self._stored[packet_id] = (content, now)

    def position(self, mark: str, coming: list[Ident], now: float) -> str:
        """The position of a piece that stores what is `coming`; `mark` (8 hexadecimal digits) makes it unlike
        any other."""
        known = [Ident(one, content) for one, (content, at) in self._stored.items() if now - at < SECONDS]
        room = max(0, TRAVELLING - len(coming))
        lists = (known[len(known) - min(room, len(known)) :], coming)
        told = [" ".join(["", *(f"{one.packet_id}:{one.content:x}" for one in listed)]) for listed in lists]
        return f"1 {mark} {'c' if self.counts else 'r'}{told[0]} |{told[1]}"

    def restore(self, position: str, now: float, *, begun: bool = False) -> list[Ident]:
        """Know what a position tells, and return what its own piece held: stored as well, unless it was only
        `begun`. Raises `ValueError` for a position of another kind."""
        found = _POSITION.match(position)
        if found is None:
            raise ValueError(f"position {position!r:.80} is none of an mqtt input")
        self.counts = found[1] == "c"
        known, held = _idents(found[2]), _idents(found[3])
        for one in known if begun else known + held:
            self.store(one, now)
        return held


def _idents(text: str) -> list[Ident]:
    pairs = (one.partition(":") for one in text.split())
    return [Ident(int(packet_id), int(content, 16)) for packet_id, _, content in pairs]
