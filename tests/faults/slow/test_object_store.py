"""A lake in an object store: two drivers write to a whole S3 server at once, and a store does as it is asked
and loses its answers, under every job."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client

import hub_jobs
from agent.contract import BatchHeaders, Clock, Exit, MessageId, new_run
from hub_jobs.tables.delta import open_table
from hub_jobs.tables.places import ObjectPath
from tests.faults.report import Case
from tests.harness.object_store import GATEWAY, SECRET, gateway, imitation
from tests.harness.servers import ServerPair, open_server_pair
from tests.harness.store_faults import COMMITS, DATA, Fault, StoreFaults, store_faults
from tests.harness.streams import AGGREGATE, held, make_aggregate, make_leaf_stream
from tests.harness.wait import ended
from tests.spark.lakes import contents

_JOBS = Path(hub_jobs.__file__).parent
_SECONDS = 300.0
LAKE = ObjectPath("s3://fleet/lake")
WELL = "nothing is missing, nothing is doubled"
BATCHES = 4_400
READINGS = 80
AT_ONCE = 200


@pytest.mark.skipif(GATEWAY is None, reason="there is no versitygw on the path")
async def test_two_drivers_at_once_bring_everything_into_a_bucket_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    case.expected = "one commits, the other says that it was late; every reading is in the table once"
    async with open_server_pair(tmp_path, "edge-1") as servers:
        with gateway(tmp_path) as environment:
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            hub = await filled(servers)

            both = await asyncio.gather(*(job("ingest", LAKE, *hub) for _ in range(2)))
            assert sorted(code for code, _ in both) in ([0, 0], [0, int(Exit.CONFLICT)]), both
            case.seen.append(f"the drivers' exit codes: {[code for code, _ in both]}")
            codes = [await job(name, LAKE) for name in ("refine", "maintain", "audit")]

            assert [code for code, _ in codes[:2]] == [Exit.WELL, Exit.WELL], codes
            assert WELL in codes[2][1], codes
            assert not any(SECRET in said for _, said in [*both, *codes])
            judged(case)


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreFaults]:
    """A store that does what it is told to do wrong."""
    with imitation(tmp_path) as environment, store_faults(environment["AWS_ENDPOINT_URL"]) as faults:
        for name, value in {**environment, "AWS_ENDPOINT_URL": faults.endpoint}.items():
            monkeypatch.setenv(name, value)
        yield faults


@pytest.mark.parametrize("fault", [Fault.FAILED, Fault.CUT, Fault.LATE])
async def test_a_store_loses_an_answer_of_each_kind_under_every_job(
    tmp_path: Path, case: Case, faults: StoreFaults, fault: Fault
) -> None:
    case.expected = "every job ends well; every reading is in the table once"
    case.not_proven.append(
        "rollup, whose commits are like those of replay: Spark reads a store by Hadoop's S3A"
    )
    async with open_server_pair(tmp_path, "edge-1") as servers:
        hub = await filled(servers)
        for name, *options in (
            ("ingest", *hub),
            ("refine",),
            ("audit",),
            ("replay", "--stream", "TELEMETRY_0", "--from-seq", "1"),
            ("audit",),
        ):
            for pattern in (COMMITS, DATA):
                faults.strike(pattern, fault)
            code, said = await job(name, LAKE, *options)
            faults.release()
            struck = faults.seen().struck
            case.seen.append(f"{name}: {len(struck)} answers lost, exit code {code}")
            assert code == Exit.WELL, (name, said)
            assert struck, name
            assert name != "audit" or WELL in said, said
    judged(case)


@pytest.mark.timeout(1200)
async def test_a_store_loses_every_answer_for_as_long_as_a_job_has_patience(
    tmp_path: Path, case: Case, faults: StoreFaults
) -> None:
    case.expected = "the job fails and deletes nothing; the next one goes on from what the log says"
    async with open_server_pair(tmp_path, "edge-1") as servers:
        hub = await filled(servers)
        for name, *options in (("ingest", *hub), ("refine",)):
            faults.strike(COMMITS, Fault.LATE, 999)
            code, said = await job(name, LAKE, *options)
            faults.release()
            case.seen.append(f"{name}: {len(faults.seen().struck)} answers lost, exit code {code}")
            assert code == Exit.FAILED, said
            assert "run the job again" in said or "can't be made" in said, said
            for _ in range(2):
                code, said = await job(name, LAKE, *options)
                assert code == Exit.WELL, said
        code, said = await job("audit", LAKE)
        assert code == Exit.WELL, said
        assert WELL in said
    judged(case)


async def filled(servers: ServerPair) -> list[str]:
    """Store batches at the hub; the options by which jobs reach it."""
    await stored(await servers.leaf.connect("agent"), await servers.hub.connect("registrar"))
    return ["--server", servers.hub.url, "--seed-file", str(servers.hub.keys["jobs"])]


def judged(case: Case) -> None:
    """Every message is in bronze and every reading in the table, once."""
    assert open_table(LAKE, "bronze") is not None
    assert contents(LAKE, "bronze", "seq") == sorted(range(1, BATCHES + 1), key=str)
    rows = contents(LAKE, "readings", "n", "index")
    case.sent = case.acknowledged = BATCHES * READINGS
    case.lost = BATCHES * READINGS - len(set(rows))
    case.duplicates = len(rows) - len(set(rows))
    assert (case.lost, case.duplicates) == (0, 0)


async def stored(agent: Client, registrar: Client, batches: int = BATCHES, readings: int = READINGS) -> None:
    """Batches at the leaf, and then at the hub."""
    epoch = "epoch0000000a"
    await make_leaf_stream(agent, "edge-1", epoch)
    await make_aggregate(registrar, {"edge-1": epoch})
    run, stream = new_run(), agent.jetstream()
    line = (
        '{"ts":%d,"device":"pump-%d","metric":"pressure","value":%d.5,"tags":{"site":"north","line":"a"}}\n'
    )
    for first in range(1, batches + 1, AT_ONCE):
        await asyncio.gather(
            *(
                stream.publish(
                    "tel.edge-1.normal._batch.http",
                    "".join(line % (n, at % 7, at) for at in range(readings)).encode(),
                    headers=BatchHeaders(
                        MessageId(run, "normal", n), readings, 1, Clock(True, "b", 1)
                    ).encode(),
                )
                for n in range(first, min(first + AT_ONCE, batches + 1))
            )
        )
    await held(registrar, AGGREGATE, batches)


async def job(name: str, lake: ObjectPath, *arguments: str) -> tuple[int, str]:
    """Run a job as a process of its own; its exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        _JOBS / name / "__main__.py",
        "--lake",
        str(lake),
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(_JOBS.parent)},
    )
    return await ended(process, _SECONDS)
