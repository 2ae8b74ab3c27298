"""A lake in a store that does what it is asked and loses its answers, under every job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.contract import Exit
from hub_jobs.tables.places import ObjectPath
from tests.faults.report import Case
from tests.faults.slow.test_object_store import contents_once, job
from tests.faults.slow.test_spark_cluster import BATCHES, READINGS, stored
from tests.harness.object_store import imitation
from tests.harness.servers import ServerPair, open_server_pair
from tests.harness.store_faults import COMMITS, DATA, Fault, StoreFaults, store_faults
from tests.spark.lakes import contents

LAKE = ObjectPath("s3://fleet/lake")
WELL = "nothing is missing, nothing is doubled"


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
    """Every reading is there once."""
    assert contents_once(LAKE) == BATCHES
    rows = contents(LAKE, "readings", "n", "index")
    case.sent = case.acknowledged = BATCHES * READINGS
    case.lost = BATCHES * READINGS - len(set(rows))
    case.duplicates = len(rows) - len(set(rows))
    assert (case.lost, case.duplicates) == (0, 0)
