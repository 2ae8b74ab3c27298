"""The order of rounds: any two values of two dimensions meet within a block of rounds. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Any, Final

from tests.faults.mixed.dimensions import (
    DIMENSIONS,
    Scenario,
    Value,
    drawn_pairs,
    go_together,
    pair,
    pairs,
    settled,
)

BLOCK: Final = 200
"""Rounds in which every pair meets; the next block is another order of them."""


def scenario(seed: int) -> Scenario:
    """The round of this number, from 1."""
    block, at = divmod(seed - 1, BLOCK)
    return Scenario(seed, **settled(_block(block)[at]))


def met(scenarios: Iterable[Scenario]) -> set[frozenset[Value]]:
    """The pairs that meet in these rounds."""
    found: set[frozenset[Value]] = set()
    for one in scenarios:
        found |= _pairs_of({name: getattr(one, name) for name in DIMENSIONS})
    return found


def coverage(scenarios: Sequence[Scenario]) -> str:
    """How many of all pairs meet in these rounds, in words."""
    every = set(pairs())
    return f"{len(met(scenarios) & every)} of {len(every)} pairs of values met in {len(scenarios)} rounds"


@cache
def _block(number: int) -> Sequence[Mapping[str, Any]]:
    chance = random.Random(number)
    left = set(drawn_pairs())
    rows: list[Mapping[str, Any]] = []
    while len(rows) < BLOCK:
        row = _row(chance, left)
        left -= _pairs_of(row)
        rows.append(row)
    return rows


def _row(chance: random.Random, left: set[frozenset[Value]]) -> Mapping[str, Any]:
    """A round that begins with a pair that has not met, and takes of each further dimension the value that
    brings most others together."""
    row: dict[str, Any] = {}
    if left:
        row.update(chance.choice(sorted(left, key=lambda one: sorted(map(str, one)))))
    names = [name for name in DIMENSIONS if name not in row]
    chance.shuffle(names)
    for name in names:
        allowed = [value for value in DIMENSIONS[name] if _fits(row, (name, value))]
        gained = {value: _gain(row, (name, value), left) for value in allowed}
        most = max(gained.values())
        row[name] = chance.choice([value for value in allowed if gained[value] == most])
    return row


def _fits(row: Mapping[str, Any], value: Value) -> bool:
    return all(go_together(value, other) for other in row.items())


def _gain(row: Mapping[str, Any], value: Value, left: set[frozenset[Value]]) -> int:
    return sum(pair(value, other) in left for other in row.items())


def _pairs_of(row: Mapping[str, Any]) -> set[frozenset[Value]]:
    return {pair(one, other) for one, other in combinations(row.items(), 2)}
