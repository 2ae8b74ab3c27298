"""What is said of the level of each input; waiting for the hub: who is let go when, and that nothing is kept
of a wait that ended."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from agent.base.metrics import Metrics
from agent.leaf import acks
from agent.leaf.acks import AckLevels, HubAckWaiters, meaning
from agent.leaf.intake import Level, NotAtHubError
from agent.server.health import ServerHealth


def waits() -> HubAckWaiters:
    """Waits of a class whose stream holds nothing."""
    one = HubAckWaiters(lambda cls: f"the link of {cls} is down")
    one.began("c", 0)
    return one


def begin(one: HubAckWaiters, seconds: float = 5.0) -> asyncio.Task[None]:
    loop = asyncio.get_running_loop()
    return loop.create_task(one.wait("c", loop.time() + seconds))


async def waiting(one: HubAckWaiters, count: int) -> None:
    async with asyncio.timeout(30):
        while sum(one._waiting.values()) != count:  # noqa: ASYNC110 - it is another task that begins
            await asyncio.sleep(0)


async def test_a_wait_ends_when_the_hub_has_reached_what_was_stored_when_it_began() -> None:
    one = waits()
    await one.wait("c", 0.0)
    one.stored("c", 3, "a")
    first = [begin(one), begin(one)]
    await waiting(one, 2)
    one.stored("c", 5, "b")
    second = begin(one)
    await waiting(one, 3)
    assert not one.reached("c", 2)
    assert one.reached("c", 4)
    await asyncio.gather(*first)
    assert not second.done()
    assert one.wanted.is_set()
    assert one.reached("c", 5)
    await second
    assert not one.wanted.is_set()
    assert not one._waiting


async def test_a_wait_that_is_given_up_or_cancelled_leaves_nothing_behind() -> None:
    one = waits()
    one.stored("c", 3, "a")
    with pytest.raises(NotAtHubError, match="the link of c is down"):
        await one.wait("c", 0.0)
    cancelled = begin(one)
    await waiting(one, 1)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert (one.classes(), one._waiting, one.wanted.is_set()) == ([], {}, False)


async def test_a_lost_store_and_a_stop_end_all_waits() -> None:
    one = waits()
    one.stored("c", 3, "a")
    lost = begin(one)
    await waiting(one, 1)
    one.lost("c")
    with pytest.raises(NotAtHubError) as caught:
        await lost
    assert caught.value.lost
    assert one.id_at("c", 3) is None
    stopped = begin(one)
    await waiting(one, 1)
    one.stop()
    for ended in (stopped, begin(one)):
        with pytest.raises(NotAtHubError, match="the agent is stopping"):
            await ended
    assert not one._waiting


async def test_a_shorter_stream_is_waited_for_as_far_as_it_goes() -> None:
    one = waits()
    one.began("c", 0)
    one.stored("c", 9, "a")
    one.began("c", 4)
    one.reached("c", 4)
    await one.wait("c", 0.0)


@pytest.mark.parametrize(
    ("level", "synced", "words"),
    [
        ("accepted", True, "in this agent's memory"),
        ("accepted", None, "in this agent's memory"),
        ("stored", True, "survives a power cut"),
        ("stored", False, "a power cut may lose it"),
        ("stored", None, "is not known"),
        ("hub", True, "held by the hub, and in the local stream, synced"),
        ("hub", False, "held by the hub, and in the local stream, not synced"),
    ],
)
def test_the_sentence_says_what_the_server_does(level: Level, synced: bool | None, words: str) -> None:
    assert words in meaning(level, synced)


def test_level_hub_says_which_disk_has_the_reading() -> None:
    words = meaning("hub", True, 1.0)
    assert "syncs its disk each 1 s" in words
    assert "until that disk has it in the local stream, synced" in words


async def test_each_input_is_told_once_and_again_when_the_server_does_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acks, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(acks, "_FIRST_LOOKS", 10**9)
    health = ServerHealth(Metrics())

    async def more_than(count: int) -> None:
        async with asyncio.timeout(30):
            while len(told) <= count:  # noqa: ASYNC110 - the log wakes nobody
                await asyncio.sleep(0.001)

    with capture_logs() as told:
        running = asyncio.create_task(AckLevels({"a": "stored", "b": "accepted"}, health, lambda: 0.0).run())
        await asyncio.sleep(0.02)
        assert told == [], "nobody knows yet"
        health.synced(None)
        await more_than(1)
        assert [(one["input"], one["ack"], one["log_level"]) for one in told] == [
            ("a", "stored", "info"),
            ("b", "accepted", "info"),
        ]
        health.synced("it does not sync")
        await more_than(3)
        running.cancel()
    assert [one["input"] for one in told if "means" in one] == ["a", "b", "a"], "that of b is as it was"
    assert told[-1]["log_level"] == "warning"
