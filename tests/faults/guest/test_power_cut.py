"""The power of a leaf or of its hub is cut under load: a guest that is killed, so that what its kernel had
not written dies with it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent.contract import Exit
from tests.faults.guest.edge import Edge, MachineEdge, ServerEdge, Sync
from tests.faults.guest.hub import HubCluster, HubMachine
from tests.faults.guest.kernel import Kernel
from tests.faults.report import Case
from tests.spark.conftest import spark  # noqa: F401

pytestmark = pytest.mark.timeout(1_800)

ROUNDS = 3
_SYNCING = 2.0
"""What a sync itself may take in a slow guest, in seconds, beside the interval between two."""
_NOT_SYNCED = "acknowledged is not synced"


def cut_and_boot(one: Edge, case: Case) -> float:
    """Cut the power and switch it on again; returns the moment of the cut once readings are taken again."""
    one.machine.cut_power()
    cut = time.monotonic()
    case.begins()
    one.boot()
    case.saw("the guest is up")
    one.goes_on(100)
    case.recover_seconds = case.saw("readings are acknowledged again")
    return cut


def cut_in_rounds(one: Edge, case: Case) -> None:
    """Cut the power again and again, and find everything at the hub."""
    one.start()
    for _ in range(ROUNDS):
        one.goes_on()
        cut_and_boot(one, case)
        case.saw(f"new epochs: {', '.join(sorted(one.new_epochs())) or 'none'}")
    assert judge(one, case) == []


def judge(one: Edge, case: Case) -> list[float]:
    """Fill in the case from what the hub holds; returns when what was lost had been acknowledged."""
    found = one.drained()
    lost = found.lost(one.load)
    case.sent = case.acknowledged = one.load.count
    case.lost, case.duplicates = len(lost), found.doubled()
    return lost


def test_power_cut_of_a_leaf_that_syncs_before_it_acknowledges(
    kernel: Kernel, tmp_path: Path, case: Case
) -> None:
    case.expected = f"0 lost in {ROUNDS} cuts under load; the agent goes on without help"
    with ServerEdge(tmp_path, kernel, "always") as one:
        cut_in_rounds(one, case)


def test_power_cut_of_a_whole_machine_agent_and_server(kernel: Kernel, tmp_path: Path, case: Case) -> None:
    case.expected = (
        f"0 lost in {ROUNDS} cuts under load; agent, state file and store come up again by themselves"
    )
    with MachineEdge(tmp_path, kernel) as one:
        cut_in_rounds(one, case)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(("sync", "interval"), [("1s", 1.0), ("2m", 120.0)])
def test_power_cut_of_a_leaf_that_syncs_at_an_interval(
    kernel: Kernel, tmp_path: Path, case: Case, sync: Sync, interval: float
) -> None:
    case.expected = (
        f"with sync_interval {sync} and no hub at most what was acknowledged in the last {sync} is lost; "
        "it was reported as not synced, and the audit counts it, no more and no less"
    )
    with ServerEdge(tmp_path, kernel, sync) as one:
        one.start()
        one.wait(lambda: _NOT_SYNCED in one.status()["server"]["warning"], "it is reported as not synced")
        one.goes_on()
        one.machine.run("sync")
        one.hub_goes()
        one.goes_on(400)
        cut = cut_and_boot(one, case)
        reasons = one.new_epochs()
        case.saw(f"new epochs: {', '.join(sorted(reasons)) or 'none'}")
        one.hub.start()
        lost = judge(one, case)
        code, report = one.audited(tmp_path / "lake")
        missing = sum(row["missing"] for row in report["rows"])
        case.lost, case.named = len(lost) - missing, missing
        assert (code, missing) == (Exit.LOSS if lost else Exit.WELL, len(lost))
        case.saw(f"{case.duplicates} readings came to the hub again and were dropped at the table")
        case.duplicates = sum(row["doubled"] for row in report["rows"])
        assert case.duplicates == 0
        assert len(reasons) == 1 or not lost, "a leaf whose store lost something goes on in a new epoch"
        assert not lost or cut - lost[0] < interval + _SYNCING
        if sync == "2m":
            assert lost, "the page cache outlived the cut, so the other cases prove nothing"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("sync", ["1s", "10s"])
def test_power_cut_of_a_whole_hub_that_syncs_at_an_interval(
    kernel: Kernel, tmp_path: Path, case: Case, sync: str
) -> None:
    case.expected = (
        f"with sync_interval {sync} the hub loses what it had not synced in {ROUNDS} cuts under load, while "
        "the leaf trims and ingest reads; the leaf sends it again: 0 lost, 0 doubled in the table"
    )
    lake, gone = tmp_path / "lake", 0
    with HubMachine(tmp_path, kernel, sync) as one:
        one.start()
        for number in range(ROUNDS):
            one.goes_on(1_000)
            one.wait(lambda: one.ingested(lake) == Exit.WELL, "ingest has read all")
            one.goes_on(500)
            trimmed, held = one.trimmed(), one.held()
            one.machine.cut_power()
            case.begins()
            one.boot()
            case.saw("the guest is up")
            one.confirms_again(number + 1, trimmed)
            case.recover_seconds = case.saw("the hub confirms again")
            lost, gone = held - one.restored(), gone + held - one.restored()
            case.saw(f"the hub's store lacked {lost} of {held} messages; the leaf had trimmed {trimmed}")
        judge_tables(one, case, lake)
    assert gone > 0, "the page cache outlived the cuts, so this proves nothing"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_power_cut_of_one_two_and_all_machines_of_a_hub(kernel: Kernel, tmp_path: Path, case: Case) -> None:
    case.expected = (
        "three machines sync before they acknowledge; while one is off the others go on; after one, two and "
        "all were cut off under load: 0 lost, 0 doubled in the table"
    )
    lake = tmp_path / "lake"
    with HubCluster(tmp_path, kernel) as one:
        one.start()
        for count in (1, 2, 3):
            one.goes_on(500)
            one.wait(lambda: one.ingested(lake) == Exit.WELL, "ingest has read all")
            one.goes_on(200)
            trimmed, first = one.trimmed(), one.leader()
            names = sorted(one.machines, key=lambda name: name != first)[:count]
            one.cut_power(names)
            case.begins()
            if count == 1:
                one.confirms_more(trimmed)
                case.saw("the two others go on")
            one.boot()
            case.saw(f"{count} of 3 are up again")
            one.confirms_more(one.trimmed())
            case.recover_seconds = case.saw("the hub confirms again")
        judge_tables(one, case, lake)


def judge_tables(one: HubMachine, case: Case, lake: Path) -> None:
    """Take all into tables, and fill in the case from what they hold."""
    code, values, rows = one.tables(lake)
    sent = {
        (device, value)
        for device, times in one.load.acknowledged.items()
        for value in range(1, len(times) + 1)
    }
    case.sent = case.acknowledged = one.load.count
    case.lost, case.duplicates = len(sent - values.keys()), len(rows) - len(values)
    assert (code, case.lost, case.duplicates) == (Exit.WELL, 0, 0)
