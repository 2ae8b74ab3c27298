"""Bodies in chunks: what comes is the same however the network cuts it, and what follows is not taken."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.leaf.inputs.http.chunked import ChunkedBody
from agent.leaf.inputs.http.responses import HttpError

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
        with pytest.raises(HttpError, match="the request is not HTTP"):
            fed(data, cuts)


@pytest.mark.parametrize("piece", [b"x" * 1000, b"X: y\r\n" * 100])
def test_framing_without_end_is_refused(piece: bytes) -> None:
    begin = b"2\r\nab\r\n0\r\n" if piece.startswith(b"X") else b"2;"
    with pytest.raises(HttpError, match="between two parts"):
        fed(begin + piece * 100, list(range(0, 100_000, 1000)))
