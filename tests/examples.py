"""How many examples a state machine plays: a few by default, the same in every run; as many as `EXAMPLES`
says where a long run is wanted (`make models EXAMPLES=5000`), others each time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


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
