"""Where requests of HTTP end: the same however the network cuts what comes."""

from __future__ import annotations

from agent.leaf.inputs.http.framing import ChunkedBody, HeadReader, HttpRequest
from agent.leaf.inputs.http.responses import HttpError
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
    except HttpError:
        return "refused"
    return "goes on"


def _body(pieces: list[bytes]) -> tuple[bytes, bytes] | str:
    body, left = ChunkedBody(), b""
    try:
        for piece in pieces:
            left += piece
            while left and not body.whole:
                left = left[body.feed(left) :]
    except HttpError:
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
