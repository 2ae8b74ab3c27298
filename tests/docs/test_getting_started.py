"""What a newcomer copies works at once, and what the first start logs is calm."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.harness.getting_started import ROOT, FirstHour

LEVELS = {"debug", "info"}


def test_every_block_up_to_the_table_works_and_nothing_normal_is_logged_as_a_warning(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    page = FirstHour(tmp_path, {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)})
    page.play(upto="A table")
    assert "204 No Content" in "\n".join(page.said)
    logged = page.logged()
    assert {line["event"] for line in logged} >= {"started", "ready", "stopped"}
    assert [line for line in logged if line["level"] not in LEVELS] == []
