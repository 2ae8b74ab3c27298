"""Cuts a stream into syslog messages by RFC 6587: octet counting, or newline or NUL. No I/O.

The first byte decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct, field

from agent.contract import MAX_RECEIVED

_BLANK: Final = b"\r\n\0"
_COUNT: Final = re.compile(rb"([1-9][0-9]{0,8}) ").match
_COUNT_BEGINS: Final = re.compile(rb"[1-9][0-9]{0,8}\Z").match
_HTTP: Final = re.compile(rb"[A-Z]{3,10} [/*h]").match
_TLS: Final = b"\x16\x03"
"""Start of a TLS handshake: record type 22 and version."""
_FIRST: Final = 12
"""Bytes that identify HTTP."""


class Cut(Struct):
    """Messages completed by some bytes."""

    messages: list[bytes] = field(default_factory=list)
    too_long: list[tuple[bytes, int | None]] = field(default_factory=list)
    """Beginnings of overlong messages, with size if known."""
    fault: Fault | None = None
    """Why the stream is unreadable."""


class Fault(Struct, frozen=True):
    """An unreadable stream; `reason` is the label, `rest` is unread."""

    reason: str
    text: str
    rest: bytes = b""


class MessageCutter:
    """Cuts a stream into messages of at most `longest` bytes; holds only the beginning of longer ones."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rest = b""
        self._counted: bool | None = None
        self._end = b""
        self._long: bytes | None = None
        """Beginning of an unfinished overlong message,"""
        self._size = 0
        """its size if known,"""
        self._skip = 0
        """and its bytes still to come."""

    def feed(self, data: bytes) -> Cut:
        """Return the messages that `data` completes. Do not feed after a fault."""
        cut = Cut()
        data = self._rest + data
        self._rest = b""
        if self._counted is None:
            data = data.lstrip(_BLANK)
            if not data or (fault := _stranger(data)) is not None:
                cut.fault = fault if data else None
                return cut
            self._counted = data[:1].isdigit()
        if self._counted:
            self._cut_counted(data, cut)
        else:
            self._cut_ended(data, cut)
        return cut

    def end(self) -> bytes:
        """Return the unfinished message."""
        rest = self._rest if self._long is None else self._long
        self._rest, self._long = b"", None
        return rest

    def _cut_counted(self, data: bytes, cut: Cut) -> None:
        at = self._skipped(data, cut)
        while at < len(data):
            count = _COUNT(data, at)
            if count is None:
                if data[at] in _BLANK:  # some senders end each message by a newline that they do not count
                    at += 1
                    continue
                if _COUNT_BEGINS(data, at):
                    break
                text = "a message has no length and space before it (octet counting)"
                cut.fault = Fault("framing", text, data[at:])
                return
            begin = count.end()
            end = begin + int(count[1])
            if end - begin > self._longest:
                self._long, self._size = b"", end - begin
                self._skip = self._size
                at = begin + self._skipped(data[begin:], cut)
                continue
            if end > len(data):
                break
            cut.messages.append(data[begin:end].rstrip(_BLANK))  # rsyslog counts a newline of its own
            at = end
        self._rest = data[at:]

    def _skipped(self, data: bytes, cut: Cut) -> int:
        """Return how many bytes belong to an overlong message."""
        if self._long is None:
            return 0
        size = min(self._skip, len(data))
        self._long += data[: min(size, MAX_RECEIVED - len(self._long))]
        self._skip -= size
        if not self._skip:
            cut.too_long.append((self._long, self._size))
            self._long = None
        return size

    def _cut_ended(self, data: bytes, cut: Cut) -> None:
        # Python's SysLogHandler ends messages by NUL, and they may hold newlines then.
        if not self._end and (b"\n" in data or b"\0" in data):
            self._end = b"\0" if b"\0" in data else b"\n"
        *ended, rest = data.split(self._end) if self._end else (data,)
        for message in ended:
            if self._long is not None or len(message) > self._longest:
                size = None if self._long is not None else len(message)
                cut.too_long.append((self._long or message[:MAX_RECEIVED], size))
                self._long = None
            elif message := message.strip(_BLANK):
                cut.messages.append(message)
        if self._long is None and len(rest) > self._longest:
            self._long = rest[:MAX_RECEIVED]
        self._rest = b"" if self._long is not None else rest


def _stranger(data: bytes) -> Fault | None:
    """Return the fault of a connection that is no syslog."""
    if data.startswith(_TLS):
        return Fault("tls", "this is TLS and the port has none; give tls_cert and tls_key, or send plainly")
    if _HTTP(data[:_FIRST]):
        return Fault("http", "this is HTTP, for which there is the input http")
    return None


def framed(messages: list[bytes]) -> bytes:
    """Join messages, each after its length."""
    return b"".join([b"%d %s" % (len(message), message) for message in messages])


def message_at(block: bytes, offset: int) -> bytes:
    """Return the message at an offset."""
    begin = block.index(b" ", offset) + 1
    return block[begin : begin + int(block[offset : begin - 1])]


def messages_of(block: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield messages with offsets."""
    offset = 0
    while offset < len(block):
        message = message_at(block, offset)
        yield offset, message
        offset = block.index(b" ", offset) + 1 + len(message)
