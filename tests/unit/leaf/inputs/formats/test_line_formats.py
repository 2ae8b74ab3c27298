"""Parting good lines from bad ones, as NDJSON and as line protocol: each line is in exactly one part."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import contract
from agent.leaf.inputs.formats.line_formats import Format, LineParser, Parsed, make_parser, parse_lines

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
