"""A hub of three servers, of which another takes the lead."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.faults.oracle.judge import Terms
from tests.faults.report import Case
from tests.faults.world.cluster import Cluster, open_cluster_environment
from tests.faults.world.environment import FaultEnvironment
from tests.harness.wait import wait_for

MORE = 50
"""Messages that arrive while a server is gone."""
WHOLE = "nothing acknowledged is lost or doubled"


def judged(w: FaultEnvironment, cluster: Cluster) -> None:
    """The aggregate stands on three servers again, all goes on, and every promise was kept."""
    wait_for(cluster.whole, "the aggregate stands on three servers again")
    w.load.flows()
    w.mended(180)
    w.verdict(Terms(seconds=180))


def other_leads(w: FaultEnvironment, cluster: Cluster, what: str, before: str) -> None:
    """Note that the lead moves; the next one has it when this returns."""
    w.injected.add(what, lambda _since: cluster.moved(before) or seen[-1])
    seen: list[str | None] = [None]

    def moved() -> bool:
        seen.append(cluster.moved(before))
        return seen[-1] is not None

    wait_for(moved, "another server leads the aggregate")


def arrives(cluster: Cluster, last: int) -> bool:
    """Whether the aggregate has come to this sequence."""
    return cluster.last() >= last


def test_another_server_of_a_cluster_takes_the_lead(tmp_path: Path, case: Case, spark: object) -> None:
    case.expected = f"data flows on to the new leader; {WHOLE}"
    with open_cluster_environment(tmp_path, case) as (w, cluster):
        for _ in range(3):
            before = cluster.leader()
            wait_for(partial(bool, before), "a server leads")
            cluster.step_down()
            other_leads(w, cluster, f"{before} is asked to step down", before)
            w.load.flows(20)
        judged(w, cluster)


def test_each_server_of_a_cluster_is_killed(tmp_path: Path, case: Case, spark: object) -> None:
    case.expected = f"the others take over from the leader and from the server of the leaf; {WHOLE}"
    with open_cluster_environment(tmp_path, case) as (w, cluster):
        for name, server in cluster.servers.items():
            wait_for(cluster.whole, "the aggregate stands on three servers")
            before = cluster.leader()
            server.program.kill()
            if name == before:
                other_leads(w, cluster, f"{before}, which led, is gone", before)
            wait_for(partial(arrives, cluster, cluster.last() + MORE), f"data arrives without {name}")
            server.start()
            w.injected.repaired(f"{name} is started")
        judged(w, cluster)
