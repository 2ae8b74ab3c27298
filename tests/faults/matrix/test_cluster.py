"""A hub of three servers, of which another takes the lead."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.faults.oracle.judge import Terms
from tests.faults.report import Case
from tests.faults.world.cluster import Cluster, open_cluster_environment
from tests.faults.world.environment import FaultEnvironment
from tests.harness.wait import wait_for

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


def test_the_leader_of_a_cluster_is_killed(tmp_path: Path, case: Case, spark: object) -> None:
    case.expected = f"another one takes the lead, and data flows on before it is back; {WHOLE}"
    with open_cluster_environment(tmp_path, case) as (w, cluster):
        before = cluster.leader()
        if before != "hub-a":
            case.not_proven.append("the registrar's own server, hub-a, did not lead this time")
        server = cluster.servers[before]
        server.program.kill()
        other_leads(w, cluster, f"{before}, which led, is gone", before)
        w.load.flows(20)
        server.start()
        w.injected.repaired(f"{before} is started")
        judged(w, cluster)
