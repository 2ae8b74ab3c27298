"""Which hours of a look-back are taken as `rollup` has made them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hub_jobs.gaps.look_back import between, rolled_spans, whole

DAY = datetime(2026, 11, 21, tzinfo=UTC)


def at(hours: float) -> datetime:
    return DAY + timedelta(hours=hours)


@pytest.mark.parametrize(
    ("since", "unrolled", "rolled", "left"),
    [
        (None, [], [(1, 5)], [(0.5, 1), (5, 5.5)]),
        (None, [0, 1, 3, 5, 9], [(2, 3), (4, 5)], [(0.5, 2), (3, 4), (5, 5.5)]),
        (None, [1, 2, 3, 4], [], [(0.5, 5.5)]),
        (2.5, [], [(3, 5)], [(0.5, 3), (5, 5.5)]),
        (5.5, [], [], [(0.5, 5.5)]),
    ],
)
def test_whole_hours_that_rollup_makes_again_and_that_did_not_change_are_taken(
    since: float | None,
    unrolled: list[float],
    rolled: list[tuple[float, float]],
    left: list[tuple[float, float]],
) -> None:
    span = at(0.5), at(5.5)
    found = rolled_spans(span, None if since is None else at(since), map(at, unrolled))
    assert found == [(at(first), at(end)) for first, end in rolled]
    assert between(span, found) == [(at(first), at(end)) for first, end in left]


def test_of_less_than_an_hour_nothing_is_taken() -> None:
    assert rolled_spans((at(1.2), at(1.8)), None, []) == []
    assert rolled_spans((at(2), at(2)), None, []) == []


def test_whole_days_are_taken_as_days() -> None:
    day = timedelta(days=1)
    assert whole((at(1), at(71)), day) == [(at(24), at(48))]
    assert whole((at(0), at(24)), day) == [(at(0), at(24))]
    assert whole((at(1), at(47)), day) == []
