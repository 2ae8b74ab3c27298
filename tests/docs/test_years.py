"""Months of what the benchmark `years` plays for years, by counts: what a leaf and the registrar keep stops
growing. Of the lake's tables `tests/unit/hub_jobs/tables/` tells it (`test_log.py`, `test_seen.py`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from agent.contract import LOST_STREAMS
from agent.leaf.commands.cursor import RECENT_COMMANDS
from agent.leaf.ledger.evictions import MAX_RUNS
from agent.leaf.link.checkpoints import RETENTION, earlier
from agent.leaf.state_file import load
from bench.years_hub import Hub
from bench.years_leaf import DOMAIN, Leaf


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Says nothing of the clocks that are stepped at each boot."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.configure(**before)


def test_what_a_leaf_keeps_and_says_stops_growing(tmp_path: Path) -> None:
    leaf = Leaf(tmp_path, batches=3)
    leaf.live(140)
    first = leaf.sizes()
    leaf.live(7, since=140)
    later = leaf.sizes()
    for name in ("announcement", "ledger record", "requests.log", "positions.json"):
        assert later[name] <= 1.02 * first[name], name
    assert later.keys() == first.keys(), "no run leaves a file of its own"
    state = load(tmp_path / "state.json", DOMAIN)
    assert len(state.commands_run.commands) == RECENT_COMMANDS
    assert all(len(lost) <= LOST_STREAMS for lost in state.lost.values())
    assert max(len(earlier(known)) for known in state.earlier.values()) <= sum(most for _, most in RETENTION)
    assert len(state.corrections) <= 64
    assert later["discards-bulk.json"] < 100 * MAX_RUNS


def test_what_the_registrar_keeps_of_a_fleet_that_is_replaced_and_restarted_stays_as_it_is() -> None:
    hub = Hub(60)
    hub.live(3)
    first = hub.sizes()
    hub.live(33)
    later = hub.sizes()
    assert later.pop("bytes of the bucket") < 1.02 * first.pop("bytes of the bucket")
    assert later.pop("bytes of its largest record") < 1.1 * first.pop("bytes of its largest record")
    assert later.pop("rates in memory") <= 5 * 60, "of a domain, of its epochs, and of three of its runs"
    first.pop("rates in memory")
    assert later == first
