"""What senders of syslog send: however the network cuts it, each message is taken or named."""

from __future__ import annotations

import json

from agent.leaf.inputs.formats import Parsed, join_parsed
from agent.leaf.inputs.syslog.framing import Cut, MessageCutter, framed, messages_of
from agent.leaf.inputs.syslog.parse import MessageParser
from tests.fuzz.inputs import DOMAIN, NOW, are_readings
from tests.fuzz.target import target

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
