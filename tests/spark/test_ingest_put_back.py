"""`ingest` and a hub that is put back to an earlier state: no message of either history is left out."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from agent.contract import Exit
from hub_jobs.ingest import run as ingest
from hub_jobs.spark.session import run_tasks
from tests.harness.streams import ask_again
from tests.spark.fleet import Fleet, fleet

__all__ = ["fleet"]
pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

_PUT_BACK_SECONDS = 150.0


async def back_up(fleet: Fleet, copy: Path) -> None:
    """Copy the hub's store. `edge-1` is at the hub again when this returns."""
    await fleet.servers.hub.back_up(copy)
    await ask_again(fleet.registrar, fleet.servers.leaves["edge-1"])


async def put_back(fleet: Fleet, copy: Path, *numbers: int, held: int = 5) -> None:
    """Put the hub back to a copy with so many messages; from then on it gets these batches of `edge-2`."""
    store = fleet.servers.hub.config.store_dir
    await fleet.servers.hub.stop()
    # Whether its last batch comes again depends on whether the hub had told it that it was there.
    await fleet.servers.leaves["edge-1"].stop()
    shutil.rmtree(store)
    shutil.copytree(copy, store)
    await fleet.servers.hub.start()
    await ask_again(fleet.registrar, fleet.servers.leaves["edge-2"])
    await fleet.store("edge-2", *numbers)
    await fleet.at_hub(held + len(numbers))


async def test_a_stream_that_was_put_back_is_read_again_under_another_name(fleet: Fleet) -> None:
    copy = fleet.lake.with_name("copy")
    await back_up(fleet, copy)
    await fleet.store("edge-1", 4)
    await fleet.at_hub(6)
    assert await fleet.ingest() == Exit.WELL
    await put_back(fleet, copy, 3)

    assert await fleet.ingest() == Exit.WELL
    assert await fleet.ingest() == Exit.WELL

    assert fleet.bronze("seq") == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert len(set(fleet.bronze("created"))) == 2
    assert {("edge-1", 4), ("edge-2", 3)} <= set(fleet.bronze("domain", "n"))


async def test_a_stream_that_is_put_back_after_a_run_has_planned_is_read_under_its_new_name(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    copy, loop = fleet.lake.with_name("copy"), asyncio.get_running_loop()
    await back_up(fleet, copy)
    await fleet.store("edge-1", 4)
    await fleet.at_hub(6)
    assert await fleet.ingest() == Exit.WELL
    await fleet.store("edge-1", 5, 6)
    await fleet.at_hub(8)
    first: Any = run_tasks

    def overtaken(*given: object) -> object:
        monkeypatch.setattr(ingest, "run_tasks", first)
        asyncio.run_coroutine_threadsafe(put_back(fleet, copy, 3, 4, 5), loop).result(_PUT_BACK_SECONDS)
        return first(*given)

    monkeypatch.setattr(ingest, "run_tasks", overtaken)

    assert await fleet.ingest() == Exit.WELL

    assert {("edge-2", n) for n in (3, 4, 5)} <= set(fleet.bronze("domain", "n"))
    assert fleet.bronze("seq") == sorted([*range(1, 7), *range(1, 9)])
    assert "was put back" in capfd.readouterr().err


async def test_a_stream_that_is_put_back_between_two_parts_of_a_commit_is_read_once_more(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is newer than bronze, so that the message where bronze ends is in both histories."""
    copy, loop = fleet.lake.with_name("copy"), asyncio.get_running_loop()
    await fleet.store("edge-1", 4)
    await fleet.at_hub(6)
    assert await fleet.ingest() == Exit.WELL
    await back_up(fleet, copy)
    await fleet.store("edge-1", 5, 6, 7)
    await fleet.at_hub(9)
    monkeypatch.setattr(ingest, "_MIN_RECORDS", 1)
    first: Any = run_tasks

    def overtaken(spark: object, task: object, work: list[object]) -> object:
        monkeypatch.setattr(ingest, "run_tasks", first)
        done = first(spark, task, work[:1])
        asyncio.run_coroutine_threadsafe(put_back(fleet, copy, 3, 4, 5, held=6), loop).result(
            _PUT_BACK_SECONDS
        )
        return done + first(spark, task, work[1:])

    monkeypatch.setattr(ingest, "run_tasks", overtaken)

    assert await fleet.ingest() == Exit.WELL

    assert {("edge-2", n) for n in (3, 4, 5)} <= set(fleet.bronze("domain", "n"))
    assert fleet.bronze("seq") == list(range(1, 10))
