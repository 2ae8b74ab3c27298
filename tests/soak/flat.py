"""Whether what a process holds stays as it is or grows. Pure.

The rule: what was sampled in the first fifth of the time is warming up and left out. The rest is cut into
eight windows of the same length, of each the median is taken, and through the medians goes the line of Theil
and Sen (the median of the slopes between any two), which a burst or a fault does not bend. Flat is what grows
by no more over the judged time than `share` of its first median, or than `allowance`, whichever is more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

WARM_UP = 0.2
WINDOWS = 8
LEAST = 3
"""Samples of a window."""
SHARE = 0.1

Point = tuple[float, float]
"""Seconds since the begin, and a value."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """`first` is the median of the first judged window, `growth` what the line gains over `seconds`, `bound`
    what it may gain; `flat` None: too little was sampled to judge."""

    first: float
    growth: float
    bound: float
    seconds: float
    flat: bool | None


def judged(points: Sequence[Point], allowance: float, share: float = SHARE) -> Judgement:
    """Judge what was sampled, in the order of time."""
    if not points:
        return Judgement(0.0, 0.0, allowance, 0.0, None)
    begin, end = points[0][0], points[-1][0]
    start = begin + WARM_UP * (end - begin)
    seconds = end - start
    windows: list[list[Point]] = [[] for _ in range(WINDOWS)]
    for at, value in points:
        if at >= start and seconds > 0:
            windows[min(int((at - start) / seconds * WINDOWS), WINDOWS - 1)].append((at, value))
    medians = [
        (median(at for at, _ in one), median(value for _, value in one))
        for one in windows
        if len(one) >= LEAST
    ]
    if len(medians) < WINDOWS - 1:
        return Judgement(points[-1][1], 0.0, allowance, seconds, None)
    slope = median((b - a) / (s - t) for (t, a), (s, b) in combinations(medians, 2))
    first = medians[0][1]
    growth, bound = slope * seconds, max(share * abs(first), allowance)
    return Judgement(first, growth, bound, seconds, growth <= bound)
