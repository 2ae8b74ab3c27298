"""What is proposed and said of what a power cut at the hub can take."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.base.wait import loop_time
from agent.contract import Checkpoint, ClassAnswer
from agent.hub.registrar import durability
from agent.hub.registrar.aggregate import Observation
from agent.hub.registrar.durability import Durability, Proposals, bounded
from agent.hub.registrar.records import HubPosition
from agent.jetstream import StreamInfo, UnavailableError

STREAM = "TELEMETRY_0"


def at(leaf_seq: int, hub_seq: int, stream: str = STREAM) -> Checkpoint:
    return Checkpoint(leaf_seq, f"run-{leaf_seq}", stream, hub_seq)


def test_of_what_never_rests_the_answer_before_is_proposed() -> None:
    proposals = Proposals()
    said = [
        proposals.synced("a", "c", "e", at(n, 10 * n), synced) for n, synced in ((1, 5), (2, 15), (3, 25))
    ]
    assert said == [None, at(1, 10), at(2, 20)]


def test_what_is_on_disk_is_proposed_at_once() -> None:
    proposals = Proposals()
    assert proposals.synced("a", "c", "e", at(1, 10), 9) is None
    assert proposals.synced("a", "c", "e", at(2, 20), 20) == at(2, 20)


@pytest.mark.parametrize(
    ("epoch", "newest"), [("other", at(2, 20)), ("e", at(2, 20, "TELEMETRY_1")), ("e", None)]
)
def test_nothing_is_proposed_of_another_epoch_or_stream(epoch: str, newest: Checkpoint | None) -> None:
    proposals = Proposals()
    assert proposals.synced("a", "c", "e", at(1, 10), 0) is None
    assert proposals.synced("a", "c", epoch, newest, 19) is None


@pytest.mark.parametrize(
    ("held", "synced", "whole", "said"),
    [
        (HubPosition(7, "run-7", 20, 25), 20, True, (True, "run-7")),
        (HubPosition(7, "run-7", 20, 25), 19, True, (False, "run-7")),
        (HubPosition(7, "run-7", 20, 25), 19, False, (False, "")),
        (HubPosition(7, "", 0, 25), 24, True, (False, "run-7")),
        (HubPosition(7, "", 0, 25), 25, True, (True, "run-7")),
    ],
)
def test_a_cursor_that_is_not_on_disk_is_said_to_be_so(
    held: HubPosition, synced: int, whole: bool, said: tuple[bool, str]
) -> None:
    answer = bounded(ClassAnswer(STREAM, 7, "run-7", "flowing"), held, None, synced, whole=whole)
    assert (answer.synced, answer.message_id) == said


def info(last: int, created: str = "c") -> StreamInfo:
    return StreamInfo(STREAM, created, 1, last, last, 0, {}, [])


@asynccontextmanager
async def running(store: Path, look: Callable[[], Mapping[str, Observation]]) -> AsyncIterator[Durability]:
    one = Durability(store, 60.0, look)
    task = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        task.cancel()


async def test_a_sync_counts_for_what_was_seen_before_it_and_not_over_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, syncs, begun = {STREAM: Observation(info(5), {}, 0.0)}, threading.Semaphore(0), threading.Event()

    def sync(_: Path) -> None:
        begun.set()
        syncs.acquire(timeout=30)

    monkeypatch.setattr(durability, "sync_file_system", sync)
    async with running(Path("/"), lambda: seen) as one:
        syncing = asyncio.create_task(one.sync())
        await asyncio.to_thread(begun.wait, 30)
        seen[STREAM] = Observation(info(9), {}, 0.0)
        syncs.release()
        await syncing
        assert (one.synced(info(9)), one.synced(info(9, "other"))) == (5, 0)
        begun.clear()
        syncing = asyncio.create_task(one.sync())
        await asyncio.to_thread(begun.wait, 30)
        restarting = asyncio.create_task(one.begin())
        await asyncio.sleep(0)
        seen[STREAM] = Observation(info(3), {}, 0.0)
        syncs.release(2)
        await asyncio.gather(syncing, restarting)
        assert one.synced(info(3)) == 3


async def test_a_sync_goes_on_without_those_who_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = threading.Semaphore(0)
    monkeypatch.setattr(durability, "sync_file_system", lambda _: syncs.acquire(timeout=30))
    async with running(Path("/"), dict) as one:
        asked = loop_time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await one.sync(asked)
        syncs.release()
        await one.sync(asked)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await one.sync()
        syncs.release()


async def test_a_disk_that_refuses_to_sync_confirms_nothing_until_it_does(tmp_path: Path) -> None:
    store, asked = tmp_path / "gone", loop_time()
    async with running(store, lambda: {STREAM: Observation(info(5), {}, 0.0)}) as one:
        for _ in range(2):
            with pytest.raises(UnavailableError, match="cannot be synced"):
                await one.sync(asked)
        await one.begin()
        assert one.synced(info(5)) == 0
        store.mkdir()
        await one.sync(asked)
        assert one.synced(info(5)) == 5


def test_a_server_that_syncs_before_it_acknowledges_has_all_on_disk() -> None:
    one = Durability(Path("/gone"), 0.0, dict)
    assert one.boot == ""
    assert one.synced(info(5)) >= 5
