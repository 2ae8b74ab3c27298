"""Encodes HTTP answers. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from http import HTTPStatus

from agent.base.http.framing import HttpRequest


class Response:
    """An encoded answer."""

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        blocks: Sequence[bytes] = (),
    ) -> None:
        self.status = status
        self.blocks = blocks
        """Blocks after the body, sent at the reader's pace and possibly shared."""
        fields = {"Server": "petiole", **(headers or {})}
        if content_type is not None:
            length = len(body) + sum(map(len, blocks))
            fields |= {"Content-Type": content_type, "Content-Length": str(length)}
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{k}: {v}" for k, v in fields.items())]
        self._head = "\r\n".join(lines).encode()
        self._body = body
        self.kept = self._head + b"\r\n\r\n" + body
        """For a continuing HTTP/1.1 connection."""

    def also(self, headers: Mapping[str, str]) -> Response:
        """Return a copy with more headers."""
        more = copy(self)
        more._head += "".join(f"\r\n{name}: {value}" for name, value in headers.items()).encode()
        more.kept = more._head + b"\r\n\r\n" + more._body
        return more

    def encode(self, connection: str, *, bodiless: bool = False) -> bytes:
        """Return the bytes with a `Connection` header; `bodiless` for HEAD."""
        body = b"" if bodiless else self._body
        return b"%b\r\nConnection: %b\r\n\r\n%b" % (self._head, connection.encode(), body)

    def to(self, request: HttpRequest | None, *, ends: bool) -> bytes:
        """Return the answer to a request (None: unreadable); `ends` closes the connection."""
        if not ends and request is not None and request.version == "1.1" and request.method != "HEAD":
            return self.kept
        bodiless = request is not None and request.method == "HEAD"
        return self.encode("close" if ends else "keep-alive", bodiless=bodiless)
