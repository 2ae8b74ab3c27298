"""A hub of three servers, of which another takes the lead, or one has a damaged copy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from functools import partial
from pathlib import Path
from random import Random

import nats

from agent.contract import DEFAULT_CLASS, aggregate, direct_subject, inbox_prefix
from agent.demo.plan import Member
from agent.leaf.link.guard import EpochReason
from hub_jobs.source.connection import Connection
from hub_jobs.source.protocol import Unreachable
from hub_jobs.source.ranges import read_columns
from hub_jobs.source.server import Server
from tests.faults.matrix.test_stores import damage
from tests.faults.oracle.judge import Terms
from tests.faults.report import Case
from tests.faults.world.cluster import Cluster, open_cluster_environment
from tests.faults.world.environment import FaultEnvironment
from tests.harness.wait import wait_for

MORE = 50
"""Messages that arrive while a server is gone."""
WHOLE = "nothing acknowledged is lost or doubled"


def judged(w: FaultEnvironment, cluster: Cluster) -> None:
    """The aggregate stands on three servers again, all goes on, every promise was kept, and what only came
    late to a server was not taken for lost."""
    wait_for(cluster.whole, "the aggregate stands on three servers again", 180)
    w.load.flows()
    w.mended(180)
    assert w.leaf.metric("petiole_epochs_total", reason=EpochReason.HUB_LOST.value) == 0
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


def test_a_server_of_a_cluster_lags_behind_and_leads(tmp_path: Path, case: Case, spark: object) -> None:
    case.expected = f"what it lacks yet is no gap; {WHOLE}"
    with open_cluster_environment(tmp_path, case) as (w, cluster):
        before = cluster.leader()
        name = next(name for name in reversed(cluster.servers) if name != before)
        pid = cluster.servers[name].program.pid
        assert pid is not None
        w.injected.add(f"{name} is stopped by SIGSTOP", lambda _since: f"{name} was not current")
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_for(lambda: not cluster.whole(), f"{name} is not current")
            for _ in range(3):
                cluster.step_down()
                w.load.flows(20, 180)
        finally:
            os.kill(pid, signal.SIGCONT)
        w.injected.repaired(f"{name} goes on")
        wait_for(partial(_leads, cluster, name), f"{name} leads", 180)
        judged(w, cluster)


def _leads(cluster: Cluster, name: str) -> bool:
    if cluster.leader() != name:
        cluster.step_down(name)
    return cluster.leader() == name


async def _fill(member: Member, count: int = 200) -> None:
    """Messages of 120 kB each, so that the aggregate has several files."""
    seed, random = str(member.state / "keys" / "device.nk"), Random(1)
    nc = await nats.connect(member.nats_url, nkeys_seed=seed, inbox_prefix=inbox_prefix("device").encode())
    subject = direct_subject(member.domain, DEFAULT_CLASS, "camera", "picture")
    for _ in range(count):
        await nc.request(subject, json.dumps({"value": random.randbytes(60_000).hex()}).encode(), timeout=30)
    await nc.close()


def _reads(w: FaultEnvironment, last: int, damaged: str) -> list[int]:
    """How many of the messages each read of the aggregate gave, until one was refused for the damaged copy of
    a server; each is given to one of the three by chance."""
    server = Server(w.hub.member.nats_url, seed_file=str(w.hub.member.state / "keys" / "jobs.nk"))
    found: list[int] = []

    def is_refused() -> bool:
        try:
            with Connection(server) as conn:
                read = read_columns(conn, aggregate(0), 1, last, allow_lost=True, ask_copies=True)
                found.append(sum(len(columns.seqs) for columns in read))
        except Unreachable as error:
            return f"{damaged} lacks records" in str(error)
        return False

    wait_for(is_refused, f"a read of the copy of {damaged} is refused", 180)
    return found


def play_damage(w: FaultEnvironment, cluster: Cluster, number: int) -> None:
    """A server whose disk has damaged a block of its copy leads, and every read of that copy is refused."""
    asyncio.run(_fill(w.leaf.member))
    w.mended(180)
    wait_for(cluster.whole, "the aggregate stands on three servers", 180)
    before = cluster.leader()
    cluster.servers[before].program.kill()
    damage(cluster.blocks(before)[number])
    other_leads(w, cluster, f"{before}, which led, is gone, and a block of its copy is damaged", before)
    cluster.servers[before].start()
    w.injected.repaired(f"{before} is started")
    wait_for(lambda: _leads(cluster, before) and cluster.lacking() > 0, "it leads and lacks messages", 180)
    last = cluster.last()
    assert set(_reads(w, last, before)) <= {last}
    judged(w, cluster)


def test_a_block_of_the_leader_of_a_cluster_is_damaged(tmp_path: Path, case: Case, spark: object) -> None:
    case.expected = f"what its copy lacks is taken from the others'; {WHOLE}"
    with open_cluster_environment(tmp_path, case) as (w, cluster):
        play_damage(w, cluster, 1)


def test_the_first_block_of_the_leader_of_a_cluster_is_damaged_before_any_job_has_run(
    tmp_path: Path, case: Case, spark: object
) -> None:
    case.expected = f"the first read begins where the others' copies do; {WHOLE}"
    with open_cluster_environment(tmp_path, case) as (w, cluster):
        play_damage(w, cluster, 0)
