"""The rows of the benchmark of the link say what was measured, and no more."""

from __future__ import annotations

from bench.relink_rows import OURS, Fault, Measured, rows
from bench.relink_watch import Trace
from bench.result import Row

HUB = Fault("hub SIGKILL", "hub", 3.0)


def measured(
    side: str, caught_up: float, verified: float | None = None, link_up: float | None = 1.0
) -> Measured:
    """One fault that was mended at 0."""
    return Measured(HUB, side, 0.0, link_up, caught_up, verified, 0.01)


def row_of(found: list[Row], *words: str) -> Row:
    """The first row with these words in it."""
    return next(one for one in found if all(word in one.what for word in words))


def test_p95_of_few_rounds_is_the_slowest_and_p50_the_middle_one() -> None:
    found = rows([HUB], [measured(OURS, at, at) for at in (3.0, 1.0, 2.0)], {}, {}, "")
    assert row_of(found, "caught up after the hub's process starts", "p50").value == 2.0
    assert row_of(found, "caught up after the hub's process starts", "p95").value == 3.0


def test_a_link_is_right_when_it_is_both_caught_up_and_verified() -> None:
    found = rows([HUB], [measured(OURS, 2.0, 1.5), measured(OURS, 1.0, 1.8)], {}, {}, "")
    assert row_of(found, "verified after the hub's process starts", "p95").value == 2.0
    assert row_of(found, "verified after link-up", "p50").value == 0.8
    assert row_of(found, "compared and flowing after link-up", "p95").value == 0.8


def test_a_round_that_was_never_called_right_is_counted_and_not_left_out_in_silence() -> None:
    found = rows([HUB], [measured(OURS, 2.0, None), measured(OURS, 1.0, 1.2)], {}, {}, "")
    unsaid = row_of(found, "verified after the hub's process starts", "did not say so")
    assert (unsaid.value, unsaid.must) == (1, 0)
    assert row_of(found, "verified after the hub's process starts", "p95").value == 1.2


def test_each_alternative_stands_beside_ours() -> None:
    sides = [measured(OURS, 1.0, 1.0), measured("raw durable", 6.0), measured("raw classic", 37.0)]
    found = rows([HUB], sides, {(HUB.name, OURS): 0}, {(HUB.name, "raw durable"): 4}, "")
    beside = [
        one.against.value
        for one in found
        if one.against and ": caught up after the hub's process starts, p50" in one.what
    ]
    assert beside == [6.0, 37.0]
    doubled = row_of(found, "doubled")
    assert (doubled.value, doubled.against and doubled.against.value) == (0, 4)


def test_a_trace_tells_when_something_was_true_first() -> None:
    trace = Trace([(1.0, 10), (3.0, 20), (5.0, 30)])
    assert trace.first(lambda value: value >= 20, 0.0) == 3.0
    assert trace.first(lambda value: value >= 20, 4.0) == 4.0, "it was true already"
    assert trace.first(lambda value: value < 20, 4.0) is None
