"""From notifications of OPC UA to readings. Pure: the same message makes the same pieces whenever it is sent,
so that one of which a part is stored can be gone on with.

A value whose status is not good keeps it as the tag `status`. A bad one without a value and what else is no
value become letters; a variable that has no value yet is passed over.
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
"""Bytes of readings after which a piece ends."""
_SEVERITY: Final = 0xC000_0000
_CODE: Final = 0xFFFF_0000
_OVERFLOW: Final = 0x0480
"""The bits by which a server says that values before this one did not fit its queue: Part 4, 7.39."""
_NO_VALUE_YET: Final = (StatusCodes.BadWaitingForInitialData, StatusCodes.UncertainInitialValue)
_encode: Final = msgspec.json.encode


class FollowedNode(NamedTuple):
    """A variable that is followed."""

    id: str
    path: str
    names: TopicNames


class Change(NamedTuple):
    """A value of a variable: when it was measured, in seconds since 1970, and what it was."""

    time: float
    value: object


class NotificationPiece(Struct, frozen=True):
    """What is stored together of a message: NDJSON of `count` readings, and letters."""

    payload: bytes
    count: int
    letters: tuple[Letter, ...]
    whole: bool
    """Whether it has all values of its part of the message, for none of them is stored already."""


class SortedNotification(Struct):
    """A message taken apart."""

    pieces: list[NotificationPiece]
    newest: dict[int, Change]
    """The last change of each handle."""
    overflowed: list[str]
    """The paths of variables of which the server has dropped values."""


def digest(nodes: Sequence[FollowedNode]) -> str:
    """What the handles 0, 1, … of these nodes mean, as a short text."""
    return hashlib.sha256(_encode(nodes)).hexdigest()[:16]


def sort(
    message: ua.NotificationMessage,
    nodes: Sequence[FollowedNode],
    domain: str,
    known: dict[int, Change] | None = None,
) -> SortedNotification:
    """Take a message apart. What `known` has of a handle already is passed over: a new subscription begins
    with the present value of each variable. The pieces end where they would without `known`."""
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
    """The values of a message, with the handles of their variables, in order."""
    for data in message.NotificationData or ():
        if isinstance(data, ua.DataChangeNotification):
            for item in data.MonitoredItems:
                yield int(item.ClientHandle), item.Value


def endings(message: ua.NotificationMessage) -> list[str]:
    """Why the subscription is over, by what a message says of it. That it was transferred is no reason:
    node-opcua 2.182 says so to the session that has taken over, and where another one has, the next request
    is refused."""
    return [
        data.Status.name
        for data in message.NotificationData or ()
        if isinstance(data, ua.StatusChangeNotification)
        and data.Status.value != StatusCodes.GoodSubscriptionTransferred
    ]


def _line(node: FollowedNode, change: Change, code: int) -> tuple[bytes, Letter | None]:
    """A reading as a line; an empty one and a letter where it is none."""
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
    """Whether it came as UTF-8; asyncua keeps any other byte as a lone surrogate."""
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
