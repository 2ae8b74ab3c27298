"""A stream as nats-server 2.15.1 keeps it, and a connection to it whose messages and answers come when, as
often and in the order in which a course wants them: the protocol of publish and PubAck, and nothing else.

A message whose `Nats-Msg-Id` was stored within the duplicate window is answered with where it is, also by a
stream that is full; what was on its way when a connection ended may be stored up to the moment at which the
next connection looks, and not after.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from agent.contract import H_MESSAGE_ID
from agent.jetstream import RawMessage

WINDOW = 120.0
MAX_PAYLOAD = 2_000


class Mood(Enum):
    """How a stream answers what it does not hold yet: (code, number, description), None where it stores."""

    WELL = None
    FULL = (400, 10077, "maximum bytes exceeded")
    TOO_LARGE = (400, 10054, "message size exceeds maximum allowed")
    LATER = (503, 10008, "system temporarily unavailable")
    DEAF = (503, 0, "no responders")


class Held(NamedTuple):
    """A message of the stream, and when it was stored."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]
    at: float


def own_id(one: Held) -> str | None:
    """The id of a message of the agent, None for one that a device published itself."""
    return one.headers.get(H_MESSAGE_ID) if one.subject.split(".")[3].startswith("_") else None


@dataclass
class Stream:
    """One stream, and `ever`: all that it or one before it has stored. `created` tells one from another."""

    created: int = 1
    held: list[Held] = field(default_factory=list)
    ever: list[Held] = field(default_factory=list)
    mood: Mood = Mood.WELL

    def take(self, subject: str, payload: bytes, headers: Mapping[str, str], now: float) -> bytes:
        """Store a message if it can be; the answer."""
        ident = headers.get(H_MESSAGE_ID, "")
        for seq, one in enumerate(self.held, 1):
            if ident and one.headers.get(H_MESSAGE_ID) == ident and one.at > now - WINDOW:
                return json.dumps({"stream": "S", "seq": seq, "duplicate": True}).encode()
        if self.mood is Mood.DEAF:
            return b""
        if self.mood.value is not None:
            code, number, text = self.mood.value
            error = {"code": code, "err_code": number, "description": text}
            return json.dumps({"error": error, "stream": "S", "seq": 0}).encode()
        self.held.append(Held(subject, payload, headers, now))
        self.ever.append(self.held[-1])
        return json.dumps({"stream": "S", "seq": len(self.held)}).encode()

    def ids_above(self, seq: int) -> dict[tuple[str, str], int]:
        """The subjects and ids of the agent's messages above a sequence, with where they are."""
        found = enumerate(self.held[seq:], seq + 1)
        return {(one.subject, ident): at for at, one in found if (ident := own_id(one)) is not None}

    def message(self, seq: int) -> RawMessage | None:
        """The message at a sequence."""
        if not 1 <= seq <= len(self.held):
            return None
        one = self.held[seq - 1]
        return RawMessage(seq, one.subject, dict(one.headers), one.payload, "")

    def wipe(self) -> None:
        """The store is lost."""
        self.created += 1
        self.held = []

    def put_back(self, seq: int) -> None:
        """An older copy is put back: it ends at this sequence."""
        self.held = self.held[:seq]


class Asked(NamedTuple):
    """A publish on its way to the server."""

    subject: str
    payload: bytes
    reply: str
    headers: Mapping[str, str]


Callback = Callable[[str, bytes], None]


class Wire:
    """A connection: what `Sender` uses of its client. `asked` is on its way to the server, `answers`
    are on their way back."""

    max_payload = MAX_PAYLOAD

    def __init__(self, inbox: str) -> None:
        self.inbox = inbox
        self.pending_data_size = 0
        self.asked: list[Asked] = []
        self.answers: list[tuple[str, bytes]] = []
        self._callback: Callback | None = None

    async def receive(self, subject: str, receiver: Callback) -> None:
        """Have answers given to `receiver`."""
        assert subject == f"{self.inbox}.*"
        self._callback = receiver

    def send(self, subject: str, payload: bytes, reply: str, headers: Mapping[str, str]) -> None:
        """Send one message."""
        assert len(payload) <= self.max_payload
        assert reply.startswith(f"{self.inbox}.")
        self.asked.append(Asked(subject, payload, reply, dict(headers)))

    def reads(self, count: int, find: Callable[[str], Stream], now: float, *, answer: bool = True) -> None:
        """The server takes the next messages in, in their order."""
        taken, self.asked = self.asked[:count], self.asked[count:]
        for one in taken:
            said = find(one.subject).take(one.subject, one.payload, one.headers, now)
            if answer:
                self.answers.append((one.reply, said))

    async def answers_come(self, which: int, times: int) -> None:
        """One of the answers that are on their way comes so often, and then no more."""
        subject, data = self.answers.pop(which % len(self.answers))
        assert self._callback is not None
        for _ in range(times):
            self._callback(subject, data)
