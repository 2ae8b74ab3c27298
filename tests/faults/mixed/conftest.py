"""Which rounds are played: `SEED` and the following, `ROUNDS` of them; or those of a list, `SEED=3,17`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import pytest

from tests.faults.mixed.covering import coverage, scenario
from tests.faults.schedule import seed_of
from tests.spark.conftest import spark

__all__ = ["spark"]

_ROUNDS = 12


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each round."""
    if "seed" in metafunc.fixturenames:
        seeds = _seeds(os.environ)
        metafunc.parametrize("seed", seeds)
        print(coverage([scenario(seed) for seed in seeds]))


def _seeds(environment: Mapping[str, str]) -> Sequence[int]:
    listed = environment.get("SEED", "")
    if "," in listed:
        return [int(one) for one in listed.split(",")]
    first, rounds = seed_of(environment), int(environment.get("ROUNDS") or _ROUNDS)
    return range(first, first + rounds)
