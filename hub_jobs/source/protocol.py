"""Parses the NATS client protocol: frames, headers, delivery subjects. Pure.

Source: https://docs.nats.io/reference/reference-protocols/nats-protocol and ADR-15 (`$JS.ACK` subjects, both
forms as sent by nats-server 2.15.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from hub_jobs.source.binary import Numbers, tokens

MAX_LINE: Final = 1 << 20
"""Longest control line in bytes, for INFO with many cluster addresses."""

MAX_FRAME: Final = (64 << 20) + MAX_LINE
"""Largest frame in bytes; `max_payload` is at most 64 MiB."""

_MSG: Final = ord("M")
_HMSG: Final = ord("H")
_ACK_PREFIX: Final = b"$JS.ACK."
_V1_TOKENS: Final = 9
_V2_TOKENS: Final = 11
_V1_SEQ: Final = 5
_V2_SEQ: Final = 7


class ProtocolError(Exception):
    """Bytes that no NATS server sends."""


class ServerReply(NamedTuple):
    """An answer to a request, or a pull's status."""

    subject: bytes
    headers: bytes
    payload: bytes


class Records(NamedTuple):
    """Records by column, as bytes."""

    subjects: pa.Array
    replies: pa.Array
    headers: pa.Array
    payloads: pa.Array


@dataclass(slots=True)
class Frames:
    """Parsed contents of received bytes, with records in columns."""

    cut: list[Records] = field(default_factory=list)
    """Records parsed by column, before the others."""
    subjects: list[bytes] = field(default_factory=list)
    replies: list[bytes] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    answers: list[ServerReply] = field(default_factory=list)
    pings: int = 0
    pongs: int = 0
    errors: list[str] = field(default_factory=list)

    def records(self) -> list[Records]:
        """Return all records in order."""
        if self.replies:
            lists = self.subjects, self.replies, self.headers, self.payloads
            self.cut.append(Records(*(pa.array(values, pa.binary()) for values in lists)))
            for values in lists:
                values.clear()
        return self.cut


def scan(data: bytes, sid: bytes, frames: Frames) -> tuple[int, int]:
    """Parse whole frames at the start of `data` into `frames`.

    A message of subscription `sid` with a reply subject is a record, any other is an answer. Returns bytes
    consumed and bytes needed by the next frame (0: unknown). Raises ProtocolError for invalid bytes or a
    frame above MAX_FRAME.
    """
    # The hot loop of every read: one search for the end of the line and one split a frame, names bound
    # locally.
    find = data.find
    size = len(data)
    limit = size - 2
    add_subject, add_reply = frames.subjects.append, frames.replies.append
    add_headers, add_payload = frames.headers.append, frames.payloads.append
    position = 0
    while True:
        eol = find(b"\r\n", position)
        if eol < 0:
            if size - position > MAX_LINE:
                raise ProtocolError(f"a control line of more than {MAX_LINE} bytes")
            return position, 0
        parts = data[position:eol].split(b" ")
        count = len(parts)
        body = eol + 2
        try:
            if count == 5 and parts[2] == sid and data[position] == _MSG:
                end = body + int(parts[4])
                if not body <= end <= limit:
                    return position, _needed(position, body, body, end)
                add_subject(parts[1])
                add_reply(parts[3])
                add_headers(b"")
                add_payload(data[body:end])
                position = end + 2
            elif count == 6 and parts[2] == sid and data[position] == _HMSG:
                middle, end = body + int(parts[4]), body + int(parts[5])
                if not body <= middle <= end <= limit:
                    return position, _needed(position, body, middle, end)
                add_subject(parts[1])
                add_reply(parts[3])
                add_headers(data[body:middle])
                add_payload(data[middle:end])
                position = end + 2
            elif parts[0] in (b"MSG", b"HMSG"):
                end = body + int(parts[-1])
                middle = body + int(parts[-2]) if parts[0] == b"HMSG" else body
                if not body <= middle <= end <= limit:
                    return position, _needed(position, body, middle, end)
                frames.answers.append(ServerReply(parts[1], data[body:middle], data[middle:end]))
                position = end + 2
            else:
                _control(data[position:eol], frames)
                position = body
        except (ValueError, IndexError) as error:
            raise ProtocolError(f"not a NATS frame: {data[position:eol][:80]!r}") from error


def _needed(position: int, body: int, middle: int, end: int) -> int:
    size = end + 2 - position
    if not body <= middle <= end:
        raise ProtocolError(f"a frame with {middle - body} bytes of headers, {end - body} in all")
    if size > MAX_FRAME:
        raise ProtocolError(f"a frame with a payload of {end - body} bytes; up to {MAX_FRAME} are taken")
    return size


def _control(line: bytes, frames: Frames) -> None:
    operation = line.split(b" ", 1)[0].upper()
    if operation == b"PING":
        frames.pings += 1
    elif operation == b"PONG":
        frames.pongs += 1
    elif operation == b"-ERR":
        frames.errors.append(line[4:].strip().strip(b"'").decode(errors="replace"))
    elif operation not in (b"+OK", b"INFO"):
        raise ValueError


class Delivery(NamedTuple):
    """Delivery data of records in columns; `pending` is the last record's."""

    seqs: Numbers
    timestamps: Numbers
    first_consumer_seq: int
    last_consumer_seq: int
    pending: int


def deliveries(replies: pa.Array) -> Delivery:
    """Parse `$JS.ACK` subjects of one consumer (nine tokens, or eleven and more). Raises ProtocolError."""
    first_reply, last_reply = replies[0].as_py(), replies[-1].as_py()
    edges = [first_reply.split(b"."), last_reply.split(b".")]
    count = len(edges[0])
    if not first_reply.startswith(_ACK_PREFIX) or (count != _V1_TOKENS and count < _V2_TOKENS):
        raise ProtocolError(f"not a delivery subject: {first_reply[:200]!r}")
    place = _V1_SEQ if count == _V1_TOKENS else _V2_SEQ
    try:
        (first, first_consumer), (last, last_consumer) = (
            (int(edge[place]), int(edge[place + 1])) for edge in edges
        )
        # They rise, so nothing is left out where there are as many.
        is_whole = last - first + 1 == len(replies)
        seqs = np.arange(first, last + 1, dtype=np.int64) if is_whole else _tokens(replies, count, place)
        timestamps = _tokens(replies, count, place + 2)
        return Delivery(seqs, timestamps, first_consumer, last_consumer, int(edges[1][place + 3]))
    except (ValueError, IndexError, OverflowError) as error:
        raise ProtocolError(f"not delivery subjects: {first_reply[:200]!r} and others") from error


def _tokens(replies: pa.Array, count: int, place: int) -> Numbers:
    found = tokens(replies, count, place)
    if found is None:
        found = np.array([int(reply.split(b".")[place]) for reply in replies.to_pylist()], dtype=np.int64)
    return found


def header(headers: bytes, name: bytes) -> bytes | None:
    """Return the last value of a header with this exact name, None when missing.

    The hub's server writes its own header last, so a leaf's earlier one does not count.
    """
    return header_column([headers], name)[0]


def header_column(blocks: list[bytes], name: bytes) -> list[bytes | None]:
    if not any(blocks):
        return [None] * len(blocks)  # what programs publish by themselves has none, and they are many
    mark = b"\r\n" + name + b":"
    skip = len(mark)
    return [
        None if (at := block.rfind(mark)) < 0 else block[at + skip : block.find(b"\r\n", at + 2)].strip()
        for block in blocks
    ]


def parse_headers(headers: bytes) -> list[tuple[str, bytes]]:
    """Return all headers in order with repeats. Invalid UTF-8 in names is replaced."""
    pairs = []
    for line in headers.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            pairs.append((name.decode(errors="replace"), value.strip()))
    return pairs


def status(headers: bytes) -> tuple[int, str]:
    """Return code and description of a status message (`NATS/1.0 409 Consumer Deleted`), (0, "")
    for others.
    """
    parts = headers[: headers.find(b"\r\n")].split(b" ", 2)
    if len(parts) < 2 or not parts[1].isdigit():
        return 0, ""
    return int(parts[1]), parts[2].decode(errors="replace") if len(parts) == 3 else ""


class WireError(Exception):
    """Reading from the hub failed."""


class Unreachable(WireError):  # noqa: N818
    """The server or a service behind it does not answer. A retry may help."""


class Denied(WireError):  # noqa: N818
    """The server refuses the identity or the request. A retry does not help."""


class WrongPort(Denied):
    """The address is a NATS listener that is not for clients."""


class UnknownIdentity(Denied):
    """The server does not know this identity."""


class SourceApiError(WireError):
    """JetStream's negative answer.

    `code` is HTTP-like (404, 400); `err_code` is the exact reason (10059: stream not found).
    """

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(code, err_code, description)
        self.code = code
        self.err_code = err_code
        self.description = description

    def __str__(self) -> str:
        return f"{self.description} (JetStream error {self.err_code}, code {self.code})"


class RangeLost(WireError):  # noqa: N818
    """Records of the range are gone, or the stream is not the planned one."""
