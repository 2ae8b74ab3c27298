"""Converts OPC UA notifications and history to readings. Pure: equal messages give equal pieces, so partial
storage can resume.

A status that is not good becomes the tag `status`. Invalid values become letters; variables without value yet
are skipped.
"""

from __future__ import annotations

import hashlib
import math
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec
from asyncua import ua
from asyncua.ua.status_codes import StatusCodes
from msgspec import Struct

from agent import contract
from agent.base.clock import wall_ns
from agent.contract import Letter
from agent.leaf.inputs.formats import split_valid
from agent.leaf.inputs.formats.message import TopicNames
from agent.leaf.inputs.opcua import coverage, events

PIECE_BYTES: Final = contract.MAX_BATCH_BYTES // 2
"""Bytes of readings that end a piece."""
_PIECE_VALUES: Final = 2_000
_SEVERITY: Final = 0xC000_0000
_CODE: Final = 0xFFFF_0000
_OVERFLOW: Final = 0x0480
"""Bits for values lost to a full queue: Part 4, 7.39."""
_NO_VALUE_YET: Final = (StatusCodes.BadWaitingForInitialData, StatusCodes.UncertainInitialValue)
_encode: Final = msgspec.json.encode


class FollowedNode(NamedTuple):
    id: str
    path: str
    names: TopicNames


class Item(NamedTuple):
    """A value of a variable: its time in seconds since 1970, and its line or letter."""

    handle: int
    time: float
    value: bytes
    """A digest."""
    line: bytes
    letter: Letter | None
    overflowed: bool = False
    """Whether the server dropped values before it."""
    event: bytes | None = None
    """The key of an event."""


class NotificationPiece(Struct, frozen=True):
    """NDJSON of `count` readings and letters, stored together."""

    payload: bytes
    count: int
    letters: tuple[Letter, ...]


class SortedNotification(Struct):
    """A decoded message: values in pieces, and variables without a value yet, by handle."""

    pieces: list[list[Item]]
    waiting: list[int]
    lacks_events: bool = False
    """Whether the server dropped events."""


def key_of(node: FollowedNode) -> bytes:
    """Return a digest of a variable and its names."""
    return coverage.digest(_encode(node))


def means(nodes: Sequence[FollowedNode]) -> str:
    """Return a short text of what the handles 0, 1, … mean."""
    return hashlib.sha256(_encode(nodes)).hexdigest()[:16]


def sort(
    message: ua.NotificationMessage, nodes: Sequence[FollowedNode], types: Mapping[str, str] = {}
) -> SortedNotification:
    """Decode a message; `types` names types of events."""
    items: list[Item] = []
    waiting: list[int] = []
    for handle, data in changes(message):
        if 0 <= handle < len(nodes):
            if _code(data) & _CODE in _NO_VALUE_YET:
                waiting.append(handle)
            else:
                items.append(item(handle, nodes[handle], data, time_of(data, message)))
    lacks_events = False
    sent = 0.0 if message.PublishTime is None else aware(message.PublishTime).timestamp()
    for fields in events.received(message):
        lacks_events |= events.is_overflow(fields)
        if not events.is_overflow(fields) and not events.is_refresh(fields):
            event = events.found(fields, types, sent)
            items.append(Item(-1, event.time, event.value, event.line, event.letter, event=event.key))
    return SortedNotification(list(pieces(items)), waiting, lacks_events)


def item(handle: int, node: FollowedNode, data: ua.DataValue, time: float) -> Item:
    """Decode a value."""
    code, value = _code(data), None if data.Value is None else data.Value.Value
    line, content, letter = _line(node, time, value, code)
    is_over = code & _OVERFLOW == _OVERFLOW
    return Item(handle, time, coverage.digest(content), line, letter, is_over)


def pieces(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Part values into pieces that fit a batch."""
    piece: list[Item] = []
    size = 0
    for one in items:
        if piece and (size + len(one.line) > PIECE_BYTES or len(piece) == _PIECE_VALUES):
            yield piece
            piece, size = [], 0
        piece.append(one)
        size += len(one.line)
    if piece:
        yield piece


def built(items: Iterable[Item], domain: str) -> NotificationPiece:
    """Return a piece of these values."""
    lines: list[bytes] = []
    letters: list[Letter] = []
    for one in items:
        lines.append(one.line)
        if one.letter is not None:
            letters.append(one.letter)
    block = b"".join(lines)
    parsed = split_valid(block, domain, wall_ns())
    bad = [Letter(block[at : block.find(b"\n", at)], "a value", reason) for at, reason in parsed.bad]
    return NotificationPiece(parsed.payload, parsed.count, (*letters, *bad))


def changes(message: ua.NotificationMessage) -> Iterable[tuple[int, ua.DataValue]]:
    """Yield handles and values in order."""
    for data in message.NotificationData or ():
        if isinstance(data, ua.DataChangeNotification):
            for item in data.MonitoredItems:
                yield int(item.ClientHandle), item.Value


def endings(message: ua.NotificationMessage) -> list[str]:
    """Return why the subscription ended. A transfer is no reason: node-opcua 2.182 reports it to the new
    session too.
    """
    return [
        data.Status.name
        for data in message.NotificationData or ()
        if isinstance(data, ua.StatusChangeNotification)
        and data.Status.value != StatusCodes.GoodSubscriptionTransferred
    ]


def _line(node: FollowedNode, time: float, received: object, code: int) -> tuple[bytes, bytes, Letter | None]:
    """Return a reading line and its value, or b"", a text of the value, and a letter."""
    status = "" if not code & _SEVERITY else ua.StatusCode(ua.UInt32(code & _CODE)).name
    value = _value(received)
    if value is None:
        reason = f"its status is {status}, and it has no value" if received is None else _no_value(received)
        text = repr(received)
        row = {"node": node.id, "ts": time, "status": status or "Good", "value": text[:2000]}
        return b"", text.encode(errors="replace"), Letter(_encode(row), node.path, reason)
    content = _encode(value)
    line = {name: text for name, text in node.names._asdict().items() if text is not None}
    row = {"ts": time, **line, "value": msgspec.Raw(content)}
    if status:
        row["tags"] = {"status": status}
    return _encode(row) + b"\n", content, None


def _value(value: object) -> bool | int | float | str | list[float | int] | dict[str, str] | None:
    match value:
        case bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case str() if _is_utf8(value):
            return value.replace("\n", " ").replace("\r", " ")
        case ua.LocalizedText():
            return _value(value.Text)
        case datetime():
            return aware(value).isoformat()
        case bytes():
            return {contract.BASE64: b64encode(value).decode()}
        case list() if all(type(number) in (int, float) and math.isfinite(number) for number in value):
            return value or None
    return None


def _is_utf8(text: str) -> bool:
    """Tell whether text was UTF-8; asyncua keeps other bytes as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_value(value: object) -> str:
    if isinstance(value, str | ua.LocalizedText):
        return "its text is not UTF-8"
    if isinstance(value, float):
        return f"{value} is not a finite number"
    if isinstance(value, list):
        return "its value is an array that is empty, of several dimensions or not of finite numbers"
    kind = type(value).__name__
    return f"its value is of the type {kind}, which is not a value of a reading"


def time_of(data: ua.DataValue, message: ua.NotificationMessage | None = None) -> float:
    """Return a value's time: of its source, its server, or its message."""
    sent = None if message is None else message.PublishTime
    for time in (data.SourceTimestamp, data.ServerTimestamp, sent):
        if time is not None and (seconds := aware(time).timestamp()) > 0:
            return seconds
    return wall_ns() / 1e9


def _code(data: ua.DataValue) -> int:
    return data.StatusCode.value if data.StatusCode is not None else 0


def aware(time: datetime) -> datetime:
    """Return a time that states its zone; the library leaves out UTC."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
