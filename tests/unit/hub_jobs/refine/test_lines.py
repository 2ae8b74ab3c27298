"""The fast decoder takes and refuses what the reference does."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from agent.contract import MAX_LARGE_LINE, ContractError, parse_reading
from hub_jobs.refine.lines import decode_content
from hub_jobs.refine.messages import BatchText, UnpackError, count_lines, unpack
from hub_jobs.refine.readings import Refiner
from hub_jobs.tables.schemas import READINGS
from tests.harness.examples import costly
from tests.unit.contract.readings import ODD_LINES
from tests.unit.hub_jobs.rows import batch_row

_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_ts = st.sampled_from(
    [
        "2026-11-21T06:16:33Z",
        "2026-11-21T06:16:33.123456Z",
        "2026-11-21t06:16:33.1234567z",
        "2026-11-21 06:16:33+01:00",
        "2026-11-21T06:16:33-0130",
        "2026-11-21T06:16:33",
        "2026-11-21T06:16Z",
        "2026-11-21",
        "2026-02-30T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "2026-11-21T06:16:60Z",
        "٢026-11-21T06:16:33Z",
        0,
        1795000000,
        1795000000.123456,
        253402300799,
        253402300800,
        -1,
        1795000000123,
    ]
)
_large = st.lists(st.integers(-(2**54), 2**54) | st.floats(), max_size=4) | st.dictionaries(
    st.just("base64"),
    st.binary(max_size=5).map(lambda held: b64encode(held).decode()) | st.text("AQ=", max_size=4),
)
_value = (
    st.sampled_from([1, 1.5, -0.0, True, "on", "", 2**63 - 1, 2**63, -(2**63) - 1, 1e308]) | _json | _large
)
_tags = st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3) | _json
_fields = st.fixed_dictionaries(
    {"metric": st.text(min_size=1, max_size=4) | _json, "value": _value},
    optional={"ts": _ts | _json, "device": st.text(max_size=3) | _json, "tags": _tags, "other": _json},
)
_reading = st.fixed_dictionaries(
    {
        "metric": st.text(min_size=1, max_size=4),
        "value": st.floats(allow_nan=False, allow_infinity=False) | _large,
    },
    optional={"ts": _ts, "device": st.text(min_size=1, max_size=3), "tags": st.just({"a": "b"})},
)


def _dump(row: Any, ascii_only: bool) -> bytes:
    return json.dumps(row, ensure_ascii=ascii_only).encode(errors="surrogatepass")


_lines = st.lists(
    st.builds(_dump, _reading | _fields, st.booleans())
    | st.sampled_from(
        [
            b"",
            b" ",
            b"[]",
            b"{",
            b'{"metric":"m","value":1}{"metric":"m","value":2}',
            b'{"metric":"m","value":1} x',
            b'{"metric":"m","value":1e999}',
            b'{"metric":"m","value":NaN}',
            b'{"metric":"m","value":1,"ts":"no","ts":1}',
            b'{"metric":"m","value":1,"\\u0074s":"no","ts":1}',
            b'{"metric":"m","value":1,"tags":1,"tags":{}}',
            b'{"metric":"m","value":"\\ud800"}',
            b'{"metric":"m","value":"\xff"}',
            b'{"metric":"m","value":1,"tags":{"a":"\xff"}}',
            b'\xef\xbb\xbf{"metric":"m","value":1}',
            b'{"metric":"m","value":1}\r',
            b'{"metric":"m","value":1,"ts":"9999-12-31T23:59:59.9999999Z"}',
        ]
    ),
    min_size=1,
    max_size=6,
)


def _reference(line: bytes) -> bool:
    try:
        parse_reading(line)
    except ContractError:
        return False
    return True


@given(_lines)
@example([b'{"metric":"m","value":1}{"metric":"m","value":2}', b""])
@costly(400)
def test_the_lines_of_a_batch_are_taken_or_refused_as_the_reference_does(lines: list[bytes]) -> None:
    lines = [line.replace(b"\n", b" ") for line in lines]
    refiner = Refiner()
    row = batch_row(b"\n".join(lines) + b"\n", count=len(lines))

    refiner.add(row)
    taken = refiner.drain()["index"].to_pylist()

    expected = [number for number, line in enumerate(lines) if _reference(line)]
    refused = sorted(one.line for one in refiner.quarantined if one.line is not None)
    assert sorted(taken) == expected
    assert refused == sorted(set(range(len(lines))) - set(expected))


@pytest.mark.parametrize("start", range(0, len(ODD_LINES), 50))
def test_odd_lines_are_taken_or_refused_as_the_reference_does(start: int) -> None:
    lines = ODD_LINES[start : start + 50]
    lines = [line for line in lines if b"\n" not in line]
    for together in ([line] for line in lines), [lines]:
        for batch in together:
            refiner = Refiner()
            refiner.add(batch_row(b"\n".join(batch) + b"\n", count=len(batch)))
            taken = sorted(refiner.drain()["index"].to_pylist())
            assert taken == [number for number, line in enumerate(batch) if _reference(line)]


VALUES: dict[bytes, tuple[list[float] | None, bytes | None]] = {
    b"[1, 2.5, -0.0]": ([1.0, 2.5, -0.0], None),
    b"[9007199254740992]": ([2.0**53], None),
    b'{"base64":"AAEC\\/w=="}': (None, b"\0\1\2\xff"),
    b'{"base64":""}': (None, b""),
    b"1.5": (None, None),
}


def test_arrays_and_bytes_are_in_columns_of_their_own() -> None:
    lines = [b'{"metric":"m","value":' + value + b"}" for value in VALUES]
    refiner = Refiner()
    refiner.add(batch_row(b"\n".join(lines) + b"\n", count=len(lines)))
    rows = refiner.drain()
    assert list(
        zip(*(rows[name].to_pylist() for name in ("value_array", "value_bytes")), strict=True)
    ) == list(VALUES.values())
    assert rows["value"].to_pylist() == [None, None, None, None, 1.5]
    assert rows["text"].to_pylist() == [None] * 5
    assert rows.select(READINGS.names).schema.field("value_array").type == READINGS.field("value_array").type


def test_of_two_values_of_one_line_the_last_counts_whatever_it_is() -> None:
    lines = [
        b'{"metric":"m","value":{"base64":"AA=="},"value":[2]}',
        b'{"metric":"m","value":[2],"value":{"base64":"AA=="}}',
        b'{"metric":"m","value":[2],"value":"a"}',
        b'{"metric":"m","value":{"base64":"A"},"value":"a"}',
    ]
    refiner = Refiner()
    refiner.add(batch_row(b"\n".join(lines) + b"\n", count=len(lines)))
    rows = refiner.drain().select(["index", "text", "value_array", "value_bytes"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [
        (0, None, [2.0], None),
        (1, None, None, b"\0"),
        (2, "a", None, None),
    ]
    assert [refused.line for refused in refiner.quarantined] == [3]


def test_large_readings_are_converted_before_they_fill_the_memory() -> None:
    line = b'{"metric":"m","value":{"base64":"' + b"A" * 1_398_100 + b'"}}'
    refiner = Refiner()
    sizes = [[table.num_rows for table in refiner.add(batch_row(line, n=n, count=1))] for n in range(1, 30)]
    assert [size for size in sizes if size] == [[24]]


def test_a_line_too_long_for_an_array_is_refused_without_building_it() -> None:
    padding = b" " * MAX_LARGE_LINE
    array, number = b'{"metric":"m","value":[1]}' + padding, b'{"metric":"m","value":1}' + padding
    assert (_reference(array), _reference(number)) == (False, True)
    refiner = Refiner()
    refiner.add(batch_row(array + b"\n" + number, count=2))
    assert refiner.drain()["index"].to_pylist() == [1]
    assert "at most 8388608 bytes" in refiner.quarantined[0].detail


def test_a_batch_larger_than_a_slice_keeps_its_line_numbers() -> None:
    line = b'{"metric":"m","value":1}' + b" " * 1000
    lines = [line] * 2500
    lines[1700] = b"broken"

    found = list(decode_content(BatchText(b"\n".join(lines), len(lines))))

    assert len(found) == 3
    numbers = [
        number
        for one in found
        for number in (range(one.first, one.first + len(one.rows)) if one.numbers is None else one.numbers)
    ]
    assert numbers == [number for number in range(2500) if number != 1700]
    assert [bad.number for one in found for bad in one.bad] == [1700]


@pytest.mark.parametrize(("text", "lines"), [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\n\n", 2), (b"\n", 1)])
def test_the_last_line_needs_no_newline(text: bytes, lines: int) -> None:
    assert count_lines(text) == lines


def test_a_bomb_is_refused_whether_or_not_its_frame_says_its_size() -> None:
    zeros = bytes(2**20)
    for says in (True, False):
        bomb = zstandard.ZstdCompressor(write_content_size=says).compress(zeros)
        with pytest.raises(UnpackError, match="more than 1000") as caught:
            unpack(bomb, compressed=True, limit=1000)
        assert caught.value.too_large


@pytest.mark.parametrize("says", [True, False])
def test_a_frame_that_is_cut_off_or_followed_by_more_is_refused(says: bool) -> None:
    whole = zstandard.ZstdCompressor(write_content_size=says).compress(b"text" * 1000)
    assert unpack(whole, compressed=True) == b"text" * 1000
    for broken in (whole[:-3], whole + b"more", whole + whole, b"", b"text"):
        with pytest.raises(UnpackError) as caught:
            unpack(broken, compressed=True)
        assert not caught.value.too_large
