"""A leaf's signatures reach the tables over a real link, and the hub's roots rest on them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hub_jobs.receipts import roots
from hub_jobs.receipts.keys import hub_key, registry_of
from hub_jobs.source.server import Server
from hub_jobs.times import HOUR, micros
from tests.harness.keyed import Pair, petiole
from tests.harness.wait import wait_for
from tests.unit.hub_jobs.refined import ingest_all, refine_all


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A hub that runs, and a leaf that is enrolled there."""
    pair = Pair(tmp_path)
    try:
        pair.hub.start()
        pair.fleet("add", "-", stdin=pair.key())
        yield pair
    finally:
        pair.leaf.close()
        pair.hub.close()


def test_records_of_a_killed_leaf_are_followed_in_the_tables(pair: Pair, tmp_path: Path) -> None:
    petiole("enrol", "-c", str(pair.hub.member.config))
    pair.leaf.start()
    pair.post()
    pair.leaf.end(signal.SIGKILL)
    pair.leaf.start()
    pair.post()
    pair.post()
    pair.leaf.end(signal.SIGTERM)
    # Three batches, and records at both starts and at the end.
    wait_for(lambda: pair.held() >= 6, "the hub holds batches and records")

    lake, keys = tmp_path / "lake", pair.hub.member.state / "keys"
    ingest_all(lake, Server(pair.hub.member.nats_url, seed_file=str(keys / "jobs.nk")), "TELEMETRY_0")
    refine_all(lake)
    until = micros(datetime.now(UTC)) // HOUR * HOUR + HOUR
    registry, key = registry_of(pair.hub.member.config), hub_key(keys / "receipt.nk")
    made = roots.extend(lake, until, key, registry)
    assert made.contradictions == []
    assert len(made.unproven) == 1
    assert made.unproven[0].endswith("batch 1 is in no signed record; its leaf knew 1 batches of it")
    again = roots.check(lake, key, registry)
    assert (again.contradictions, again.unproven) == ([], made.unproven)

    (leaf,) = registry
    strange = roots.check(lake, key, {leaf: []})
    assert sum("a key that is not the leaf's" in text for text in strange.contradictions) == 3
