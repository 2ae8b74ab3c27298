"""Cutting streams and files into lines: every line that fits comes out once, in order, however the stream
comes in pieces or the file grows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.leaf.inputs.formats.line_cutter import FileCut, LineCutter, ReadLimits, cut_file

LINE = 8

CONTENT = st.lists(st.binary(max_size=12).map(lambda one: one.replace(b"\n", b"x").replace(b"\0", b"y")))

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


def read_all(content: bytes, limits: ReadLimits, visible: list[int]) -> tuple[list[bytes], int]:
    """The lines, and how many were too long, of content that becomes visible bit by bit."""
    lines: list[bytes] = []
    offset, too_long, skipping = 0, 0, False
    for end in [*visible, len(content)]:
        while True:
            data = content[:end][offset : offset + limits.line]
            found = cut_file(data, limits, skipping=skipping)
            lines += data[found.start : found.stop].splitlines(keepends=True) if not found.skipping else []
            too_long += found.too_long
            offset, skipping = offset + found.stop, found.skipping
            if not found.stop:
                break
    return lines, too_long


@given(CONTENT, st.lists(st.integers(0, 100)), st.integers(1, 12), st.integers(1, 4))
def test_every_line_of_a_growing_file_comes_out_once(
    written: list[bytes], visible: list[int], most_bytes: int, most_lines: int
) -> None:
    content = b"".join(one + b"\n" for one in written)
    limits = ReadLimits(line=LINE, bytes=most_bytes, lines=most_lines)
    lines, too_long = read_all(content, limits, sorted(min(one, len(content)) for one in visible))
    assert b"".join(lines) == b"".join(one + b"\n" for one in written if len(one) < LINE)
    assert too_long == sum(len(one) >= LINE for one in written)


@given(st.binary(max_size=LINE), st.integers(1, 12), st.integers(1, 4))
def test_a_cut_keeps_to_its_limits_unless_one_line_exceeds_them(
    data: bytes, most_bytes: int, most_lines: int
) -> None:
    found = cut_file(data, ReadLimits(line=LINE, bytes=most_bytes, lines=most_lines))
    lines = data[found.start : found.stop]
    assert lines.count(b"\n") <= most_lines
    assert len(lines) <= most_bytes or lines.count(b"\n") == 1
    assert 0 <= found.start <= found.stop <= len(data)


def test_a_line_without_its_newline_waits_until_nothing_more_can_come() -> None:
    assert cut_file(b"abc", ReadLimits()) == FileCut(0, 0)
    assert cut_file(b"abc", ReadLimits(), last=True) == FileCut(0, 3)


def test_a_line_that_is_too_long_is_passed_over_not_collected() -> None:
    limits = ReadLimits(line=4)
    assert cut_file(b"abcd", limits) == FileCut(4, 4, skipping=True, too_long=True)
    assert cut_file(b"efgh", limits, skipping=True) == FileCut(4, 4, skipping=True)
    assert cut_file(b"i\nj\n", limits, skipping=True) == FileCut(2, 4)


def test_the_hole_that_a_truncation_leaves_is_passed_over() -> None:
    assert cut_file(b"\0\0\0ab\n", ReadLimits()) == FileCut(3, 6)
    assert cut_file(b"\0\0\0", ReadLimits()) == FileCut(3, 3)
