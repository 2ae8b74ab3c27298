from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import ContractError, Reading, parse_ledger, parse_reading
from tests.harness.examples import costly
from tests.unit.contract.readings import lines, readings


@given(readings())
def test_a_reading_is_one_line_and_read_back(reading: Reading) -> None:
    line = reading.encode()
    assert b"\n" not in line
    assert parse_reading(line) == reading


@given(lines() | st.binary(max_size=60) | st.text(max_size=60))
@costly(400)
def test_whatever_comes_is_read_or_refused_in_words(line: bytes | str) -> None:
    refusal = ""
    try:
        parse_reading(line)
    except ContractError as error:
        refusal = str(error)
    assert len(refusal) < 400


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"value": 1}, "metric is missing"),
        ({"metric": "m"}, "value is missing"),
        ({"metric": "m", "value": 1, "unit": "bar"}, "unknown field 'unit'"),
        ({"metric": "m", "value": 1, "x" * 10_000: 1}, "unknown field"),
        ({"metric": "m", "value": None}, "value must be"),
        ({"metric": "m", "value": 2**63}, "64 bits"),
        ({"metric": "m", "value": 1, "ts": 1_770_000_000_000}, "not milliseconds"),
        ({"metric": "m", "value": 1, "ts": "2026-02-30T00:00:00Z"}, "RFC 3339"),
        ({"metric": "m", "value": 1, "ts": "2026-02-01T00:00:00"}, "offset"),
        ({"metric": "m", "value": 1, "tags": {"a": 1}}, "a tag must be text"),
        ({"metric": "m", "value": 1, "tags": {str(n): "" for n in range(65)}}, "at most 64"),
        ({"metric": "m", "value": 1, "device": ""}, "device must be text"),
        ({"metric": "\ud800", "value": 1}, "surrogate"),
        ({"metric": "a\0", "value": 1}, r"metric holds a control character \(U\+0000\)"),
        ({"metric": "m", "value": 1, "device": "\x7f"}, r"device holds a control character \(U\+007F\)"),
        ({"metric": "m", "value": 1, "tags": {"a\n": ""}}, "a tag's name holds a control character"),
        ([], "an object"),
    ],
)
def test_a_refusal_says_what_was_wrong(row: object, words: str) -> None:
    with pytest.raises(ContractError, match=words):
        parse_reading(json.dumps(row))


def test_what_is_nested_too_deeply_is_refused_in_words() -> None:
    for read in (parse_reading, parse_ledger):
        with pytest.raises(ContractError, match=r"nested too deeply$"):
            read(b"[" * 100_000)


def test_of_a_name_that_comes_twice_the_last_value_counts() -> None:
    assert parse_reading(b'{"metric":"a","metric":"b","value":1}').metric == "b"


def test_a_bad_value_is_refused_even_if_a_good_one_of_its_name_follows() -> None:
    with pytest.raises(ContractError, match="ts must be"):
        parse_reading(b'{"metric":"a","value":1,"ts":"yesterday","ts":1}')
