"""Lines are cut where they end, and good ones part from bad ones: each line is in exactly one part."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import contract
from agent.leaf.inputs.formats import (
    FileCut,
    Format,
    LineCutter,
    LineParser,
    Parsed,
    ReadLimits,
    cut_file,
    make_parser,
    parse_lines,
)

GOOD = {"ndjson": b'{"metric":"m","value":%d}', "influx": b"m f=%d"}
BAD = {
    "ndjson": [b"{}", b"nonsense", b"\xff\x00", b'{"metric":"m"}', b'{"metric":"m","value":1}}'],
    "influx": [b"nonsense", b"m f=x", b"\xff f=1", b"m f=1 soon", b'm f="open'],
}
FORMATS: list[Format] = ["ndjson", "influx"]


def form(kind: Format) -> LineParser:
    return make_parser(kind, "edge-1", precision="ns", device_tag="host")


def sift(kind: Format, lines: bytes) -> Parsed:
    return asyncio.run(parse_lines(form(kind), lines, 1_790_000_000 * 10**9))


@pytest.mark.parametrize("kind", FORMATS)
@settings(deadline=None)
@given(data=st.data())
def test_good_lines_are_kept_and_bad_ones_placed(kind: Format, data: st.DataObject) -> None:
    written: list[tuple[bytes, bool]] = []
    for number, choice in enumerate(data.draw(st.lists(st.integers(-3, 4), max_size=250))):
        written.append((GOOD[kind] % number, True) if choice < 0 else (BAD[kind][choice], False))
    lines = b"".join(line + b"\n" for line, _ in written)
    parsed = sift(kind, lines)
    rows = [json.loads(row) for row in parsed.payload.splitlines()]
    assert [row["value"] for row in rows] == [number for number, (_, good) in enumerate(written) if good]
    assert parsed.count == len(rows)
    begins = [len(b"".join(line + b"\n" for line, _ in written[:number])) for number in range(len(written))]
    assert [place for place, _ in parsed.bad] == [
        begins[n] for n, (_, good) in enumerate(written) if not good
    ]
    assert all(reason for _, reason in parsed.bad)


@pytest.mark.parametrize("kind", FORMATS)
@settings(deadline=None, max_examples=300)
@given(lines=st.lists(st.binary(max_size=30), max_size=20).map(b"\n".join))
def test_whatever_comes_is_a_reading_or_a_bad_line(kind: Format, lines: bytes) -> None:
    parsed = sift(kind, lines)
    for row in parsed.payload.splitlines():
        contract.parse_reading(row)
    assert parsed.payload.count(b"\n") == parsed.count
    for place, _ in parsed.bad:
        assert place == 0 or lines[place - 1 : place] == b"\n"


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            (
                b'm f="a',
                b'"',
                b'm f="a" 7',
                b"m,t=a\\",
                b"b f=1",
                b"m f=1",
                b"#",
                b"",
                b"m f=1\r",
                b"\xff f=1",
            )
        ),
        max_size=40,
    )
)
def test_a_line_of_line_protocol_stands_by_itself_whatever_is_beside_it(lines: list[bytes]) -> None:
    together = sift("influx", b"".join(line + b"\n" for line in lines))
    singly = [sift("influx", line + b"\n") for line in lines]
    assert together.payload == b"".join(one.payload for one in singly)
    assert [why for _, why in together.bad] == [why for one in singly for _, why in one.bad]


def test_a_line_whose_readings_would_be_too_large_is_bad_and_the_others_are_kept() -> None:
    tags = b",".join(b"t%d=%s" % (number, b"x" * 1000) for number in range(60))
    long = b"m," + tags + b" " + b",".join(b"f%d=1" % number for number in range(3000))
    parsed = sift("influx", b"m f=1\n" + long + b"\nm f=2\n")
    assert parsed.count == 2
    assert [place for place, _ in parsed.bad] == [6]
    assert "are above" in parsed.bad[0][1]


def test_more_bad_lines_than_an_error_lists_are_all_placed() -> None:
    for kind in FORMATS:
        parsed = sift(kind, b"nonsense\n" * 5_000 + GOOD[kind] % 1 + b"\n")
        assert (parsed.count, len(parsed.bad)) == (1, 5_000)


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
