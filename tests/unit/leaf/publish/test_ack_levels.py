"""What is said of the level of each input."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from agent.base.metrics import Metrics
from agent.leaf.intake import Level
from agent.leaf.publish import ack_levels
from agent.leaf.publish.ack_levels import AckLevels, meaning
from agent.server.health import ServerHealth


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
    monkeypatch.setattr(ack_levels, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(ack_levels, "_FIRST_LOOKS", 10**9)
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
