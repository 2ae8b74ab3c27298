"""Converts OPC UA notifications to readings. Pure: equal messages give equal pieces, so partial storage can
resume.

A status that is not good becomes the tag `status`. Invalid values become letters; variables without value yet
are skipped.
"""

from __future__ import annotations

import hashlib
import math
from base64 import b64encode
from collections.abc import Iterable, Sequence
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

PIECE_BYTES: Final = contract.MAX_BATCH_BYTES // 2
"""Bytes of readings that end a piece."""
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


class Change(NamedTuple):
    """A value of a variable and its time in seconds since 1970."""

    time: float
    value: object


class NotificationPiece(Struct, frozen=True):
    """NDJSON of `count` readings and letters, stored together."""

    payload: bytes
    count: int
    letters: tuple[Letter, ...]
    whole: bool
    """Whether no value of its part was stored before."""


class SortedNotification(Struct):
    """A decoded message."""

    pieces: list[NotificationPiece]
    newest: dict[int, Change]
    """Last change per handle."""
    overflowed: list[str]
    """Paths of variables with lost values."""


def digest(nodes: Sequence[FollowedNode]) -> str:
    """Return a short text of what the handles 0, 1, … mean."""
    return hashlib.sha256(_encode(nodes)).hexdigest()[:16]


def sort(
    message: ua.NotificationMessage,
    nodes: Sequence[FollowedNode],
    domain: str,
    known: dict[int, Change] | None = None,
) -> SortedNotification:
    """Decode a message, skipping values in `known`, which new subscriptions repeat. Piece bounds do not
    depend on `known`.
    """
    result = SortedNotification([], {}, [])
    lines: list[bytes] = []
    letters: list[Letter] = []
    size = items = 0
    for handle, data in changes(message):
        if not 0 <= handle < len(nodes):
            continue
        node, code = nodes[handle], data.StatusCode.value if data.StatusCode is not None else 0
        if code & _OVERFLOW == _OVERFLOW:
            result.overflowed.append(node.path)
        if code & _CODE in _NO_VALUE_YET:
            continue
        change = Change(_time(data, message), None if data.Value is None else data.Value.Value)
        result.newest[handle] = change
        line, letter = _line(node, change, code)
        if size and size + len(line) > PIECE_BYTES:
            result.pieces.append(_piece(lines, letters, domain, items))
            lines, letters, size, items = [], [], 0, 0
        # What is passed over counts too: after a kill it is not known, and the pieces must be the same.
        size, items = size + len(line), items + 1
        if known is not None and known.get(handle) == change:
            continue
        lines.append(line)
        if letter is not None:
            letters.append(letter)
    if items:
        result.pieces.append(_piece(lines, letters, domain, items))
    return result


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


def _line(node: FollowedNode, change: Change, code: int) -> tuple[bytes, Letter | None]:
    """Return a reading line, or b"" and a letter."""
    value, status = (
        _value(change.value),
        "" if not code & _SEVERITY else ua.StatusCode(ua.UInt32(code & _CODE)).name,
    )
    if value is None:
        reason = (
            f"its status is {status}, and it has no value"
            if change.value is None
            else _no_value(change.value)
        )
        row = {
            "node": node.id,
            "ts": change.time,
            "status": status or "Good",
            "value": repr(change.value)[:2000],
        }
        return b"", Letter(_encode(row), node.path, reason)
    line = {name: text for name, text in node.names._asdict().items() if text is not None}
    row = {"ts": change.time, **line, "value": value} | ({"tags": {"status": status}} if status else {})
    return _encode(row) + b"\n", None


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
            return _aware(value).isoformat()
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


def _time(data: ua.DataValue, message: ua.NotificationMessage) -> float:
    for time in (data.SourceTimestamp, data.ServerTimestamp, message.PublishTime):
        if time is not None and (seconds := _aware(time).timestamp()) > 0:
            return seconds
    return wall_ns() / 1e9


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _piece(lines: list[bytes], letters: list[Letter], domain: str, items: int) -> NotificationPiece:
    block = b"".join(lines)
    parsed = split_valid(block, domain, wall_ns())
    bad = [Letter(block[at : block.find(b"\n", at)], "a value", reason) for at, reason in parsed.bad]
    return NotificationPiece(parsed.payload, parsed.count, (*letters, *bad), whole=len(lines) == items)
