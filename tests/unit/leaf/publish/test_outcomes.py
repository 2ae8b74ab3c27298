"""How long a class is refused whose stream has no room."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from agent.base.metrics import Metrics
from agent.contract import MessageId, new_run
from agent.leaf.events import Events
from agent.leaf.intake import Chunk, RefusalReason
from agent.leaf.publish import outcomes
from agent.leaf.publish.accumulator import PendingChunk
from agent.leaf.publish.outcomes import Outcomes
from agent.leaf.publish.settlement import Settlement


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


def test_a_full_stream_that_takes_small_batches_between_large_ones_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, full, stores = 100.0, list[str](), list[str]()
    monkeypatch.setattr(outcomes, "loop_time", lambda: now)
    publisher = SimpleNamespace(stream_full=full.append, stream_stores=stores.append, stored=lambda *_: None)
    refusals = SimpleNamespace(batch=lambda *_: None, stored=lambda *_: None)
    ledger = SimpleNamespace(store=lambda *_: None, chain=SimpleNamespace(add=lambda *_: None))
    with structlog.testing.capture_logs() as logs:
        made = Outcomes(
            cast(Any, publisher), {"normal": cast(Any, ledger)}, Metrics(), cast(Any, refusals), Events()
        )
        for _ in range(20):
            made.refused(_batch(90_000), RefusalReason.FULL, "maximum bytes exceeded")
            made.stored(_batch(100), 1)
            now += 1
        assert (full[:1], stores) == (["normal"], [])
        made.stored(_batch(95_000), 2)
        assert stores == ["normal"], "what it refused has room"
        made.refused(_batch(90_000), RefusalReason.FULL, "maximum bytes exceeded")
        made.has_room("normal")
        made.stored(_batch(100), 3)
        made.refused(_batch(90_000), RefusalReason.FULL, "maximum bytes exceeded")
        now += 61
        made.stored(_batch(100), 4)
    assert stores == ["normal"] * 3
    assert [one["event"] for one in logs] == ["local stream does not store", "local stream stores again"] * 3


def _batch(size: int) -> Any:
    """A batch of one reading of so many bytes."""
    entry = PendingChunk(Chunk(b"x", 1), Settlement())
    fields = {
        "dead": False,
        "readings": 1,
        "input": "http",
        "position": None,
        "raw_bytes": size,
        "sealed": 0.0,
    }
    name = MessageId(new_run(), "normal", 1)
    return SimpleNamespace(id=name, payload=b"x" * size, entries=[entry], **fields)
