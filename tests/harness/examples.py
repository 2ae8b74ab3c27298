"""How many examples are played of what costs most: of state machines, and of properties whose examples take
about a second of CPU or more. `make test` plays a share of them, the same in every run, and of the machines
new ones too, each batch under a seed by which it is played again. `EXAMPLES=all` (`make test
SUITE=properties`) plays all of them, `EXAMPLES=5000` (`make test SUITE=models`) so many new ones of each
machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, get_state_machine_test

BATCH: Final = 5
"""Examples under one seed."""
_SEEDS: Final = 2**32
_SHARE: Final = 4
"""`make test` plays one example of so many."""
_LEAST: Final = 10
"""It plays so many in any case."""


def costly(examples: int = 100) -> settings:
    """The settings of a property of which so many examples take about a second of CPU or more."""
    return settings(max_examples=_played(examples))


def _played(examples: int) -> int:
    if "EXAMPLES" in os.environ:
        return examples
    return min(examples, max(examples // _SHARE, _LEAST))


def machine(examples: int, steps: int) -> settings:
    """The settings of a state machine that plays so many examples of so many steps, of which `make test`
    plays a share."""
    wanted = int(os.environ.get("EXAMPLES", "").replace("all", "") or 0)
    return settings(
        max_examples=wanted or _played(examples),
        stateful_step_count=steps,
        deadline=None,
        derandomize=not wanted,
        suppress_health_check=[HealthCheck.too_slow],
    )


def seeds(seconds: float) -> Iterator[int]:
    """Seeds that were not played before, until so many seconds have passed, but one at least; the one that
    `SEED` names, where one is to be played again."""
    if named := os.environ.get("SEED"):
        yield int(named)
        return
    until = time.monotonic() + seconds
    number = int.from_bytes(os.urandom(4))
    while True:
        yield number
        if time.monotonic() >= until:
            return
        number = (number + 1) % _SEEDS


def play(model: type[RuleBasedStateMachine], number: int) -> None:
    """Play the batch of examples that a seed gives. Where `SEED` names it, what fails is made as short as can
    be first, which may take minutes."""
    shortened = [Phase.shrink] if "SEED" in os.environ else []
    once = settings(
        max_examples=BATCH,
        stateful_step_count=model.TestCase.settings.stateful_step_count,
        deadline=None,
        derandomize=False,
        database=None,
        phases=[Phase.generate, *shortened],
        suppress_health_check=list(HealthCheck),
    )
    seed(number)(get_state_machine_test(model, settings=once))()
