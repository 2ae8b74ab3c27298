"""What a server of OPC UA says: whatever asyncua makes of its bytes, each value is a reading or named."""

from __future__ import annotations

from asyncua import ua
from asyncua.common.utils import Buffer
from asyncua.ua.ua_binary import struct_from_binary, struct_to_binary

from agent.leaf.inputs.formats.message import TopicNames
from agent.leaf.inputs.opcua.notifications import FollowedNode, endings, sort
from tests.fuzz.inputs import DOMAIN, are_readings
from tests.fuzz.target import target

_NODES = [FollowedNode(f"i={number}", f"Line/{number}", TopicNames("d", f"m{number}")) for number in range(3)]
_TIME = ua.DateTime(2026, 3, 1)


def _said(*values: ua.DataValue) -> bytes:
    """A message of a server, as it comes."""
    items = [ua.MonitoredItemNotification(ua.IntegerId(at), value) for at, value in enumerate(values)]
    data = [ua.DataChangeNotification(MonitoredItems=items)]
    return bytes(struct_to_binary(ua.NotificationMessage(ua.Counter(1), _TIME, data)))


def _value(value: object, status: int = 0) -> ua.DataValue:
    return ua.DataValue(ua.Variant(value), ua.StatusCode(ua.UInt32(status)), _TIME, _TIME)


@target(
    _said(_value(1.5), _value("a\nb"), _value(True)),
    _said(_value([1.0, 2.0]), _value(2**40, 0x4000_0480), _value(None, 0x8000_0000)),
    _said(_value(ua.LocalizedText("t")), _value(ua.DateTime(1601, 1, 1)), _value(b"x")),
)
def opcua(data: bytes) -> None:
    try:
        message = struct_from_binary(ua.NotificationMessage, Buffer(data))
    except Exception:  # asyncua ends the connection then, and the input none of it
        return
    found = sort(message, _NODES, DOMAIN)
    for piece in found.pieces:
        are_readings(piece.payload, piece.count)
        assert all(letter.encode() for letter in piece.letters)
    assert found.newest.keys() <= {0, 1, 2}
    assert all(isinstance(text, str) for text in endings(message))
    repeated = sort(message, _NODES, DOMAIN, found.newest)
    assert sum(piece.count for piece in repeated.pieces) <= sum(piece.count for piece in found.pieces)
