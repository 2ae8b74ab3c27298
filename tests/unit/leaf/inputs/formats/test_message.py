"""One message of a device becomes lines that the decoder of readings takes or refuses."""

from __future__ import annotations

import json
import tracemalloc
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.leaf.inputs.formats import split_valid
from agent.leaf.inputs.formats.message import (
    MessageError,
    TopicNames,
    fill_template,
    message_lines,
    metric_of,
    reading_line,
    template_problem,
)
from agent.leaf.inputs.nats import SubjectTemplate, overlapping

PLACE = TopicNames("pump", "rpm")


def readings(payload: bytes, place: TopicNames = PLACE) -> list[tuple[Any, ...]]:
    rows = [json.loads(line) for line in message_lines(payload, place)]
    return [(row.get("device"), row.get("metric"), row["value"], row.get("ts")) for row in rows]


@pytest.mark.parametrize(
    ("payload", "value"), [(b"21.5", 21.5), (b"[1, 2.5]", [1, 2.5]), (b' "on" \n', "on"), (b"true", True)]
)
def test_a_bare_value_gets_device_and_metric_of_its_topic(payload: bytes, value: object) -> None:
    assert readings(payload) == [("pump", "rpm", value, None)]


def test_a_reading_says_itself_what_it_says() -> None:
    assert readings(b'{"value": 1, "ts": 5}') == [("pump", "rpm", 1, 5)]
    assert readings(b'{"value": 1,\n "device": "fan", "metric": "m"}') == [("fan", "m", 1, None)]


def test_what_a_topic_fixes_may_not_be_contradicted() -> None:
    assert reading_line(b'{"value":1,"device":"pump"}', PLACE, fixed=True)
    for payload in (b'{"value":1,"device":"fan"}', b'{"value":1,"metric":1}'):
        with pytest.raises(MessageError, match="than its topic"):
            reading_line(payload, PLACE, fixed=True)


def test_an_object_of_values_is_a_reading_a_member() -> None:
    assert readings(b'{"in": 1, "out": {"a": "x", "b": null, "c": {"d": false}}, "ts": 7}') == [
        ("pump", "rpm_in", 1, 7),
        ("pump", "rpm_out_a", "x", 7),
        ("pump", "rpm_out_c_d", False, 7),
    ]
    assert readings(b'{"in": [1, 2], "value_of": {"base64": "AA=="}}') == [
        ("pump", "rpm_in", [1, 2], None),
        ("pump", "rpm_value_of_base64", "AA==", None),
    ]
    assert readings(b'{"in": 1}', TopicNames("pump")) == [("pump", "in", 1, None)]


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"null", b'["a"]', b"NaN", b"on", b"1 2", b"\xff\x00{["),
        *(
            b"{}",
            b'{"a": null}',
            b'{"a":1',
            b'{"a":1 nan}',
            b'{"a":nan' + b" " * 70_000 + b"}",
        ),
    ],
)
def test_what_holds_no_value_is_refused(payload: bytes) -> None:
    with pytest.raises(MessageError):
        message_lines(payload, PLACE)


@pytest.mark.parametrize(
    "odd",
    [
        *(b'["overtemp"]', b'[{"rssi": -48}]', b"[]", b"[[1]]", b"[1, null]", b"[true]", b"[1, NaN]"),
        *(b"nan", b"NaN", b"-inf", b"Infinity", b"undefined", b"None", b"True", b"1.#QNAN", b"01", b".5"),
        *(b"1e999", b"9" * 400, b'{"a":' * 20 + b"1" + b"}" * 20, b'"' + b"x" * 70_000 + b'"'),
    ],
    ids=lambda odd: odd[:12].decode(),
)
def test_a_member_that_is_no_value_takes_no_other_member_with_it(odd: bytes) -> None:
    payload = b'{"temp": 21.5, "inner": {"odd": ' + odd + b'}, "text": "nan, [}", "on": true}'
    lines = message_lines(payload, TopicNames("pump", None))
    parsed = split_valid(b"\n".join(lines), "edge-1", 0)
    rows = [json.loads(line) for line in parsed.payload.splitlines()]
    assert [(row["metric"], row["value"]) for row in rows] == [
        ("temp", 21.5),
        ("text", "nan, [}"),
        ("on", True),
    ]
    (bad,) = (line for line in lines if split_valid(line, "edge-1", 0).bad)
    assert metric_of(bad).startswith("inner_odd")


def test_a_name_of_a_member_that_is_too_long_or_empty_takes_no_other_member_with_it() -> None:
    payload = b'{"' + b"x" * 300 + b'": 1, "": 2, "a\\u0000": 3, "temp": 21.5, "ts": null}'
    parsed = split_valid(b"\n".join(message_lines(payload, TopicNames("pump", None))), "edge-1", 0)
    (row,) = map(json.loads, parsed.payload.splitlines())
    assert row["metric"] == "temp"
    assert len(parsed.bad) == 3


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(st.binary(max_size=60) | _JSON.map(lambda value: json.dumps(value).encode()))
def test_any_message_is_refused_or_becomes_lines_that_are_one_reading_or_bad(payload: bytes) -> None:
    try:
        lines = message_lines(payload, PLACE)
    except MessageError:
        return
    for line in lines:
        assert b"\n" not in line
        parsed = split_valid(line, "edge-1", 0)
        assert parsed.count + len(parsed.bad) == 1


def test_a_long_name_is_not_repeated_for_each_value_within() -> None:
    payload = b'{"' + b"x" * 100_000 + b'":{' + b",".join(b'"%d":1' % n for n in range(1_900)) + b"}}"
    tracemalloc.start()
    try:
        (line,) = message_lines(payload, TopicNames("d", None))
        assert split_valid(line, "edge-1", 0).bad
        assert tracemalloc.get_traced_memory()[1] < 20 * len(payload)
    finally:
        tracemalloc.stop()


TOKENS = st.lists(st.sampled_from("ab"), min_size=1, max_size=4)
FILTERS = st.builds(
    lambda tokens, rest: ".".join([*tokens, ">"] if rest else tokens),
    st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3),
    st.booleans(),
)


@pytest.mark.parametrize(
    ("template", "made"),
    [
        ("{0}", "plant.north.pump"),
        ("{2}", "north"),
        ("{2+}", "north.pump"),
        ("{3}_{1}", "pump_plant"),
        ("{4}{5+}", ""),
        ("fixed", "fixed"),
    ],
)
def test_a_template_is_filled_from_the_parts_of_a_name(template: str, made: str) -> None:
    assert fill_template(template, "plant.north.pump", ".") == made
    assert template_problem(template) is None


@pytest.mark.parametrize("template", ["{", "{x}", "{01}", "{1+", "a}b", "{{1}}"])
def test_what_is_no_template_is_told_with_a_remedy(template: str) -> None:
    assert "write a part of the name as {2}" in (template_problem(template) or "")


@given(st.text(), st.text())
def test_whatever_stands_in_a_template_or_a_name_is_no_error(template: str, name: str) -> None:
    template_problem(template)
    fill_template(template, name, ".")


def covers(pattern: str, subject: tuple[str, ...]) -> bool:
    """What NATS itself does, the plain way."""
    tokens = pattern.split(".")
    if tokens[-1] == ">":
        tokens.pop()
        return (
            len(subject) > len(tokens) and covers(".".join(tokens), subject[: len(tokens)])
            if tokens
            else True
        )
    return len(tokens) == len(subject) and all(
        one in ("*", part) for one, part in zip(tokens, subject, strict=True)
    )


@given(FILTERS, FILTERS)
def test_filters_overlap_when_some_subject_comes_through_both(one: str, other: str) -> None:
    subjects = [found for size in range(1, 6) for found in product("ab", repeat=size)]
    both = any(covers(one, subject) and covers(other, subject) for subject in subjects)
    assert bool(list(overlapping([SubjectTemplate(filter=one), SubjectTemplate(filter=other)]))) is both


@pytest.mark.parametrize(
    "pattern",
    ["", "a..b", "a b", "a.>.b", "a*", ">", "*.a", "tel.x", "cmd.>", "$JS.API.>", "_INBOX.>", "a.\n"],
)
def test_a_filter_that_is_none_or_not_ours_is_told(pattern: str) -> None:
    assert len(list(SubjectTemplate(filter=pattern).problems())) == 1


def test_filters_of_ones_own_are_taken() -> None:
    for pattern in ("plant", "plant.*.x", "plant.>", "plant.*.>"):
        assert list(SubjectTemplate(filter=pattern).problems()) == []
