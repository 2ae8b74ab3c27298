"""What a tracker does with the record that it finds on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.contract import new_run
from agent.jetstream import StreamInfo
from agent.leaf.ledger.evictions.tracker import EvictionTracker

STREAM = StreamInfo("TEL_d_c", "2026-01-01T00:00:00Z", 1, 0, 0, 0, {}, [])


@pytest.mark.parametrize(
    ("content", "error"), [(b'{"version":2,"created":"c"}', "it has version 2"), (b"{", "truncated")]
)
def test_a_record_that_cannot_be_read_is_logged(tmp_path: Path, content: bytes, error: str) -> None:
    (tmp_path / "discards-c.json").write_bytes(content)
    with capture_logs() as logged:
        EvictionTracker(tmp_path, "d", "c", new_run()).load(STREAM)
    assert [(row["event"], error in row["error"]) for row in logged] == [("eviction record lost", True)]
