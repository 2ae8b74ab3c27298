"""What protocols frame: where requests of HTTP end, the same however the network cuts what comes; what
senders of syslog send, each message taken or named; and what a server of OPC UA says: whatever asyncua makes
of its bytes, each value is a reading or named."""

from __future__ import annotations

import json

from asyncua import ua
from asyncua.common.utils import Buffer
from asyncua.ua.ua_binary import struct_from_binary, struct_to_binary

from agent.base.http.framing import ChunkedBody, HeadReader, HttpRequest, NotHttpError
from agent.leaf.inputs.formats import Parsed, join_parsed
from agent.leaf.inputs.formats.message import TopicNames
from agent.leaf.inputs.opcua import decoding
from agent.leaf.inputs.opcua.notifications import FollowedNode, built, endings, sort
from agent.leaf.inputs.syslog.framing import Cut, MessageCutter, framed, messages_of
from agent.leaf.inputs.syslog.parse import MessageParser
from tests.fuzz.inputs import DOMAIN, NOW, are_readings
from tests.fuzz.target import target

_REST = b"GET"


def _pieces(data: bytes) -> tuple[list[bytes], bytes]:
    """What comes, cut at a place that its first byte says, and whole."""
    cut, whole = data[0] if data else 0, data[1:]
    return [piece for piece in (whole[:cut], whole[cut:]) if piece], whole


def _head(pieces: list[bytes]) -> tuple[HttpRequest, int] | str:
    reader, before = HeadReader(), 0
    try:
        for piece in pieces:
            if (taken := reader.feed(piece)) is not None:
                return reader.request(), before + taken
            before += len(piece)
    except NotHttpError:
        return "refused"
    return "goes on"


def _body(pieces: list[bytes]) -> tuple[bytes, bytes] | str:
    body, left = ChunkedBody(), b""
    try:
        for piece in pieces:
            left += piece
            while left and not body.whole:
                left = left[body.feed(left) :]
    except NotHttpError:
        return "refused"
    return (bytes(body.data), left) if body.whole else "goes on"


@target(
    b"\x05POST /write?a=b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
    b"\x1fPOST /v1/readings HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nX: a\r\n\r\n",
    b"\x00GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
)
def http_head(data: bytes) -> None:
    pieces, whole = _pieces(data)
    head = _head(pieces)
    assert head == _head([whole])
    if isinstance(head, tuple):
        request, taken = head
        assert whole[:taken].endswith(b"\r\n\r\n")
        assert whole[:taken].count(b"\r\n\r\n") == 1
        assert request.length is None or not request.chunked


@target(b"\x043\r\nabc\r\n0\r\n\r\n", b"\x094;a=b\r\n\r\n\r\n\r\n0\r\nX: y\r\n\r\n", b"\x010\r\n\r\n")
def http_chunks(data: bytes) -> None:
    pieces, whole = _pieces(data)
    body = _body(pieces)
    assert body == _body([whole])
    if isinstance(body, tuple):
        assert _body([whole + _REST]) == (body[0], body[1] + _REST)


decoding.bound()
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
    for items in sort(message, _NODES).pieces:
        piece = built(items, DOMAIN)
        are_readings(piece.payload, piece.count)
        assert all(letter.encode() for letter in piece.letters)
        assert {item.handle for item in items} <= {0, 1, 2}
    assert all(isinstance(text, str) for text in endings(message))


_LONGEST = 32
_5424 = b'<165>1 2003-10-11T22:14:15.003Z host app 7 ID47 [a@1 b="c\\"]" d=""][e] \xef\xbb\xbftext'
_3164 = b"<13>Nov  3 08:36:40 host app[12]: text\n<13>2026-11-23T08:00:00.1+01:00 h a: b\n"


def _cut(data: bytes, size: int) -> Cut:
    cutter, whole = MessageCutter(_LONGEST), Cut()
    for at in range(0, len(data), size):
        part = cutter.feed(data[at : at + size])
        whole.messages += part.messages
        whole.too_long += part.too_long
        if part.fault is not None:
            whole.fault = part.fault
            break
    else:
        whole.messages.append(cutter.end())
    return whole


@target(b"5 <1>ab10 <2>b\nbbb\n5\n6 <3>ccc", b"<1>a\r\n\n<2>b\n", b"40 <1>" + b"x" * 50, b"\x16\x03\x01")
def syslog_framing(data: bytes) -> None:
    """A stream cut into pieces anywhere has the same messages as in one."""
    first = data.lstrip(b"\r\n\0")[:1]
    if first.isupper() or (b"\0" in data and not first.isdigit()):
        return  # HTTP, and whether NUL ends messages, are seen by what comes at once
    whole, pieces = _cut(data, max(1, len(data))), _cut(data, 7)
    ends = whole.messages[-1:] if whole.fault is None else []
    assert (whole.fault is None) == (pieces.fault is None)
    if ends and len(ends[0]) > _LONGEST:  # the beginning of one that is too long and not at its end
        assert len(pieces.messages) == len(whole.messages)
    else:
        assert pieces.messages == whole.messages
    assert len(pieces.too_long) == len(whole.too_long)
    assert all(len(message) <= _LONGEST for message in whole.messages[: -len(ends) or None])


@target(_5424, _3164, b"<192>x\n<1>\nno\n<13>1 - - - - - -\n<13>1 - h - - - [a\n", b"<0>29: *Mar 1: %S: \xff")
def syslog(data: bytes) -> None:
    """Each line of a body is taken, with its text at the end of it, or named."""
    messages = data.split(b"\n")
    block = framed(messages)
    assert [message for _, message in messages_of(block)] == messages
    found: Parsed = join_parsed(list(MessageParser("m", DOMAIN).parts(block, NOW)))
    are_readings(found.payload, found.count)
    bad = {offset for offset, _ in found.bad}
    taken = [message for offset, message in messages_of(block) if offset not in bad]
    assert len(bad) == len(found.bad)
    assert len(taken) == found.count, "none is so long that it is split"
    for message, line in zip(taken, found.payload.splitlines(), strict=True):
        assert message.decode(errors="backslashreplace").endswith(json.loads(line)["value"])
