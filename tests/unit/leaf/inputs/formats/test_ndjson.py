from __future__ import annotations

import json
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent import contract
from agent.leaf.inputs.formats import reading_decoder
from agent.leaf.inputs.formats.line_shapes import LineShapes
from agent.leaf.inputs.formats.ndjson import (
    MAX_COUNTED,
    MAX_LISTED,
    BadLinesError,
    Decoded,
    decode_array_slices,
    decode_ndjson,
    join_decoded,
)
from agent.leaf.inputs.formats.reading_decoder import ReadingDecoder
from tests.harness.examples import costly
from tests.unit.contract.readings import ODD_LINES, lines, readings

DOMAIN = "edge-1"
NOW = 1_770_000_000_123_456_789
ARRIVED = "2026-02-02T02:40:00.123456-00:00"
FULL = b'{"ts":1,"device":"d","metric":"m","value":1}'
BARE = b'{"metric":"m","value":1}'


def taken(line: bytes) -> bytes | None:
    try:
        return decode_ndjson(line, DOMAIN, NOW).payload
    except BadLinesError:
        return None


def array(body: bytes) -> Decoded:
    return join_decoded(list(decode_array_slices(body, DOMAIN, NOW)))


def reference(line: bytes) -> contract.Reading | None:
    try:
        return contract.parse_reading(line)
    except contract.ContractError:
        return None


def refusal(body: bytes) -> BadLinesError:
    with pytest.raises(BadLinesError) as caught:
        decode_ndjson(body, DOMAIN, NOW)
    return caught.value


@given(lines())
@costly(600)
def test_exactly_the_lines_of_the_reference_are_taken(line: bytes) -> None:
    payload, reading = taken(line), reference(line)
    assert (payload is None) == (reading is None)
    if payload is not None and reading is not None:
        stored = contract.parse_reading(payload)
        assert stored.ts == (ARRIVED if reading.ts is None else reading.ts)
        assert stored.device == (reading.device or DOMAIN)
        assert (stored.metric, stored.value, stored.tags) == (reading.metric, reading.value, reading.tags)


TAGGED = b'{"ts":1,"device":"d","metric":"m","value":1,"tags":{"a\xc3\xa4":"x","b-1":"y"}}'
ALIKE = [TAGGED] * 60
"""Lines that are many enough for a record of their own, once they came often."""
TAGS = st.sampled_from(
    [
        "{}",
        '{"aä":"z"}',
        '{"b-1":"z","aä":""}',
        '{"b-1":"z","c":""}',
        '{"tag0":"z"}',
        '{"b-1":1}',
        '{"b-1":null}',
        '{"b-1":"z","b-1":2}',
        '{"b-1":2,"b-1":"z"}',
        '{"\\u0062-1":"z"}',
        '{"b-1":"\\u0079","a\\u00e4":"x"}',
        '{"b-1":"x"}',
        '{"b-1":"' + "x" * (contract.MAX_TEXT + 1) + '"}',
        "null",
        "[]",
    ]
)


@given(lines() | TAGS.map(lambda tags: (TAGGED[:-1].split(b'{"a')[0].decode() + tags + "}").encode()))
@costly(400)
def test_a_line_among_others_that_are_alike_is_taken_as_by_the_reference(line: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agent.leaf.inputs.formats.ndjson._DECODER", decoder := ReadingDecoder())
        patch.setattr("agent.leaf.inputs.formats.ndjson._SHAPES", LineShapes())
        for _ in range(20):
            decoder.decode_lines(b"\n".join(ALIKE) + b"\n")
        assert decoder._last is not None
        payload, reading = taken(b"\n".join([*ALIKE, line])), reference(line)
    if line.strip():
        assert (payload is None) == (reading is None)
    if payload is not None:
        assert payload.splitlines()[:60] == ALIKE


def test_names_of_tags_without_end_do_not_stay_in_memory() -> None:
    decoder = ReadingDecoder()
    for number in range(2_000):
        tagged = b'{"ts":1,"device":"d","metric":"m","value":1,"tags":{"t%d":"x"}}\n' % (number // 10)
        assert len(decoder.decode_lines(tagged * 80)[0]) == 80
    assert len(decoder._made) <= 32


def test_lines_of_another_thread_may_come_between_any_two_steps() -> None:
    alike, others = (
        b'{"ts":1,"device":"d","metric":"m","value":1,"tags":{"%b":"t"}}\n' % name * 100
        for name in (b"site", b"rack")
    )

    def decode_others_at(step: int) -> bool:
        decoder, left = ReadingDecoder(), step
        for _ in range(20):
            decoder.decode_lines(alike)

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename == reading_decoder.__file__ and event == "line":
                left -= 1
                if not left:
                    sys.settrace(None)
                    decoder.decode_lines(others)
            return trace

        sys.settrace(trace)
        try:
            assert len(decoder.decode_lines(alike)[0]) == 100
        finally:
            sys.settrace(None)
        return left <= 0

    step = 1
    while decode_others_at(step):
        step += 1
    assert step > 5


@pytest.mark.parametrize("line", ODD_LINES)
def test_odd_lines_are_judged_as_by_the_reference(line: bytes) -> None:
    assert (taken(line) is None) == (reference(line) is None)


@given(st.lists(readings(), min_size=1, max_size=20), st.sampled_from([b"\n", b"\r\n", b" \n", b"\n\n \t\n"]))
@settings(deadline=None)
def test_every_line_of_a_body_is_stored_in_its_order(given: list[contract.Reading], end: bytes) -> None:
    decoded = decode_ndjson(end.join(one.encode() for one in given), DOMAIN, NOW)
    stored = [contract.parse_reading(line) for line in decoded.payload.split(b"\n")[:-1]]
    assert decoded.count == len(given) == len(stored)
    assert [one.metric for one in stored] == [one.metric for one in given]
    assert all(one.ts is not None and one.device is not None for one in stored)


def test_lines_with_time_and_device_go_through_untouched() -> None:
    body = b'{"value": 1.50, "tags": {}, "metric":"a","device":"d", "ts":1.0}\n' + FULL + b"\n"
    assert decode_ndjson(body, DOMAIN, NOW).payload == body


def test_what_a_line_leaves_out_is_written_at_its_front() -> None:
    body = (
        b'{"metric":"m","value":1.50}\n{"metric":"m","value":2,"ts":7}\n{"metric":"m","value":3,"device":"d"}'
    )
    assert decode_ndjson(body, DOMAIN, NOW).payload.decode().splitlines() == [
        f'{{"ts":"{ARRIVED}","device":"edge-1","metric":"m","value":1.50}}',
        '{"device":"edge-1","metric":"m","value":2,"ts":7}',
        f'{{"ts":"{ARRIVED}","metric":"m","value":3,"device":"d"}}',
    ]


@pytest.mark.parametrize("body", [b"", b"\n", b" \r\n\t\n"])
def test_a_body_of_blanks_holds_no_reading(body: bytes) -> None:
    decoded = decode_ndjson(body, DOMAIN, NOW)
    assert (decoded.payload, decoded.count) == (b"", 0)


@pytest.mark.parametrize(
    "body",
    [
        FULL + FULL,
        FULL + b" " + FULL + b"\n",
        b'{"ts":1,"device":"d",\n"metric":"m","value":1}',
        b'{"ts":1,"device":"d","metric":"m","value":1,"tags":{}\n}\n' + FULL + FULL,
        b'{"ts":1,"device":"d","metric":"m","value":1,"tags":\n{}}\n' + FULL + FULL,
        FULL + b"\n" + b'{"ts":1,"device":"d","metric":"m","value":1,"tags":\n{"a":"b"}}' + FULL,
        FULL + b"\nnull\n" + FULL,
        FULL + b"," + FULL,
        FULL + b",null," + FULL,
        FULL + b"," + FULL + b'\n{"ts":1,"device":"d","metric":"m"\n"value":1}',
        FULL + b"," + FULL + b'\n{"ts":1,"device":"d","metric":"m","value":[1\n2]}',
        FULL + b"," + FULL + b'\n{"ts":1,"device":"d","metric":"m\n","value":1}',
    ],
)
def test_more_or_less_than_one_object_on_a_line_is_refused(body: bytes) -> None:
    refusal(body)


def test_a_newline_inside_an_object_cannot_hide_behind_two_objects_on_a_line() -> None:
    parts = [FULL, b'{"ts":1,"device":"d","metric":"m","value":1,"tags":{', b"}}"]
    for first in ("\n", " ", ""):
        for second in ("\n", " ", ""):
            body = parts[0] + first.encode() + parts[0] + b"\n" + parts[1] + second.encode() + parts[2]
            wanted = first == "\n" and second != "\n"
            assert (taken(body) is not None) == wanted, body


def test_each_bad_line_is_named_with_its_number_and_reason() -> None:
    error = refusal(b"\n".join([BARE, b"", b"x", BARE, b'{"metric":"m"}', b'{"metric":"m","value":NaN}']))
    assert [number for number, _ in error.lines] == [3, 5, 6]
    assert "not JSON" in error.lines[0][1]
    assert error.lines[1][1] == "value is missing"
    assert "NaN" in error.lines[2][1]
    assert (error.more, error.counted) == (0, True)


def test_the_list_of_bad_lines_is_bounded_and_the_rest_counted() -> None:
    error = refusal(b"x\n" * (MAX_LISTED + 7) + BARE)
    assert (len(error.lines), error.more, error.counted) == (MAX_LISTED, 7, True)


def test_counting_of_bad_lines_ends_and_says_so() -> None:
    error = refusal(b"x\n" * (MAX_LISTED + MAX_COUNTED + 50))
    assert (len(error.lines), error.more, error.counted) == (MAX_LISTED, MAX_COUNTED, False)


def test_a_bad_line_far_into_a_large_body_is_found_under_its_number() -> None:
    count = 20_000
    error = refusal((BARE + b"\n") * count + b"{}\n" + BARE)
    assert error.lines == [(count + 1, "metric is missing")]


def test_a_large_body_is_stored_whole() -> None:
    rows = [b'{"metric":"m","value":%d}' % number for number in range(30_000)]
    decoded = decode_ndjson(b"\n".join(rows), DOMAIN, NOW)
    stored = [json.loads(line)["value"] for line in decoded.payload.split(b"\n")[:-1]]
    assert decoded.count == 30_000
    assert stored == list(range(30_000))


def test_a_line_longer_than_a_slice_is_taken() -> None:
    tags = {f"t{number}": "x" * 30_000 for number in range(20)}
    line = json.dumps({"metric": "m", "value": 1, "tags": tags}).encode()
    assert decode_ndjson(line + b"\n" + BARE, DOMAIN, NOW).count == 2


@given(st.lists(readings(), max_size=10), st.sampled_from([None, 1, "\t"]))
@settings(deadline=None)
@example([contract.Reading("m", "two\nlines")], 1)
def test_an_array_is_stored_like_its_lines(given: list[contract.Reading], indent: int | str | None) -> None:
    rows = [json.loads(one.encode()) for one in given]
    decoded = array(json.dumps(rows, indent=indent).encode())
    stored = [contract.parse_reading(line) for line in decoded.payload.split(b"\n")[:-1]]
    assert decoded.count == len(given)
    assert [(one.metric, one.value, one.tags) for one in stored] == [
        (one.metric, one.value, one.tags) for one in given
    ]


def test_a_single_object_is_an_array_of_one() -> None:
    assert array(b' {"metric": "m",\r\n "value": 1}\n').count == 1


def test_bad_elements_of_an_array_are_named_by_their_place() -> None:
    with pytest.raises(BadLinesError) as caught:
        array(b"[" + BARE + b',\n{"metric":1,"value":1},3]')
    assert [number for number, _ in caught.value.lines] == [2, 3]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[",
        b"[{]",
        b"1",
        b'"a"',
        b"[" + BARE + b",]",
        b"[" + BARE + b"]]",
        BARE + b"\n" + BARE,
        b'[{"metric":"a\nb","value":1}]',
        b'[{"metric":"\xff","value":1}]',
        b"[" * 100_000,
        b'{"value":' * 100_000,
    ],
)
def test_what_is_no_array_of_readings_is_refused(body: bytes) -> None:
    with pytest.raises(BadLinesError):
        array(body)
