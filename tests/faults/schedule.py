"""Faults in an order that a seed decides, so that what one run found can be done again. Pure."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_DEFAULT: Final = 1


@dataclass(frozen=True, slots=True)
class Step:
    """A fault by its name, and how many seconds all goes well before it."""

    fault: str
    after: float


def seed_of(environment: Mapping[str, str] = os.environ) -> int:
    """The seed that `SEED` asks for. Raises `ValueError` where that is not a number."""
    return int(environment.get("SEED") or _DEFAULT)


def schedule(seed: int, faults: Sequence[str], rounds: int, most_seconds: float) -> list[Step]:
    """Each fault so many times, in an order and with pauses that follow from the seed; never the same twice
    in a row where there is another."""
    chance = random.Random(seed)
    left = dict.fromkeys(faults, rounds)
    steps: list[Step] = []
    while left:
        last = steps[-1].fault if steps else None
        names = [name for name in sorted(left) if name != last] or sorted(left)
        # Those of which most are left are taken more often, or the last ones would be all the same.
        name = chance.choices(names, [left[one] ** 2 for one in names])[0]
        steps.append(Step(name, round(chance.uniform(0, most_seconds), 2)))
        left[name] -= 1
        if not left[name]:
            del left[name]
    return steps
