"""A leaf's disk that is in two machines at once."""

from __future__ import annotations

import shutil
from pathlib import Path

from agent.demo import plan
from tests.faults.matrix.conftest import Worlds
from tests.faults.oracle.judge import Terms
from tests.faults.report import Case
from tests.faults.world.configs import LeafSettings, leaf_toml
from tests.faults.world.environment import FaultEnvironment
from tests.faults.world.load import load
from tests.faults.world.machine import Machine


def copied(w: FaultEnvironment, directory: Path) -> Machine:
    """A machine with a copy of the first leaf's disk, which was switched off meanwhile; it does not run."""
    assert w.leaf.end_well() == 0
    w.leaf.petiole("server", "stop")
    member = plan.member(directory, w.leaf.member.domain)
    proxy = w.link.proxy
    one = Machine(
        member, leaf_toml(member, f"nats-leaf://{proxy.host}:{proxy.port}", LeafSettings()), w.injected
    )
    shutil.copytree(w.leaf.member.state, member.state)
    w.leaf.start()
    return one


def test_the_disk_of_a_leaf_is_copied_and_both_machines_run(
    world_of: Worlds, case: Case, tmp_path: Path
) -> None:
    case.expected = (
        "the copy is refused in words and the first one flows on; nothing that the first one acknowledged is "
        "lost or doubled, and what the copy took in before it was refused stands under a run of its own"
    )
    with world_of() as w:
        case.begins()
        copy = copied(w, tmp_path / "copy")
        w.mended()
        w.load.flows(20)

        def told(since: float) -> str | None:
            refused = [at for at, state in copy.link_told(since) if state == "refused"]
            return (
                f"the copy reported that it is refused after {refused[0] - since:.1f} s" if refused else None
            )

        try:
            w.injected.add("a copy of the disk of edge-1 runs in a second machine", told)
            copy.begin()
            copy.wait_ready()
            with load() as other:
                other.over_http(copy.member, "stranger-1")
                w.noticed()
                w.load.flows(20)
                other.stop()
        finally:
            copy.close()
        w.injected.repaired("the copy is switched off")
        for series, sent in other.journal.series.items():
            sent.acknowledged = 0  # of these nothing is promised: some came before the copy was refused
            w.load.journal.series[series] = sent
        w.mended(180)
        w.load.flows()
        found = w.verdict(Terms(gone=True, seconds=120))
        assert found.named == 0, "readings of the first machine are gone"
