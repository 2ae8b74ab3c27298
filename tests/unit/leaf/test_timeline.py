"""What follows from the clocks of a boot, without a clock."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.clock import Instant
from agent.contract import Clock, Correction
from agent.leaf.timeline import MAX_SEGMENTS, TOLERANCE, Segment, Timeline, observe
from tests.harness.clocks import SECOND

DOMAIN = "edge-1"


def at(
    second: float, offset: float, synchronised: bool = False, *, boot: str = "b", leap: bool = False
) -> Instant:
    """An instant so many seconds after the start of the boot, the wall clock ahead by `offset` seconds."""
    monotonic = int(second * SECOND)
    return Instant(monotonic + int(offset * SECOND), Clock(synchronised, boot, monotonic), leap)


def course(*instants: Instant, known: Timeline | None = None) -> tuple[Timeline, list[Correction], list[int]]:
    """What a row of looks comes to: the timeline, the corrections and the steps."""
    corrections: list[Correction] = []
    steps: list[int] = []
    for one in instants:
        observed = observe(known, one, DOMAIN)
        known = observed.timeline
        corrections += observed.corrections
        steps += [observed.stepped] if observed.stepped else []
    assert known is not None
    return known, corrections, steps


def test_the_first_synchronisation_corrects_all_of_the_boot_before_it() -> None:
    _, corrections, steps = course(at(5, 0), at(60, 0), at(61, 1000), at(62, 1000, True), at(99, 1000, True))

    assert corrections == [Correction(DOMAIN, "b", 0, 61 * SECOND, 0, 1000 * SECOND)]
    assert steps == [1000 * SECOND]


def test_each_segment_before_it_is_corrected_by_its_own_error() -> None:
    _, corrections, _ = course(at(5, 0), at(10, 400), at(20, 1000), at(30, 1000, True))

    assert [(one.since, one.until, one.by) for one in corrections] == [
        (0, 10 * SECOND, 1000 * SECOND),
        (10 * SECOND, 20 * SECOND, 600 * SECOND),
    ]


def test_a_clock_that_was_right_all_along_is_not_corrected() -> None:
    assert course(at(5, 1000), at(60, 1000, True), at(99, 1000))[1:] == ([], [])


def test_a_suspend_is_no_step_and_what_slewing_leaves_is_within_the_tolerance() -> None:
    slewed = at(60, 0.09)
    assert course(at(5, 0), at(5 + 8 * 3600, 0), slewed)[2] == []


def test_a_believed_clock_that_is_stepped_is_left_as_it_is() -> None:
    _, corrections, steps = course(at(5, 0, True), at(60, 30, True), at(90, 30, True))

    assert (corrections, steps) == ([], [30 * SECOND])


def test_a_clock_set_wrongly_by_hand_is_corrected_for_the_time_in_which_it_was_wrong() -> None:
    _, corrections, _ = course(at(5, 0, True), at(60, 3600), at(90, 0, True))

    assert corrections == [Correction(DOMAIN, "b", 60 * SECOND, 90 * SECOND, 3600 * SECOND, -3600 * SECOND)]


@pytest.mark.parametrize("step", [1, -1])
def test_a_leap_second_corrects_nothing(step: int) -> None:
    known, corrections, steps = course(at(5, 0), at(60, step, leap=True), at(61, step, True))

    assert (corrections, steps) == ([], [step * SECOND])
    assert known == Timeline("b", Segment(0, step * SECOND, believed=True))


def test_another_boot_begins_anew_and_the_same_goes_on_over_a_restart_of_the_agent() -> None:
    known, _, _ = course(at(5, 0))
    kept = msgspec.json.decode(msgspec.json.encode(known), type=Timeline)

    assert course(at(61, 1000, True), known=kept)[1][0].until == 61 * SECOND
    assert course(at(61, 1000, True, boot="c"), known=kept)[1:] == ([], [])


def test_what_is_kept_of_a_clock_that_is_stepped_over_and_over_is_bounded() -> None:
    known, _, _ = course(*(at(second, second * 10) for second in range(1, 100)))

    assert len(known.doubtful) == MAX_SEGMENTS


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(-5000, 5000), st.booleans()), max_size=8))
def test_every_doubtful_moment_is_corrected_to_the_clock_that_was_believed_next(
    segments: list[tuple[int, int, bool]],
) -> None:
    """Against a walk through every look: whatever was stamped while no clock was believed."""
    ends = list(itertools.accumulate(length for length, _, _ in segments))
    instants = [
        at(end - length + second, offset, believed and second == length - 1)
        for end, (length, offset, believed) in zip(ends, segments, strict=True)
        for second in range(length)
    ]
    if not instants:
        return
    _, corrections, _ = course(*instants)

    for index, one in enumerate(instants):
        mine = [
            c.by for c in corrections if c.since <= one.clock.monotonic < c.until and c.offset == one.offset
        ]
        expected = _expected(instants, index)
        assert mine == ([expected] if abs(expected) > TOLERANCE else [])


def _expected(instants: list[Instant], index: int) -> int:
    """The error of a look: up to the next believed one, unless its own segment was believed itself."""
    own = instants[index].offset
    first = index
    while first and abs(instants[first - 1].offset - own) <= TOLERANCE:
        first -= 1
    for one in instants[first:]:
        if one.clock.synchronised:
            return one.offset - own
    return 0
