"""Lines whose shapes are known are judged as by the reference, whatever their digits are."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent import contract
from agent.leaf.inputs.formats.line_shapes import LineShapes
from agent.leaf.inputs.formats.ndjson import BadLinesError, decode_ndjson
from tests.harness.examples import costly
from tests.unit.contract.readings import lines

COMPACT = b'{"ts":1790000000.123,"device":"p-07","metric":"m","value":20.5,"tags":{"a1":"x","b":"y2"}}'
LINES = (
    COMPACT,
    b'{"ts": 17, "device": "p 1", "metric": "m2", "value": -12}',
    b'{"value":"of 9","metric":"m","device":"\xc3\xa4","ts":1790000000}',
    b'{"ts":12345678901,"device":"d","metric":"m","value":123456789012345678,"tags":{}}',
    b'{"ts":1,"ts":2.5,"device":"d","metric":"m","value":true,"value":5,"tags":{"a":"1"},"tags":{}}',
)
"""Of shapes that are learnt."""
UNLIKE = (
    b'{"ts":"2026-11-26T15:00:00Z","device":"d","metric":"m","value":1}',
    b'{"ts":1,"device":"d","metric":"m","value":1e200}',
    b'{"ts":253402300799,"device":"d","metric":"m","value":1}',
    b'{"ts":1,"device":"d","metric":"m","value":1234567890123456789}',
    b'{"ts":1,"device":"d","metric":"m","value":[9007199254740992]}',
    b'{"ts":1,"device":"d","metric":"m","value":{"base64":"AAA0"}}',
    b'{"ts":1,"device":"d","metric":"m","value":{"base64":"AAA0"},"value":1}',
    b'{"ts":"2026-11-26T15:00:00Z","ts":1,"device":"d","metric":"m","value":1}',
    b'{"ts":1,"device":"\\u0061","metric":"m","value":1}',
    b'{"ts":1,"device":"d","metric":"m","value":1,"tags":{%b}}'
    % b",".join(b'"a%02d":""' % min(number, 63) for number in range(65)),
)
"""Readings that would be none with other digits, so none of their shapes may be learnt."""


TIMES = 80
"""So often a line comes in a body that its shape is looked for."""


def body(*given: bytes) -> bytes:
    return b"".join(line + b"\n" for line in given) * TIMES


def feed(shapes: LineShapes, text: bytes) -> int:
    if not (counted := shapes.count(text)):
        shapes.learn(text)
    return counted


def knowing(*given: bytes) -> LineShapes:
    """Shapes to which bodies of each line came so often that no pause kept them from learning."""
    shapes = LineShapes()
    for line in given:
        for _ in range(2 * TIMES):
            feed(shapes, body(line))
    return shapes


def count(shapes: LineShapes, line: bytes) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agent.leaf.inputs.formats.ndjson._SHAPES", shapes)
        try:
            return decode_ndjson(body(COMPACT, line), "edge-1", 1).count
        except BadLinesError:
            return 0


def is_reading(line: bytes) -> bool:
    try:
        contract.parse_reading(line)
    except contract.ContractError:
        return False
    return True


def test_lines_of_shapes_that_came_before_are_counted() -> None:
    shapes = knowing(*LINES)
    assert [shapes.count(body(line)) for line in LINES] == [TIMES] * len(LINES)
    assert shapes.count(body(*LINES)) == TIMES * len(LINES)
    assert shapes.count(body(COMPACT.replace(b"20.5", b"99.0"))) == TIMES
    assert shapes.count(body(COMPACT.replace(b"20.5", b"20.55"))) == 0


@pytest.mark.parametrize("line", UNLIKE)
def test_no_shape_is_learnt_of_a_reading_whose_digits_count(line: bytes) -> None:
    assert is_reading(line)
    shapes = knowing(line)
    assert shapes.count(body(line)) == 0
    for _ in range(2 * TIMES):
        assert feed(shapes, body(COMPACT, line)) == 0


DIGITS = st.lists(st.sampled_from(b"0123456789"), min_size=60, max_size=60)


@given(st.sampled_from(LINES + UNLIKE), DIGITS)
@example(LINES[0], [0, *[9] * 59])
@example(LINES[1], [1, 7, 1, 2, 0, *[1] * 55])
@costly(300)
def test_a_line_with_other_digits_is_judged_as_by_the_reference(line: bytes, digits: list[int]) -> None:
    left = iter(digits * 10)
    other = bytes(next(left) if 48 <= byte < 58 else byte for byte in line)
    assert (count(SHAPES, other) == 2 * TIMES) == is_reading(other)


@given(lines())
@costly(200)
def test_a_line_among_lines_of_known_shapes_is_judged_as_by_the_reference(line: bytes) -> None:
    if line.strip() and b"\n" not in line:
        assert (count(SHAPES, line) == 2 * TIMES) == is_reading(line)


SHAPES = knowing(*LINES, *UNLIKE)


def test_shapes_without_end_do_not_stay_in_memory_nor_are_they_looked_for_each_time() -> None:
    shapes, learnt = LineShapes(), 0
    for number in range(1_000):
        before = shapes._known
        feed(shapes, body(*(COMPACT.replace(b"x", b"x" * at + b"y" * (number % 97)) for at in range(60))))
        learnt += shapes._known is not before
        assert len(shapes._known) <= 1024
    assert learnt < 100


def test_a_body_of_very_many_shapes_is_not_learnt() -> None:
    many = body(*(COMPACT.replace(b"x", b"x" * at) for at in range(300)))
    shapes = knowing(COMPACT)
    assert feed(shapes, many) == feed(shapes, many) == feed(shapes, many) == 0
    assert len(shapes._known) == 1


def test_a_sender_of_other_lines_costs_another_one_nothing() -> None:
    shapes = knowing(COMPACT)
    for _ in range(100):
        assert feed(shapes, body(UNLIKE[0])) == 0
        assert feed(shapes, body(COMPACT)) == TIMES
