"""Lines that are cut by the column become what they become when each is decoded by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.contract import Correction
from hub_jobs.refine import readings
from hub_jobs.refine.messages import BatchText, parse_message
from hub_jobs.refine.plain_batches import PlainBatches
from hub_jobs.refine.plain_lines import cut, shape_of
from hub_jobs.refine.readings import Refiner
from tests.harness.examples import costly
from tests.unit.hub_jobs.rows import SEALED_NS, batch_row

_NAMES = ("ts", "device", "metric", "value", "tags")
_values: dict[str, st.SearchStrategy[Any]] = {
    "ts": st.sampled_from(
        [
            "2026-11-21T06:16:33Z",
            "2026-11-21T06:16:33.5-00:00",
            "2026-11-21T06:16:33+01:00",
            "no",
            5,
            1.5,
            True,
        ]
    ),
    "device": st.sampled_from(["pump", "", "p" * 300, "ventilátor", "{", 'say "x"']),
    "metric": st.sampled_from(["rpm", "", "bar,", "}", 1]),
    "value": st.sampled_from([1, -2.5, True, 0, 2**53 + 1, 2**70, 1e300, "on", None, [1.5], 1e-7]),
    "tags": st.sampled_from([{}, {"a": "b"}, {"a": "b", "c": "},{"}, {"a": 1}, {"": "x"}, [], "t"]),
}
_separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,  ", " : ")])
_damage = st.tuples(st.integers(0, 400), st.sampled_from(list(b'"{},: \\\t\x7f\xff1-.e')))


@st.composite
def _batch(draw: Callable[..., Any]) -> bytes:
    """Lines with the same fields in the same order, whose values mostly are of the same kinds."""
    names = draw(st.permutations(_NAMES))[draw(st.integers(0, 2)) :]
    separators = draw(_separators)
    usual = {name: draw(_values[name]) for name in names}
    lines = []
    for _ in range(draw(st.integers(1, 5))):
        row = usual | {name: draw(_values[name]) for name in names if draw(st.integers(0, 5)) == 0}
        lines.append(json.dumps(row, separators=separators, ensure_ascii=False).encode())
    text = bytearray(b"\n".join(lines) + b"\n" * draw(st.integers(0, 1)))
    for at, letter in draw(st.lists(_damage, max_size=1)) if draw(st.integers(0, 3)) == 0 else []:
        text[at % len(text)] = letter
    return bytes(text)


def _refined(batches: list[bytes], *, by_line: bool) -> tuple[list[str], list[str]]:
    wrong = Correction("edge-1", "boot", 0, 10, 7_000_000_000, 3)
    refiner, taken = Refiner({"edge-1": (wrong,)}, chunk_rows=7), []
    with mock.patch.object(readings, "shape_of", (lambda _: None) if by_line else shape_of):
        for n, text in zip(count(1), batches, strict=False):
            lines = text.count(b"\n") + (text[-1:] != b"\n")
            taken += refiner.add(batch_row(text, n=n, count=lines))
        taken.append(refiner.drain())
    rows = [repr(row) for table in taken for row in table.to_pylist()]
    return sorted(rows), sorted(map(repr, refiner.quarantined))


_GOOD = b'{"ts":"2026-11-21T06:16:33Z","device":"d","metric":"m","value":1.5,"tags":{"a":"b"}}\n'


@given(st.lists(_batch(), min_size=1, max_size=6))
@example([_GOOD, _GOOD.replace(b"1.5", b'1.5,"value":2'), _GOOD.replace(b"1.5", b"1,2"), _GOOD])
@example([_GOOD.replace(b"1.5", b"true"), _GOOD.replace(b'"2026-11-21T06:16:33Z"', b"true")])
@example([_GOOD.replace(b'"a":"b"}', b'"a":"b"},"tags":{}'), _GOOD.replace(b"d", b"\xff")])
@example([_GOOD + _GOOD.replace(b',"tags":{"a":"b"}', b""), _GOOD.replace(b"\n", b"")])
@example([_GOOD + _GOOD.replace(b"1.5", b"1,2"), _GOOD + _GOOD.replace(b"metric", b"device", 1)])
@example([_GOOD + _GOOD.replace(b"device", b"x").replace(b"metric", b"device").replace(b"x", b"metric")])
@example([_GOOD + _GOOD.replace(b"}}", b"}]"), _GOOD + _GOOD.replace(b"tags", b"rags")])
@costly(200)
def test_lines_become_the_same_whether_they_are_cut_or_decoded(batches: list[bytes]) -> None:
    assert _refined(batches, by_line=False) == _refined(batches, by_line=True)


def _batch_text(*lines: bytes) -> BatchText:
    return BatchText(b"\n".join(lines), len(lines))


@pytest.mark.parametrize(
    "line",
    [
        _GOOD,
        b'{"metric": "m", "value": 1}',
        b'{"value":-1e5,"tags":{},"ts":1795000000.25,"metric":"a{}"}',
    ],
)
def test_what_programs_write_is_cut(line: bytes) -> None:
    batch = _batch_text(*[line.rstrip(b"\n")] * 3)
    shape = shape_of(batch)
    assert shape is not None
    found = cut(shape, [batch.text, batch.text])
    assert found is not None
    assert found.taken.tolist() == [True, True]
    assert found.fields is not None
    assert len(found.fields.values) == 6


def test_a_batch_with_a_line_of_another_shape_leaves_those_beside_it_to_be_cut() -> None:
    good, odd = _GOOD.rstrip(b"\n"), b'{"metric":"m","value":1}'
    shape = shape_of(_batch_text(good))
    assert shape is not None
    found = cut(shape, [good, good + b"\n" + odd, good])
    assert found is not None
    assert found.taken.tolist() == [True, False, True]


def test_batches_of_a_shape_that_can_not_be_cut_are_not_tried_each_time() -> None:
    odd = _batch_text(_GOOD.rstrip(b"\n"), b'{"metric":"m","value":"idle"}')
    shape = shape_of(odd)
    assert shape is not None
    message, _ = parse_message(batch_row(odd.text, count=2))
    batches = PlainBatches()
    assert batches.takes(shape)
    batches.add(shape, (message, odd))

    table, left = batches.drain({})

    assert (table.num_rows, left) == (0, [(message, odd)])
    assert [batches.takes(shape) for _ in range(33)] == [False] * 32 + [True]


def test_blanks_without_end_cost_no_more_than_their_length() -> None:
    assert shape_of(_batch_text(b'{"metric":"m","value":1,"tags":{"a":"b"' + b" " * 900_000)) is None
    assert shape_of(_batch_text(b"{" + b" " * 900_000 + b'"metric":"m","value":1}')) is None


def test_the_time_of_sealing_serves_lines_that_have_none() -> None:
    refiner = Refiner()
    refiner.add(batch_row(b'{"metric":"m","value":1}\n' * 2))
    assert [row["ts"].timestamp() for row in refiner.drain().to_pylist()] == [SEALED_NS / 1e9] * 2
