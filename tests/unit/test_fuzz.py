"""What fuzzing found once, and a few inputs near those that lead into each parser."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.all import TARGETS
from tests.fuzz.cost import CAME, LINES, PARSERS, cost, request, yardstick

FOUND = Path(__file__).parents[1] / "fuzz" / "found"
cuts = st.tuples(st.floats(0, 1), st.integers(0, 8), st.binary(max_size=8))


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_keeps_its_promise_on_seeds_and_on_what_broke_it_once(name: str) -> None:
    for seed in TARGETS[name].seeds:
        TARGETS[name].check(seed)
    for path in sorted((FOUND / name).glob("*")):
        TARGETS[name].check(path.read_bytes())


def test_what_was_found_belongs_to_a_target() -> None:
    assert {path.name for path in FOUND.glob("*")} <= TARGETS.keys()


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=15)
@given(data=st.data())
def test_a_parser_keeps_its_promise_near_its_seeds(name: str, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(TARGETS[name].seeds))
    for place, size, new in data.draw(st.lists(cuts, min_size=1, max_size=4)):
        at = int(place * len(seed))
        seed = seed[:at] + new + seed[at + size :]
    TARGETS[name].check(seed)


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_a_small_request_of_one_line_over_and_over_is_cheap(line: bytes) -> None:
    body = line * (100 * CAME // len(line))
    came, encoding = request(body, 0)
    yard = 10 * yardstick()  # which takes longer than all parsers together
    for name in PARSERS:
        found = cost(name, came, encoding)
        assert found.is_fair(yard), (name, found)


def test_an_array_of_tiny_elements_takes_little_memory() -> None:
    came, encoding = request(b"[" + b"1," * 500_000 + b"1]", 0)
    found = cost("array", came, encoding)
    assert found.is_fair(10 * yardstick()), found
