"""The judgement of the suite that inputs pass."""

from __future__ import annotations

from collections import Counter

import pytest

from agent.testing.input_case import Verdict, judge


@pytest.mark.parametrize(
    ("stored", "verdict"),
    [
        ([0, 1, 2], Verdict([], [], [])),
        ([], Verdict([0, 1, 2], [], [])),
        ([0, 2], Verdict([1], [], [])),
        ([0, 1, 1, 2], Verdict([], [1], [])),
        ([0, 1, 2, 7], Verdict([], [], [7])),
        ([2, 2, 7], Verdict([0, 1], [2], [7])),
    ],
)
def test_a_number_is_lost_or_doubled_or_was_never_handed_in(stored: list[float], verdict: Verdict) -> None:
    assert judge(Counter(stored), 3) == verdict
