"""Converts events and conditions of OPC UA to readings (OPC 10000-9). No I/O.

One reading per event: the value is its message, the metric `event`, the time its own. A tag holds each
further field that has a value. An event is known by its condition, or its source and type, and its `EventId`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec
from asyncua import ua
from asyncua.ua.attribute_ids import AttributeIds
from asyncua.ua.object_ids import ObjectIds

from agent.base.clock import wall_ns
from agent.contract import Letter
from agent.leaf.inputs.opcua.coverage import digest

METRIC: Final = "event"
_TEXT: Final = 2_000
"""Characters of a field."""
_BASE, _CONDITION = ObjectIds.BaseEventType, ObjectIds.ConditionType
_ACKNOWLEDGED, _ALARM = ObjectIds.AcknowledgeableConditionType, ObjectIds.AlarmConditionType
_FIELDS: Final[Mapping[str, tuple[int, str]]] = {
    "id": (_BASE, "EventId"),
    "type": (_BASE, "EventType"),
    "source_node": (_BASE, "SourceNode"),
    "source": (_BASE, "SourceName"),
    "time": (_BASE, "Time"),
    "message": (_BASE, "Message"),
    "severity": (_BASE, "Severity"),
    "condition": (_CONDITION, "ConditionName"),
    "condition_node": (_CONDITION, ""),
    "branch": (_CONDITION, "BranchId"),
    "retain": (_CONDITION, "Retain"),
    "enabled": (_CONDITION, "EnabledState/Id"),
    "comment": (_CONDITION, "Comment"),
    "user": (_CONDITION, "ClientUserId"),
    "acknowledged": (_ACKNOWLEDGED, "AckedState/Id"),
    "confirmed": (_ACKNOWLEDGED, "ConfirmedState/Id"),
    "active": (_ALARM, "ActiveState/Id"),
}
"""The field of each tag: its type and path; without a path it is the node's id."""
_NO_TAGS: Final = frozenset(("time", "message", "condition_node", "source_node"))
_REFRESH: Final = frozenset(
    (
        ObjectIds.RefreshStartEventType,
        ObjectIds.RefreshEndEventType,
        ObjectIds.RefreshRequiredEventType,
    )
)


class FoundEvent(NamedTuple):
    """An event's place in the coverage, and its reading or letter."""

    key: bytes
    time: float
    value: bytes
    line: bytes
    letter: Letter | None


def event_filter() -> ua.EventFilter:
    """Return the fields to send of each event."""
    return ua.EventFilter(
        SelectClauses=[
            ua.SimpleAttributeOperand(
                TypeDefinitionId=ua.NodeId(ua.Int32(kind)),
                BrowsePath=[ua.QualifiedName(name) for name in path.split("/") if name],
                AttributeId=AttributeIds.Value if path else AttributeIds.NodeId,
            )
            for kind, path in _FIELDS.values()
        ]
    )


def received(message: ua.NotificationMessage) -> Iterator[dict[str, object]]:
    """Yield the fields of a notification's events."""
    for data in message.NotificationData or ():
        if isinstance(data, ua.EventNotificationList):
            for event in data.Events or ():
                values = [None if field is None else field.Value for field in event.EventFields or ()]
                yield dict(zip(_FIELDS, values, strict=False))


def type_of(fields: Mapping[str, object]) -> str | None:
    """Return the node id of an event's type."""
    kind = fields.get("type")
    return kind.to_string() if isinstance(kind, ua.NodeId) else None


def is_of(fields: Mapping[str, object], *kinds: int) -> bool:
    """Tell whether an event is of a standard type."""
    kind = fields.get("type")
    return isinstance(kind, ua.NodeId) and kind.NamespaceIndex == 0 and kind.Identifier in kinds


def is_overflow(fields: Mapping[str, object]) -> bool:
    """Tell whether the server dropped events."""
    return is_of(fields, ObjectIds.EventQueueOverflowEventType)


def is_refresh(fields: Mapping[str, object]) -> bool:
    """Tell whether an event is about a refresh of conditions alone."""
    return is_of(fields, *_REFRESH)


def found(fields: Mapping[str, object], types: Mapping[str, str], sent: float) -> FoundEvent:
    """Return the reading of an event. `types` names types by node id."""
    texts = {name: text for name, value in fields.items() if (text := _text(value)) is not None}
    kind = texts.get("type", "")
    texts["type"] = types.get(kind, kind)
    branch = texts.get("branch", "")
    if branch == "i=0":  # the condition itself
        texts.pop("branch")
    time = fields.get("time")
    at = sent if sent > 0 else wall_ns() / 1e9
    if isinstance(time, datetime) and time.year > 1970:
        at = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    place = texts.get("condition_node") or f"{texts.get('source_node', '')} {kind}"
    ident = fields.get("id")
    value = ident if isinstance(ident, bytes) and ident else repr(sorted(texts.items())).encode()
    tags = {name: text for name, text in texts.items() if name not in _NO_TAGS and text}
    row = {"ts": at, "metric": METRIC, "value": texts.get("message", ""), "tags": tags}
    key = digest(b"event", place.encode(errors="replace"), branch.encode(errors="replace"))
    try:
        return FoundEvent(key, at, digest(value), msgspec.json.encode(row) + b"\n", None)
    except UnicodeEncodeError:
        letter = Letter(repr(row).encode(errors="replace"), METRIC, "its text is not UTF-8")
        return FoundEvent(key, at, digest(value), b"", letter)


def _text(value: object) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case bytes():
            return value.hex()
        case ua.NodeId():
            return value.to_string()
        case ua.LocalizedText():
            return None if value.Text is None else _text(value.Text)
    return str(value)[:_TEXT].replace("\n", " ").replace("\r", " ")
