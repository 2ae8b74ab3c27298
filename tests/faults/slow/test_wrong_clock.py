"""A machine that starts in the wrong year and is synchronised later, from its inputs to the table: agents,
link, hub and jobs are the real ones; only its clock is a test's."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.contract import Exit
from agent.demo import plan
from agent.demo.ports import free_port
from hub_jobs.ingest import run as ingest
from hub_jobs.refine import run as refine
from tests.faults.report import Case
from tests.harness.agent_process import Agent
from tests.harness.clocks import SYNCHRONISED, UNSYNCHRONISED
from tests.harness.wait import wait_for
from tests.spark.conftest import spark  # noqa: F401
from tests.spark.lakes import contents

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

YEARS = timedelta(days=50 * 365)


class Late(Agent):
    """A leaf whose clock is behind until it is `set_right`."""

    @property
    def _clock(self) -> Path:
        return self.member.directory / "clock.json"

    def start(self) -> None:
        """Run the agent on that machine."""
        self._move(YEARS // timedelta(microseconds=1) * 1000, UNSYNCHRONISED)
        command = [sys.executable, "-m", "tests.harness.moved_clock", str(self._clock), "run", "-c"]
        self.process = subprocess.Popen(
            [*command, str(self.member.config)], stderr=subprocess.DEVNULL, text=True
        )
        wait_for(lambda: self.status_of("/readyz") == 200, "the agent is ready")

    def set_right(self) -> None:
        """The machine's clock is synchronised."""
        self._move(0, SYNCHRONISED)

    def _move(self, behind: int, state: int) -> None:
        written = self._clock.with_suffix(".new")
        written.write_text(json.dumps([behind, "boot-1", state]))
        written.replace(self._clock)


def test_what_a_machine_stored_before_its_clock_was_set_has_the_right_time_in_the_end(
    case: Case, tmp_path: Path
) -> None:
    case.expected = "the time that the machine stamped is right in the table, and what it had said is kept"
    case.not_proven.append("a real step of the clock: the agent reads one that the test moves")
    hub_member, leaf_port = plan.member(tmp_path, "hub"), free_port()
    member = plan.member(tmp_path, "edge-1")
    leaf = Late(member, plan.leaf_toml(member, leaf_port))
    hub = Agent(hub_member, plan.hub_toml(hub_member, leaf_port, [leaf.petiole("enrol").stdout]))
    lake = tmp_path / "lake"
    key = hub_member.state / "keys" / "jobs.nk"
    options = ["--server", hub_member.nats_url, "--seed-file", str(key), "--lake", str(lake)]
    member.lines.write_text("no reading\n")
    began = datetime.now(UTC)
    try:
        hub.start()
        leaf.start()
        assert leaf.post(b'{"device": "pump", "metric": "early", "value": 1}', "a") == 204
        assert leaf.post(b'{"device": "pump", "metric": "own", "value": 1, "ts": 5}', "b") == 204
        _refined(leaf, lake, options)
        (early,) = _times(lake, "early")
        assert (early[1], early[2]) == ("agent", None)
        assert abs(began - YEARS - early[0]) < timedelta(minutes=5)

        leaf.set_right()
        case.begins()
        wait_for(lambda: leaf.metric("petiole_clock_steps_total") == 1, "the step is seen")
        assert leaf.post(b'{"device": "pump", "metric": "late", "value": 1}', "c") == 204
        leaf_state = member.state / "state.json"
        wait_for(lambda: json.loads(leaf_state.read_bytes())["corrections"] == [], "the correction is stored")
        case.saw("the correction is stored")
        _refined(leaf, lake, options)

        (now,) = _times(lake, "early")
        assert (now[1], now[2]) == ("corrected", early[0])
        assert timedelta(0) < now[0] - began < timedelta(minutes=5)
        assert [one[1:] for one in _times(lake, "late")] == [("agent", None)]
        assert _times(lake, "own") == [(datetime.fromtimestamp(5, UTC), "device", None)]
        assert contents(lake, "quarantine", "reason", "place") == [("dead letter", f"{member.lines}:0")]
    finally:
        leaf.close()
        hub.close()


def _refined(leaf: Agent, lake: Path, options: list[str]) -> None:
    wait_for(lambda: leaf.metric("petiole_backlog_messages") == 0, "the hub has it all")
    assert ingest.main(options) == Exit.WELL
    assert refine.main(["--lake", str(lake)]) == Exit.WELL


def _times(lake: Path, metric: str) -> list[Any]:
    rows = contents(lake, "readings", "metric", "ts", "ts_source", "ts_original")
    return [row[1:] for row in rows if row[0] == metric]
