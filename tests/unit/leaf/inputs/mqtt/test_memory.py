"""The filters of a session over starts of an input."""

from __future__ import annotations

from pathlib import Path

import structlog
from structlog.testing import capture_logs

from agent.leaf.inputs.mqtt.memory import FilterMemory

LOG = structlog.get_logger("test")


def test_filters_are_remembered_where_there_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mqtt" / "a.filters"
    FilterMemory(file, LOG).note(["plant/#", "ü/+"])
    assert FilterMemory(file, LOG).earlier() == ["plant/#", "ü/+"]
    FilterMemory(None, LOG).note(["plant/#"])
    assert FilterMemory(None, LOG).earlier() == []
    with capture_logs() as told:
        FilterMemory(file / "below", LOG).note(["a"])
    assert "filters not remembered" in str(told)
