"""An executor of a Spark cluster is killed in the midst of its work: a standalone cluster, with the packed
jobs and the Python that they bring along."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from agent.contract import Exit
from deploy import dist
from tests.faults.matrix.conftest import Worlds
from tests.faults.report import Case
from tests.faults.world.environment import FaultEnvironment
from tests.faults.world.tcp_proxy import TcpProxy, tcp_proxy
from tests.harness.standalone import Cluster, Node, busy_with, open_cluster
from tests.harness.wait import until, wait_for
from tests.spark.lakes import orphans

_MESSAGES = 6_000
"""At the hub before the job begins: enough for a task each of two workers."""
_DELAY_SECONDS = 0.3
"""So long every byte takes from and to the hub, so that a task is not done before it is hurt."""
_READ_BYTES = 100_000
"""Which have come when a task is hurt: a part of what it reads."""


def test_a_spark_executor_is_killed_while_its_task_reads(
    world_of: Worlds, case: Case, tmp_path: Path
) -> None:
    case.expected = "the other worker does its task again: nothing acknowledged is lost or doubled"
    case.not_proven.append("machines of their own: master, workers and lake are on one")
    with world_of(size=20) as w:
        packed = tmp_path / "dist"
        for pack in (dist.code, dist.scripts, dist.environment):
            pack(packed)
        for number in range(2, 6):
            w.load.direct(w.leaf.member, f"press-{number}", pace=0.0)
        wait_for(lambda: w.at_hub() >= _MESSAGES, f"the hub holds {_MESSAGES} messages", 300)
        for one in w.load.devices:
            one.pace = 1.0
        with tcp_proxy(w.hub.member.nats_port) as way:
            asyncio.run(_ingested(w, way, tmp_path, packed))
        case.saw(f"{orphans(w.tables.lake, 'bronze')} files that no commit names")
        w.load.flows()
        w.mended()
        w.verdict()


async def _ingested(w: FaultEnvironment, way: TcpProxy, directory: Path, packed: Path) -> None:
    """What the hub holds goes into the table, by a cluster of which a worker is killed meanwhile."""
    said: list[str] = []

    def trace(_since: float) -> str | None:
        lost = [line for line in said[0].splitlines() if "Lost executor" in line] if said else []
        return lost[0].partition("ERROR ")[2] or lost[0] if lost else None

    async with open_cluster(directory, packed, 2) as cluster:
        way.delay(_DELAY_SECONDS)
        server = ["--server", f"nats://{way.host}:{way.port}", *w.tables.server[2:]]
        lake = ["--lake", str(w.tables.lake)]
        job = asyncio.create_task(cluster.submit("ingest", *server, *lake, archive=True))
        victim = await _reading(cluster, way, job)
        w.injected.add("an executor is killed while its task reads", trace)
        victim.kill()
        way.delay(0.0)
        code, text = await job
        said.append(text)
        assert code == Exit.WELL, text
        w.case.saw("ingest has ended")
        code, text = await cluster.submit("refine", *lake)
        assert code == Exit.WELL, text


async def _reading(cluster: Cluster, way: TcpProxy, job: asyncio.Task[tuple[int, str]]) -> Node:
    """A worker whose task reads from the hub, and has not ended."""

    def busy() -> Sequence[Node]:
        assert not job.done(), job.result()
        return [node for node in cluster.workers if busy_with(way.port, node.family())]

    await until(lambda: bool(busy()), "a worker reads", 800)
    before = way.held
    await until(lambda: way.held >= before + _READ_BYTES, f"{_READ_BYTES} bytes have come to it", 200)
    return busy()[0]
