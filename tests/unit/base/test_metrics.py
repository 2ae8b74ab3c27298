"""What every agent shows beside its own figures."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from prometheus_client.exposition import choose_encoder

from agent.base.metrics import Metrics


@pytest.mark.parametrize("form", ["text/plain", "application/openmetrics-text; version=1.0.0"])
def test_an_agent_shows_its_version_and_its_process_and_not_when_each_counter_began(form: str) -> None:
    metrics = Metrics()
    metrics.accepted.labels("http", "normal").inc()
    metrics.publish_seconds.labels("normal").observe(0.01)
    encode, _ = choose_encoder(form)
    shown = encode(metrics.registry)
    assert b'petiole_build_info{python="3.' in shown
    assert f'version="{version("petiole")}"'.encode() in shown
    assert b"\nprocess_resident_memory_bytes " in shown
    assert b"petiole_accepted_readings_total{" in shown
    assert b"_created" not in shown
