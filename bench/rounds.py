"""Sides measured in turns, so that what else the machine does meets all alike."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TypeVar

from bench.result import Result

ROUNDS = 5

_Measure = TypeVar("_Measure")


def rounds(usual: int = ROUNDS) -> int:
    """How many rounds to play: `ROUNDS` of the environment, else as many as usual."""
    return int(os.environ.get("ROUNDS", usual))


def interleaved(
    result: Result, sides: Mapping[str, Callable[[], float]], count: int | None = None
) -> dict[str, list[float]]:
    """The values of each side in the order of the rounds. A side that fails is noted in the result and left
    out, of what it returns too."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for name, measure in _turns(sides, values, count):
        with result.part(name):
            values[name].append(measure())
            continue
        del values[name]
    return values


async def interleaved_async(
    result: Result, sides: Mapping[str, Callable[[], Awaitable[float]]], count: int | None = None
) -> dict[str, list[float]]:
    """The same for sides that are awaited."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for name, measure in _turns(sides, values, count):
        with result.part(name):
            values[name].append(await measure())
            continue
        del values[name]
    return values


def _turns(
    sides: Mapping[str, _Measure], values: Mapping[str, list[float]], count: int | None
) -> Iterator[tuple[str, _Measure]]:
    """Each side once a round, while it is among the values."""
    for _ in range(rounds() if count is None else count):
        for name, measure in sides.items():
            if name in values:
                yield name, measure
