"""How many examples a state machine plays: a few fixed ones by default, the same in every run; as many as
`EXAMPLES` says where a long run is wanted (`make models EXAMPLES=5000`), others each time. Beside the fixed
ones `make test` plays new ones for a few seconds, each batch under a seed by which it is played again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, get_state_machine_test

BATCH = 5
"""Examples under one seed."""
_SEEDS = 2**32


def machine(examples: int, steps: int) -> settings:
    """The settings of a state machine that plays so many examples of so many steps in `make test`."""
    wanted = int(os.environ.get("EXAMPLES", "0"))
    return settings(
        max_examples=wanted or examples,
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
