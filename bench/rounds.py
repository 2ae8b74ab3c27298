"""Sides measured in turns, so that what else the machine does meets all alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from bench.result import Result

ROUNDS = 5


def rounds(usual: int = ROUNDS) -> int:
    """How many rounds to play: `ROUNDS` of the environment, else as many as usual."""
    return int(os.environ.get("ROUNDS", usual))


def interleaved(
    result: Result, sides: Mapping[str, Callable[[], float]], count: int | None = None
) -> dict[str, list[float]]:
    """The values of each side in the order of the rounds. A side that fails is noted in the result and left
    out, of what it returns too."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds() if count is None else count):
        for name in [*values]:
            with result.part(name):
                values[name].append(sides[name]())
                continue
            del values[name]
    return values
