"""What passes over a leaf link, by its cause: takes the protocol between two NATS servers apart. Pure; a link
that is encrypted or compressed cannot be read."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

_LINE_END: Final = b"\r\n"
_WITH_PAYLOAD: Final = (b"LMSG", b"HMSG")
_HEARTBEAT: Final = b"NATS/1.0 100 Idle Heartbeat"
_CAUSES: Final = (
    (re.compile(r"petiole\.deliver\."), "readings"),
    (re.compile(r"petiole\.command\."), "commands"),
    (re.compile(r"petiole\.v1\.announce\."), "announcements"),
    (re.compile(r"petiole\.v1\."), "other questions to the registrar"),
    (re.compile(r"_INBOX_"), "answers of the registrar"),
    (re.compile(r"\$JS\.FC\."), "acknowledgements of readings"),
    (re.compile(r"\$JS[.C]|_R_\."), "JetStream's requests and answers"),
)
OTHER: Final = "other"


class LeafProtocol:
    """Adds the bytes of one direction of a link to `causes`."""

    def __init__(self, causes: Counter[str]) -> None:
        self._causes = causes
        self._held = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what came next over the wire."""
        self._held += data
        while (size := self._first_size()) is not None:
            self._count(bytes(self._held[:size]))
            del self._held[:size]

    def _first_size(self) -> int | None:
        """The size of the first message that is held, None while it is not complete."""
        end = self._held.find(_LINE_END)
        if end < 0:
            return None
        line = bytes(self._held[:end])
        size = end + len(_LINE_END)
        if line.startswith(_WITH_PAYLOAD):
            size += int(line.rsplit(b" ", 1)[1]) + len(_LINE_END)
        return size if len(self._held) >= size else None

    def _count(self, message: bytes) -> None:
        line, _, payload = message.partition(_LINE_END)
        self._causes[_cause(line, payload)] += len(message)


def _cause(line: bytes, payload: bytes) -> str:
    verb, _, rest = line.partition(b" ")
    if not line.startswith(_WITH_PAYLOAD):
        return {
            b"PING": "pings",
            b"PONG": "pings",
            b"LS+": "interest (LS+, LS-)",
            b"LS-": "interest (LS+, LS-)",
            b"INFO": "greeting",
            b"CONNECT": "greeting",
        }.get(verb, OTHER)
    subject = rest.split(b" ", 1)[0].decode(errors="replace")
    cause = next((cause for pattern, cause in _CAUSES if pattern.match(subject)), OTHER)
    return f"heartbeats of {cause}" if payload.startswith(_HEARTBEAT) else cause
