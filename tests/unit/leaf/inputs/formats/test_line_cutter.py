"""Cutting a stream into lines: every line that fits comes out once, in order, however the stream is cut into
pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.leaf.inputs.formats.line_cutter import LineCutter

LONGEST = 8
LINES = st.lists(st.binary(max_size=20).map(lambda one: one.replace(b"\n", b"x")))


@given(LINES, st.binary(max_size=6).map(lambda one: one.replace(b"\n", b"x")), st.lists(st.integers(0, 200)))
def test_every_line_that_fits_comes_out_once_in_order(
    lines: list[bytes], rest: bytes, places: list[int]
) -> None:
    stream = b"".join(one + b"\n" for one in lines) + rest
    ends = [*sorted(min(one, len(stream)) for one in places), len(stream)]
    cutter, came, begin = LineCutter(LONGEST), b"", 0
    for end in ends:
        whole = cutter.feed(stream[begin:end])
        assert whole == b"" or whole.endswith(b"\n")
        assert cutter.kept < LONGEST
        came, begin = came + whole, end
    assert came == b"".join(one + b"\n" for one in lines if len(one) < LONGEST)
    assert cutter.too_long == sum(len(one) >= LONGEST for one in lines)
    assert cutter.end() == (rest + b"\n" if rest else b"")


def test_an_endless_line_takes_no_memory_and_counts_once() -> None:
    cutter = LineCutter(LONGEST)
    for _ in range(1000):
        assert cutter.feed(b"x" * 5) == b""
        assert cutter.kept < LONGEST
    assert cutter.too_long == 1
    assert cutter.feed(b"x\nab\n") == b"ab\n"
