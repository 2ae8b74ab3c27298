"""A short run of the matrix of faults (tests/faults/matrix), which `make faults` runs as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.report import Case
from tests.faults.world.environment import open_environment

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def test_what_was_acknowledged_while_agent_link_and_hub_were_hurt_is_in_the_table_once(
    tmp_path: Path,
) -> None:
    with open_environment(tmp_path, Case("agent, link and hub")) as w:
        w.leaf.agent.kill()
        w.leaf.start()
        w.load.flows()
        w.link.cut()
        w.noticed()
        w.load.flows()
        w.link.restore()
        w.mended()
        w.hub.nats.kill()
        w.load.flows()
        w.mended()
        w.verdict()
