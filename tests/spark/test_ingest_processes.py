"""`ingest` as a process: two at once, killed drivers and workers, signals, and a job that runs for long."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from agent.contract import Exit
from agent.demo.loopback import LoopbackProxy
from hub_jobs.ingest import run as ingest
from hub_jobs.spark.session import run_tasks
from hub_jobs.tables.delta import ensure_table
from tests.harness.servers import api
from tests.harness.standalone import busy_with
from tests.harness.streams import AGGREGATE, ask_again
from tests.harness.wait import until
from tests.spark.fleet import Fleet, fleet
from tests.spark.lakes import DRIVER, JOB_SECONDS, contents, killed, orphans

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["fleet"]
pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


async def test_a_signal_ends_a_run_after_its_commit_and_the_next_one_goes_on(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ingest, "_MAX_RECORDS", 1)
    monkeypatch.setattr(ingest, "_PARTS_A_CORE", 1)
    first: Any = run_tasks

    def interrupted(*rest: object) -> object:
        monkeypatch.setattr(ingest, "run_tasks", first)  # a second signal would end this process
        os.kill(os.getpid(), signal.SIGTERM)
        return first(*rest)

    monkeypatch.setattr(ingest, "run_tasks", interrupted)
    assert ingest.main(fleet.options) == Exit.WELL

    assert fleet.bronze("seq") == [1, 2]
    assert capfd.readouterr().err.rstrip().endswith("ingest: stopped")
    assert ingest.main(fleet.options) == Exit.WELL
    assert fleet.bronze("seq") == [1, 2, 3, 4, 5]


async def test_of_two_drivers_at_once_one_commits_and_the_other_says_so(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: Any = run_tasks
    results: list[Exit] = []

    def overtaken(spark: SparkSession, *rest: object) -> object:
        written: Any = first(spark, *rest)
        monkeypatch.setattr(ingest, "run_tasks", first)
        results.append(ingest.main(fleet.options))
        return written

    monkeypatch.setattr(ingest, "run_tasks", overtaken)
    results.append(await fleet.ingest())

    assert results == [Exit.WELL, Exit.CONFLICT]
    assert fleet.bronze("seq") == [1, 2, 3, 4, 5]
    assert orphans(fleet.lake, "bronze") == 0


async def test_a_driver_killed_between_its_files_and_its_commit_loses_and_doubles_nothing(
    fleet: Fleet, tmp_path: Path
) -> None:
    program = f"""{DRIVER}
from hub_jobs.ingest.run import main
Table.commit = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
main({fleet.options!r})
"""
    await asyncio.to_thread(killed, tmp_path / "driver.py", program)
    assert fleet.bronze("seq") == []
    assert orphans(fleet.lake, "bronze") > 0

    assert await fleet.ingest() == Exit.WELL

    assert fleet.bronze("seq") == [1, 2, 3, 4, 5]


async def vacuumed_and_killed(fleet: Fleet, tmp_path: Path) -> None:
    """Run a driver whose files are deleted before its commit, and which is killed right after it."""
    program = f"""{DRIVER}
from hub_jobs.ingest.run import main
from hub_jobs.tables import commits
attempt = commits.attempt
def attempt_and_die(path, snapshot, change):
    for action in change.actions:
        (path / action.path).unlink()
    attempt(path, snapshot, change)
    os.kill(os.getpid(), signal.SIGKILL)
commits.attempt = attempt_and_die
main({fleet.options!r})
"""
    await asyncio.to_thread(killed, tmp_path / "driver.py", program)


async def test_a_commit_of_files_that_were_gone_is_taken_back_where_its_driver_was_killed_before_it_could(
    fleet: Fleet, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await fleet.ingest() == Exit.WELL
    await fleet.store("edge-2", 3)
    await fleet.at_hub(6)
    await vacuumed_and_killed(fleet, tmp_path)
    ensure_table(fleet.lake, "bronze").rewrite([], [])  # another job goes on meanwhile
    await fleet.store("edge-2", 4)
    await fleet.at_hub(7)

    assert await fleet.ingest() == Exit.WELL

    assert fleet.bronze("seq") == [1, 2, 3, 4, 5, 6, 7]
    said = capfd.readouterr().err
    assert said.count(f"a commit of {AGGREGATE} is taken back and read again: file ") == 1


async def test_a_commit_of_files_that_are_gone_is_named_where_the_stream_has_them_no_more(
    fleet: Fleet, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    await vacuumed_and_killed(fleet, tmp_path)
    await api(fleet.registrar, f"STREAM.PURGE.{AGGREGATE}", {"seq": 3})

    assert await fleet.ingest() == Exit.FAILED

    said = capfd.readouterr().err
    assert f"of version 1 is gone, and stream {AGGREGATE} no longer holds all of its messages" in said


async def test_a_python_worker_killed_while_it_reads_is_replaced_and_the_rows_are_there_once(
    fleet: Fleet,
) -> None:
    wire = LoopbackProxy(fleet.servers.hub.port)
    await wire.start()
    first: Any = run_tasks
    at_work = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stalled(*rest: object) -> object:
        loop.call_soon_threadsafe(wire.stall)
        loop.call_soon_threadsafe(at_work.set)
        return first(*rest)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ingest, "run_tasks", stalled)
            options = ["--server", f"nats://127.0.0.1:{wire.port}", *fleet.options[2:]]
            job = asyncio.create_task(asyncio.to_thread(ingest.main, options))
            await asyncio.wait_for(at_work.wait(), JOB_SECONDS)
            killed_workers: list[psutil.Process] = []

            def reading() -> bool:
                assert not job.done()
                killed_workers[:] = busy_with(wire.port, psutil.Process().children(recursive=True))
                return bool(killed_workers)

            await until(reading, "a worker of Python reads", JOB_SECONDS)
            killed_workers[0].kill()
            wire.restore()
            assert await job == Exit.WELL
    finally:
        await wire.stop()
    assert fleet.bronze("seq") == [1, 2, 3, 4, 5]


async def test_a_job_that_runs_again_and_again_takes_what_comes_and_outlives_the_hub(fleet: Fleet) -> None:
    options = [*fleet.options, "--every", "200ms"]
    program = f"{DRIVER}\nfrom hub_jobs.ingest.run import main\nsys.exit(main({options!r}))"
    root = {**os.environ, "PYTHONPATH": str(Path(ingest.__file__).parents[2])}
    job = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stderr=subprocess.PIPE, env=root
    )
    try:
        await _rows(fleet, 5)
        await fleet.servers.hub.kill()
        await fleet.servers.hub.start()
        for leaf in fleet.servers.leaves.values():
            await ask_again(fleet.registrar, leaf)
        await fleet.store("edge-1", 4)
        await fleet.store("edge-2", 3)
        await _rows(fleet, 7)
        job.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(job.communicate(), JOB_SECONDS)
        assert job.returncode == Exit.WELL, said.decode()
        assert said.decode().rstrip().endswith("ingest: stopped")
    finally:
        if job.returncode is None:
            job.kill()
            await job.wait()
    assert fleet.bronze("domain", "n") == [("edge-1", n) for n in (1, 2, 3, 4)] + [
        ("edge-2", n) for n in (1, 2, 3)
    ]


async def test_ingest_then_refine_is_one_process_with_one_jvm_at_a_time_and_ends_at_a_signal(
    fleet: Fleet,
) -> None:
    options = [*fleet.options, "--every", "200ms", "--then", "refine"]
    job = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hub_jobs.ingest", *options, stderr=subprocess.PIPE
    )
    try:
        await _rows(fleet, 10, "readings")
        await fleet.store("edge-2", 3)
        await _rows(fleet, 12, "readings")
        (java,) = _java_of(job)
        await until(lambda: _forks_workers_by_ours(java), "the jobs' own daemon forks Spark's workers")
        java.kill()
        await fleet.store("edge-2", 4)
        await _rows(fleet, 14, "readings")
        (another,) = _java_of(job)
        job.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(job.communicate(), JOB_SECONDS)
        assert (job.returncode, another == java) == (Exit.WELL, False), said.decode()
        assert said.decode().rstrip().endswith("ingest: stopped")
        assert b"[Stage" not in said, "a pipe is given no progress bar"
    finally:
        if job.returncode is None:
            job.kill()
            await job.wait()
    assert sorted(contents(fleet.lake, "readings", "domain", "n", "metric")) == [
        (domain, n, metric)
        for domain, last in (("edge-1", 3), ("edge-2", 4))
        for n in range(1, last + 1)
        for metric in "ab"
    ]


def _forks_workers_by_ours(java: psutil.Process) -> bool:
    for child in java.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "hub_jobs.spark.worker_daemon" in child.cmdline():
                return True
    return False


def _java_of(job: Process) -> list[psutil.Process]:
    children = psutil.Process(job.pid).children(recursive=True)
    return [child for child in children if child.is_running() and child.name() == "java"]


async def test_what_is_in_bronze_is_refined_though_the_hub_cannot_be_reached(fleet: Fleet) -> None:
    assert await fleet.ingest() == Exit.WELL
    options = [*fleet.options, "--then", "refine"]
    options[1] = "nats://127.0.0.1:1"

    assert await asyncio.to_thread(ingest.main, options) == Exit.UNREACHABLE
    assert len(contents(fleet.lake, "readings", "n")) == 10
    options[5] = str(fleet.lake / "none")
    assert await asyncio.to_thread(ingest.main, options) == Exit.UNREACHABLE


async def _rows(fleet: Fleet, count: int, table: str = "bronze") -> None:
    deadline = asyncio.get_running_loop().time() + JOB_SECONDS
    while len(await asyncio.to_thread(contents, fleet.lake, table, "n")) < count:
        assert asyncio.get_running_loop().time() < deadline, f"no {count} rows in {table}"
        await asyncio.sleep(0.1)
