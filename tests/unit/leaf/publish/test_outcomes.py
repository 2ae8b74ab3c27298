"""How long a class is refused whose stream has no room."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agent.base.metrics import Metrics
from agent.leaf.events import Events
from agent.leaf.publish import outcomes
from agent.leaf.publish.outcomes import Outcomes


def test_a_stream_that_stays_full_is_tried_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(outcomes, "loop_time", lambda: now)
    nothing = cast(Any, None)
    made = Outcomes(nothing, {}, Metrics(), nothing, Events())
    waits = []
    for _ in range(6):
        for _ in range(3):
            made._pause("normal")  # of several batches that were under way
        assert made.is_full("normal")
        waits.append(made.no_room("normal", "no room").retry_after or 0.0)
        now += waits[-1] / 2
        assert not made.is_full("normal")
    assert waits == [1, 2, 4, 8, 10, 10]
    now += 61
    made._pause("normal")
    assert made.no_room("normal", "no room").retry_after == 1
