"""Heads and chunked bodies: the same however the network cuts them, and nothing is read in two ways."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.http.framing import ChunkedBody, HeadReader, HttpRequest, NotHttpError

HEAD = (
    b"POST /write?precision=s&db=a%20b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
    b"X-Empty:\r\nX-Twice:  a \r\nX-Twice: b\r\n\r\n"
)


def read(data: bytes, cuts: list[int]) -> tuple[HttpRequest, bytes]:
    """The request of a head that comes in pieces, and what came behind the head."""
    reader = HeadReader()
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in pairwise(places):
        if begin < end and (taken := reader.feed(data[begin:end])) is not None:
            return reader.request(), data[begin + taken :]
    raise AssertionError("the head did not end")


@given(st.lists(st.integers(0, 10_000)))
def test_a_head_is_the_same_however_it_is_cut(cuts: list[int]) -> None:
    request, rest = read(HEAD + b"m v=1POST", cuts)
    assert rest == b"m v=1POST"[len(b"m v=1POST") - len(rest) :]
    assert (request.method, request.path, request.length) == ("POST", "/write", 5)
    assert request.query() == {"precision": "s", "db": "a b"}
    assert (request.headers["x-twice"], request.headers["x-empty"]) == ("a", "")
    assert request.repeated == {"x-twice"}
    assert request.keeps
    assert not request.chunked


@pytest.mark.parametrize(
    ("target", "path", "kept"),
    [
        (b"/write", "/write", "/write"),
        (b"/write?", "/write", "/write"),
        (b"/write?a=b#c", "/write", "/write?a=b"),
        (b"/%77rite?a=%20", "/write", "/%77rite?a=%20"),
        (b"http://any:80/write?a=b", "/write", "/write?a=b"),
        (b"//any/write", "//any/write", "//any/write"),
        (b"*", "*", "*"),
    ],
)
def test_a_target_has_a_path(target: bytes, path: str, kept: str) -> None:
    method = b"OPTIONS" if target == b"*" else b"POST"
    request, _ = read(method + b" " + target + b" HTTP/1.1\r\nHost: h\r\n\r\n", [])
    assert (request.path, request.target) == (path, kept)


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: x, CLOSE\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_a_connection_goes_on_where_both_ends_know_it(head: bytes, keeps: bool) -> None:
    assert read(head, [])[0].keeps is keeps


@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize(
    "fields",
    [
        b"X: " + b"y" * 8192,
        b"y" * 8192 + b": x",
        b"\r\n".join([b"X: y"] * 66),
        b"\r\n".join([b"X: " + b"y" * 8000] * 9),
    ],
)
def test_a_head_above_its_bounds_is_refused_before_it_ends(fields: bytes, cut: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: h\r\n" + fields + b"\r\n"
    with pytest.raises(NotHttpError, match="the request is not HTTP"):
        read(head, list(range(0, len(head), 1000)) * cut)


def test_a_head_within_its_bounds_is_taken() -> None:
    fields = b"\r\n".join([b"X: " + b"y" * 900] * 63)
    assert read(b"POST / HTTP/1.1\r\nHost: h\r\n" + fields + b"\r\n\r\n", [])[0].path == "/"


BYTES = st.lists(st.sampled_from([b"\r\n", b"\r", b"\n", b"0", b"\r\n\r\n", b"x"]), max_size=20).map(b"".join)
CHUNKS = st.lists(BYTES.filter(bool), max_size=5)
TRAILERS = st.sampled_from([b"", b"X: y\r\n", b"A:\r\nB: c\r\n"])


def framed(chunks: list[bytes], extension: bytes = b"", trailers: bytes = b"") -> bytes:
    parts = [b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks]
    return b"".join(parts) + b"0\r\n" + trailers + b"\r\n"


def fed(data: bytes, cuts: list[int]) -> tuple[ChunkedBody, bytes]:
    """The body of what came, cut in places, and what was left."""
    body, left = ChunkedBody(), b""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in pairwise(places):
        left += data[begin:end]
        while left and not body.whole:
            left = left[body.feed(left) :]
    return body, left


@given(CHUNKS, st.sampled_from([b"", b";a=b"]), TRAILERS, BYTES, st.lists(st.integers(0, 10_000)))
def test_a_body_is_the_same_however_it_is_cut(
    chunks: list[bytes], extension: bytes, trailers: bytes, next_: bytes, cuts: list[int]
) -> None:
    body, left = fed(framed(chunks, extension, trailers) + next_, cuts)
    assert (body.whole, bytes(body.data), left) == (True, b"".join(chunks), next_)


def test_a_body_is_the_same_byte_by_byte() -> None:
    data = framed([b"\r\n\r\n0\r\n\r\n", b"\r\n"], trailers=b"X: y\r\n")
    body, left = fed(data + b"POST", list(range(len(data))))
    assert (body.whole, bytes(body.data), left) == (True, b"\r\n\r\n0\r\n\r\n\r\n", b"POST")


@pytest.mark.parametrize(
    "data",
    [
        b"2\nab\n0\n\n",
        b"0x2\r\nab\r\n0\r\n\r\n",
        b"-2\r\nab\r\n0\r\n\r\n",
        b" 2\r\nab\r\n0\r\n\r\n",
        b"2 \r\nab\r\n0\r\n\r\n",
        b"2\r\nabc\r\n0\r\n\r\n",
        b"2;a\nb\r\nab\r\n0\r\n\r\n",
        b"ffffffffffffffffff\r\n",
        b"\r\n\r\n",
        b"2\r\nab\r\n0\r\nContent-Length: 5\r\n\r\n",
        b"2\r\nab\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"2\r\nab\r\n0\r\nno header\r\n\r\n",
    ],
)
def test_what_two_readers_may_read_differently_is_refused(data: bytes) -> None:
    for cuts in ([], list(range(len(data)))):
        with pytest.raises(NotHttpError, match="the request is not HTTP"):
            fed(data, cuts)


@pytest.mark.parametrize("piece", [b"x" * 1000, b"X: y\r\n" * 100])
def test_framing_without_end_is_refused(piece: bytes) -> None:
    begin = b"2\r\nab\r\n0\r\n" if piece.startswith(b"X") else b"2;"
    with pytest.raises(NotHttpError, match="between two parts"):
        fed(begin + piece * 100, list(range(0, 100_000, 1000)))
