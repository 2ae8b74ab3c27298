"""A standalone cluster of Spark on which the packed jobs run, and of which a worker is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import psutil
from nats.aio.client import Client

from agent.contract import BatchHeaders, Clock, Exit, MessageId, new_run
from agent.demo.proxy import Proxy
from deploy import dist
from tests.faults.report import Case
from tests.harness.servers import open_server_pair
from tests.harness.standalone import Cluster, Node, busy_with, open_cluster
from tests.harness.streams import AGGREGATE, held, make_aggregate, make_leaf_stream
from tests.harness.wait import until
from tests.spark.lakes import contents

BATCHES = 4_400
"""Enough for two tasks, which read them in several pieces."""
READINGS = 80
AT_ONCE = 200


async def test_a_worker_killed_while_it_ingests_changes_nothing_of_the_table(
    tmp_path: Path, case: Case
) -> None:
    case.expected = "the other worker does its task again: the same table as without"
    packed = tmp_path / "dist"
    for pack in (dist.code, dist.scripts, dist.environment):
        await asyncio.to_thread(pack, packed)
    async with open_server_pair(tmp_path, "edge-1") as servers, open_cluster(tmp_path, packed, 2) as cluster:
        await stored(await servers.leaf.connect("agent"), await servers.hub.connect("registrar"))
        options = ["--seed-file", str(servers.hub.keys["jobs"]), "--lake"]
        wire = Proxy(servers.hub.port)
        await wire.start()
        try:
            lake = tmp_path / "lake"
            server = f"nats://127.0.0.1:{wire.port}"
            job = asyncio.create_task(
                cluster.submit("ingest", "--server", server, *options, str(lake), archive=True)
            )
            victim = await reading(cluster, wire, lake, job)
            case.begins()
            victim.kill()
            wire.restore()
            code, said = await job
            case.recover_seconds = case.saw("ingest has ended")
        finally:
            await wire.stop()
        assert code == Exit.WELL, said
        assert f"{BATCHES} messages of {AGGREGATE}" in said
        assert "ExecutorLostFailure" in said or "Lost executor" in said, said

        alone = tmp_path / "alone"
        code, said = await cluster.submit(
            "ingest", "--server", servers.hub.url, *options, str(alone), master="local[2,4]"
        )
        assert code == Exit.WELL, said
        assert contents(lake, "bronze") == contents(alone, "bronze")
        assert contents(lake, "bronze", "seq") == sorted(range(1, BATCHES + 1), key=str)

        code, said = await cluster.submit("refine", "--lake", str(lake))
        assert code == Exit.WELL, said
        rows = contents(lake, "readings", "n", "index")
        case.sent = case.acknowledged = BATCHES * READINGS
        case.lost = BATCHES * READINGS - len(set(rows))
        case.duplicates = len(rows) - len(set(rows))
        assert (case.lost, case.duplicates) == (0, 0)
        case.not_proven.append("machines of their own: master, workers and lake are on one")


async def stored(agent: Client, registrar: Client) -> None:
    """Batches at the leaf, and then at the hub."""
    epoch = "epoch0000000a"
    await make_leaf_stream(agent, "edge-1", epoch)
    await make_aggregate(registrar, {"edge-1": epoch})
    run, stream = new_run(), agent.jetstream()
    line = (
        '{"ts":%d,"device":"pump-%d","metric":"pressure","value":%d.5,"tags":{"site":"north","line":"a"}}\n'
    )
    for first in range(1, BATCHES + 1, AT_ONCE):
        await asyncio.gather(
            *(
                stream.publish(
                    "tel.edge-1.normal._batch.http",
                    "".join(line % (n, at % 7, at) for at in range(READINGS)).encode(),
                    headers=BatchHeaders(
                        MessageId(run, "normal", n), READINGS, 1, Clock(True, "b", 1)
                    ).encode(),
                )
                for n in range(first, first + AT_ONCE)
            )
        )
    await held(registrar, AGGREGATE, BATCHES)


async def reading(cluster: Cluster, wire: Proxy, lake: Path, job: asyncio.Task[tuple[int, str]]) -> Node:
    """A worker in the midst of a task that has begun to write, and for whom nothing more comes in."""

    def families() -> dict[Node, Sequence[psutil.Process]]:
        return {node: busy_with(wire.port, node.family()) for node in cluster.workers}

    def writing() -> bool:
        assert not job.done(), job.result()
        return any((lake / "bronze").glob("part-*.parquet"))

    await until(writing, "a task has begun a file", 400)
    wire.stall()
    busy = [node for node, mine in families().items() if mine]
    assert busy, "both tasks had ended before the wire was stalled"
    return busy[0]
