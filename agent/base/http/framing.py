"""Parses HTTP/1.1 heads and chunked bodies by llhttp, strictly. No I/O.

Ambiguous input, which a proxy might read differently, is refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from msgspec import Struct

from agent.base.wait import SPAN

END: Final = b"\r\n\r\n"
"""End of a head."""
_LINE: Final = 8 * 1024
"""Bytes of a header or request line."""
_HEADERS: Final = 64
_HEAD: Final = 64 * 1024
"""Bytes of a head."""
_TLS: Final = b"\x16\x03"
_SINGLE: Final = frozenset({"content-length", "content-type", "host", "transfer-encoding", "user-agent"})


class NotHttpError(ValueError):
    """Invalid request bytes; the text has the reason and may quote them."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the request is not HTTP: {' '.join(reason.split()):.200}")


class HttpRequest(Struct, frozen=True):
    """A request without body."""

    method: str
    target: str
    """Path and query as received."""
    path: str
    """Unescaped."""
    headers: Mapping[str, str]
    """By lower-case name; the first of repeats."""
    repeated: frozenset[str]
    """Repeated names."""
    length: int | None
    """Body bytes; None without `Content-Length`."""
    chunked: bool
    """Whether the body is chunked."""
    keeps: bool
    """Whether the connection continues."""
    version: str
    """`1.1` or `1.0`."""

    def query(self) -> dict[str, str]:
        """Return query values by name; the first of repeats."""
        pairs = parse_qsl(self.target.partition("?")[2], keep_blank_values=True)
        return dict(reversed(pairs))


class HeadReader:
    """Reads one head; `raw` has its bytes."""

    def __init__(self) -> None:
        self.raw = bytearray()
        self._parser = HttpRequestParser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._whole = False
        self._keeps = False

    def on_url(self, url: bytes) -> None:
        """Parser callback, as the methods below."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._whole = True
        self._keeps = self._parser.should_keep_alive()

    def feed(self, data: bytes) -> int | None:
        """Read on; returns how many bytes end the head, or None. Raises `NotHttpError`."""
        before = len(self.raw)
        self.raw += data
        end = self.raw.find(END, max(0, before - len(END) + 1))
        taken = len(data) if end < 0 else end + len(END) - before
        del self.raw[before + taken :]
        try:
            self._parser.feed_data(data[:taken])
        except HttpParserUpgrade:
            pass  # to what no listener speaks: a server may go on in HTTP/1.1
        except HttpParserError as error:
            tls = self.raw.startswith(_TLS)
            raise NotHttpError(
                "TLS, and this port has none (tls_cert, tls_key)" if tls else str(error)
            ) from None
        self._check_size()
        if end < 0:
            return None
        if not self._whole:
            raise NotHttpError("its head ends in the middle")
        return taken

    def _check_size(self) -> None:
        lines = self.raw.split(b"\r\n", _HEADERS + 3)
        if len(lines) > _HEADERS + 3:  # the request line, and two that are empty
            raise NotHttpError(f"more than {_HEADERS} headers")
        if max(map(len, lines)) > _LINE or len(self.raw) > _HEAD:
            raise NotHttpError(f"a line above {_LINE} bytes, or all above {_HEAD}")

    def request(self) -> HttpRequest:
        """Return the request. Raises `NotHttpError`."""
        headers: dict[str, str] = {}
        repeated = set()
        for name, value in self._headers:
            key = name.decode("ascii").lower()
            if key in headers:
                repeated.add(key)
            else:
                headers[key] = value.decode(errors="surrogateescape").strip(" \t")
        if twice := repeated & _SINGLE:
            raise NotHttpError(f"more than one header {min(twice)}")
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise NotHttpError(f"HTTP/{version}; speak HTTP/1.1")
        if version == "1.1" and "host" not in headers:
            raise NotHttpError("no header host")
        path, target = _split_target(self._url)
        length = headers.get("content-length")
        return HttpRequest(
            method=self._parser.get_method().decode("ascii"),
            target=target,
            path=path,
            headers=headers,
            repeated=frozenset(repeated),
            length=None if length is None else int(length),
            chunked=_is_chunked(headers, version),
            keeps=self._keeps,
            version=version,
        )


def _is_chunked(headers: Mapping[str, str], version: str) -> bool:
    coding = headers.get("transfer-encoding")
    if coding is None:
        return False
    if coding.lower() != "chunked" or version == "1.0" or "content-length" in headers:
        raise NotHttpError("Transfer-Encoding must be chunked, in HTTP/1.1 and without Content-Length")
    return True


def _split_target(url: bytes) -> tuple[str, str]:
    """Return the unescaped path, and the target as received."""
    target = url.decode("ascii", errors="replace").partition("#")[0]
    if not target.startswith("/"):
        try:
            parts = urlsplit(target)  # in absolute form, as a proxy is asked
            _ = parts.port
        except ValueError:
            raise NotHttpError(f"its target is {target:.100}") from None
        target = parts.path + (f"?{parts.query}" if parts.query else "")
    path, _, query = target.partition("?")
    return unquote(path), target if query else path


_CHUNKED_HEAD: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
"""A fixed head for bodies; after an upgrade in the sender's, llhttp reads none."""
_FRAMING: Final = 16 * 1024
"""Consecutive bytes outside the body: chunk extensions and ignored trailers."""
_PIECE: Final = 16 * 1024
"""Bytes per parser call."""


class ChunkedBody:
    """One body; `data` is unframed."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.whole = False
        self._tail = b""
        self._framing = 0
        self._parser = HttpRequestParser(self)
        self._parser.feed_data(_CHUNKED_HEAD)

    def on_body(self, part: bytes) -> None:
        """Parser callback, as below."""
        self.data += part

    def on_message_complete(self) -> None:
        self.whole = True

    def feed(self, data: bytes) -> int:
        """Read on for a few milliseconds; returns consumed bytes. Stops when `whole`. Raises `NotHttpError`.

        The parser does not report the body's end, so it never gets bytes beyond a possible end.
        """
        begin, due = 0, time.perf_counter() + SPAN
        while begin < len(data) and not self.whole and time.perf_counter() < due:
            end = self._possible_end(data, begin)
            self._feed(data[begin:end])
            begin = end
        return begin

    def _possible_end(self, data: bytes, begin: int) -> int:
        """Return the offset after the next empty line, which may have begun earlier."""
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
            raise NotHttpError(str(error)) from None
        self._tail = (self._tail + part)[1 - len(END) :]
        self._framing = 0 if len(self.data) > before else self._framing + len(part)
        if self._framing > _FRAMING:
            raise NotHttpError(f"more than {_FRAMING} bytes between two parts of its body")
