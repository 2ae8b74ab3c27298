"""A leaf that was cut off for long: what waits there survives its agent and its server, and drains."""

from __future__ import annotations

import os

from tests.faults.matrix.conftest import Worlds
from tests.faults.oracle.judge import Terms
from tests.faults.report import Case
from tests.faults.world.machine import wait_for

BACKLOG = int(os.environ.get("BACKLOG") or 200_000)
"""Readings."""


def test_a_backlog_is_restarted_and_drained(world_of: Worlds, case: Case) -> None:
    case.expected = "agent and server are killed over it, and it drains; nothing is lost or doubled"
    case.not_proven.append(f"10 GB: this was {BACKLOG:,} readings (BACKLOG=)")
    with world_of(size=1000) as w:
        w.link.cut()
        wait_for(lambda: w.load.journal.acknowledged >= BACKLOG, f"{BACKLOG} readings are stored", 900)
        for one in w.load.devices:
            one.pace = 1.0
        w.leaf.agent.kill()
        w.leaf.nats.kill()
        w.leaf.start()
        w.link.restore()
        w.mended(300)
        w.verdict(Terms(seconds=300))
