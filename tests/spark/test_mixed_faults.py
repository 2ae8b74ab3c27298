"""A short run of the rounds in which two faults meet (tests/faults/mixed, `make faults CASE=mixed`): seeds
that have found something, and one that no run before has played, which is printed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.mixed.covering import scenario
from tests.faults.mixed.dimensions import Fault, Policy, Scenario
from tests.faults.mixed.rounds import play
from tests.faults.report import Case
from tests.faults.tools.disk import missing

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

SEEDS = (6, 105)
"""A deadband beside a cut and a killed server; forged ids of batches beside a link that is stalled and cut
while the jobs run."""


def fresh() -> Scenario:
    """A round that takes no minutes: over a thin link most waits are for its next announcement."""
    while True:
        drawn = scenario(random.SystemRandom().randrange(1, 10**9))
        if drawn.policy is not Policy.THIN:
            return drawn


def played(directory: Path, drawn: Scenario) -> None:
    """Play a round where this machine can; its line says how to play it again."""
    print(f"SEED={drawn.seed}: {drawn}; again: make faults CASE=mixed ROUNDS=1 SEED={drawn.seed}")
    if drawn.has(Fault.DISK_FULL) and (why := missing()):
        pytest.skip(why)
    play(directory, Case(f"round {drawn.seed}"), drawn)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_faults_that_met_before(tmp_path: Path, seed: int) -> None:
    played(tmp_path, scenario(seed))


def test_two_faults_that_have_not_met_yet(tmp_path: Path) -> None:
    played(tmp_path, fresh())
