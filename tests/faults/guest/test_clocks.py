"""The clock of a leaf's machine is wrong when it starts, and steps under load: agent, server, kernel and
clock are those of a guest, and real."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from agent.contract import Exit
from tests.faults.guest.edge import MachineEdge
from tests.faults.guest.kernel import Kernel
from tests.faults.report import Case
from tests.spark.conftest import spark  # noqa: F401
from tests.spark.lakes import contents

pytestmark = pytest.mark.timeout(1_800)

FIRST_HOUR: Final = 3_600
"""1970; at 0 the kernel would have to have been started before its time began."""
HOUR, YEAR = 3_600.0, 365 * 86_400.0
_OWN: Final = b'{"device":"pump","metric":"early","value":1}'


def steps(one: MachineEdge) -> float:
    """How many steps of the clock the agent has seen."""
    return one.leaf.metric("petiole_clock_steps_total")


def _stepped(one: MachineEdge, before: float) -> bool:
    return steps(one) > before


def step(one: MachineEdge, case: Case, by: float, name: str) -> None:
    """Set the clock off the true time by so many seconds; returns when the agent has seen it and the hub has
    everything that was stored since."""
    before = steps(one)
    case.begins()
    one.set_clock(time.time() + by)
    one.wait(partial(_stepped, one, before), "the agent sees the step")
    case.detect_seconds = case.saw(f"{name}: the step is seen")
    one.goes_on(100)
    one.caught_up()
    case.recover_seconds = case.saw(f"{name}: what came since is at the hub")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_clock_at_1970_when_the_machine_starts(kernel: Kernel, tmp_path: Path, case: Case) -> None:
    case.expected = (
        "readings are stored and linked all the same; once the clock is set and the kernel calls it "
        "synchronised, the times that the machine stamped are right in the table; none lost or doubled, "
        "also when a request is repeated after a new start under another clock"
    )
    with MachineEdge(tmp_path, kernel) as one:
        began = datetime.now(UTC)
        one.start(FIRST_HOUR)
        assert one.leaf.post(_OWN, "own") == 204
        one.goes_on()
        one.caught_up()
        one.refined(tmp_path / "lake")
        (early,) = _times(tmp_path / "lake")
        assert early[0].year == 1970
        assert early[1:] == ("agent", None)

        step(one, case, 0.0, "1970 to now")
        one.synchronise()
        one.wait(
            lambda: one.leaf.metric("petiole_clock_synchronised") == 1, "the agent sees that it is right"
        )
        case.saw("synchronised")
        one.restart_agent()
        one.wait(lambda: one.leaf.post(_OWN, "own") == 204, "a request is repeated over the restart")
        found = one.drained()
        lost = found.lost(one.load)
        case.sent = case.acknowledged = one.load.count
        case.lost, case.duplicates = len(lost), found.doubled()
        assert (lost, case.duplicates) == ([], 0)
        code, report = one.audited(tmp_path / "lake")
        assert code == Exit.WELL, report["findings"]
        (now,) = _times(tmp_path / "lake")
        assert now[1:] == ("corrected", early[0])
        assert timedelta(0) < now[0] - began < timedelta(minutes=10)


def _times(lake: Path) -> list[Any]:
    rows = contents(lake, "readings", "metric", "ts", "ts_source", "ts_original")
    return [row[1:] for row in rows if row[0] == "early"]


def test_clock_stepped_under_load(kernel: Kernel, tmp_path: Path, case: Case) -> None:
    case.expected = (
        "back an hour, forward a year and right again, with the link up and while it is down and the link "
        "consumer paused by wall time: nothing lost or doubled, and the link flows on by itself"
    )
    with MachineEdge(tmp_path, kernel) as one:
        one.start()
        one.goes_on()
        for name, by in (("back an hour", -HOUR), ("forward a year", YEAR), ("right", 0.0)):
            step(one, case, by, name)
        for name, by in (("back an hour", -HOUR), ("forward a year", YEAR), ("right", 0.0)):
            one.hub_goes()
            one.wait(lambda: one.leaf.status()["link"]["state"] == "down", "the link is down")
            before = steps(one)
            one.set_clock(time.time() + by)
            one.wait(partial(_stepped, one, before), "the agent sees the step")
            one.goes_on(50)
            case.begins()
            one.hub.start()
            one.caught_up()
            case.recover_seconds = case.saw(f"{name} while the link was down: all is at the hub")
        assert one.new_epochs() == set()
        found = one.drained()
        lost = found.lost(one.load)
        case.sent = case.acknowledged = one.load.count
        case.lost, case.duplicates = len(lost), found.doubled()
        assert (lost, case.duplicates) == ([], 0)
