"""Bodies that come in chunks (`Transfer-Encoding: chunked`), taken apart by llhttp. No I/O."""

from __future__ import annotations

import time
from typing import Final

from httptools import HttpParserError, HttpRequestParser

from agent.base.wait import SPAN
from agent.leaf.inputs.http.head_reader import END
from agent.leaf.inputs.http.responses import not_http

_HEAD: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
"""A head of our own: the sender's may name an upgrade, after which llhttp reads no body."""
_FRAMING: Final = 16 * 1024
"""Bytes in a row that are no body: extensions of a chunk, and trailers, which are ignored."""
_PIECE: Final = 16 * 1024
"""Bytes that the parser gets at a time."""


class ChunkedBody:
    """One body: `data` is what came of it, unframed."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.whole = False
        self._tail = b""
        self._framing = 0
        self._parser = HttpRequestParser(self)
        self._parser.feed_data(_HEAD)

    def on_body(self, part: bytes) -> None:
        """Called by the parser, as the method below."""
        self.data += part

    def on_message_complete(self) -> None:
        self.whole = True

    def feed(self, data: bytes) -> int:
        """Take in more, for a few milliseconds; returns how many of these bytes were taken. Once `whole` the
        others are not the body's. Raises `HttpError` 400.

        The parser does not say where a body ends, so it gets what may be the end and nothing behind it."""
        begin, due = 0, time.perf_counter() + SPAN
        while begin < len(data) and not self.whole and time.perf_counter() < due:
            end = self._possible_end(data, begin)
            self._feed(data[begin:end])
            begin = end
        return begin

    def _possible_end(self, data: bytes, begin: int) -> int:
        """Behind the next empty line, which may have begun in the bytes before."""
        overlap = self._tail + data[begin : begin + len(END) - 1]
        if (found := overlap.find(END)) >= 0:
            return begin + found + len(END) - len(self._tail)
        limit = min(len(data), begin + _PIECE)
        found = data.find(END, begin, limit)
        return limit if found < 0 else found + len(END)

    def _feed(self, part: bytes) -> None:
        before = len(self.data)
        try:
            self._parser.feed_data(part)
        except HttpParserError as error:
            raise not_http(str(error)) from None
        self._tail = (self._tail + part)[1 - len(END) :]
        self._framing = 0 if len(self.data) > before else self._framing + len(part)
        if self._framing > _FRAMING:
            raise not_http(f"more than {_FRAMING} bytes between two parts of its body")
