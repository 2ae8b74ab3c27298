"""Rules on a real server: where readings go, what is dropped, and what a request to several classes is
promised."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec import structs

from agent.config import Config, Publish, Rule, Seconds, Size, StreamClass
from agent.contract import Letter, leaf_stream, make_request, parse_letter, request_scope
from agent.leaf.intake import Chunk, RefusedError, ResumePoint, UnknownOutcomeError
from agent.process.reload import Applied, ConfigChange
from tests.harness.agents import Agent, StreamProbe, agent, leaf_config
from tests.harness.servers import ServerPair, open_server_pair
from tests.harness.wait import until

CLASSES = ("critical", "normal")
RULES = [
    Rule(metric="alarm*", class_="critical"),
    Rule(name="debug", metric="debug*", drop=True),
    Rule(device="pump-*", tags={"site": "north"}),
    Rule(metric="temperature", deadband=0.5),
    Rule(metric="level", sample=Seconds(60.0)),
]


@pytest_asyncio.fixture
async def servers(tmp_path: Path) -> AsyncIterator[ServerPair]:
    """A leaf with two classes."""
    async with open_server_pair(tmp_path, "edge-1", classes=CLASSES) as one:
        yield one


@pytest.fixture
def config(servers: ServerPair, tmp_path: Path) -> Config:
    """An agent with rules; the class for alarms is small."""
    config = leaf_config(servers.leaf, tmp_path / "state", Publish())
    config.class_ = [StreamClass("normal"), StreamClass("critical", max_bytes=Size(64 * 1024))]
    config.rule = RULES
    return config


def chunk(*readings: tuple[str, str, object], key: str | None = None, position: str | None = None) -> Chunk:
    """A chunk of readings, each device, metric and value."""
    lines = b"".join(
        json.dumps({"ts": 1, "device": device, "metric": metric, "value": value}).encode() + b"\n"
        for device, metric, value in readings
    )
    request = None if key is None else make_request(key, request_scope("http"), lines)
    return Chunk(lines, len(readings), request, position)


async def rows(servers: ServerPair, cls: str) -> list[dict[str, Any]]:
    """The readings in the stream of a class, in order."""
    probe = StreamProbe(servers.leaf.domain, await servers.leaf.connect("agent"))
    probe.stream = leaf_stream(servers.leaf.domain, cls)
    return [row for batch in await probe.rows(cls) for row in batch]


async def values(servers: ServerPair, cls: str) -> list[Any]:
    return [row["value"] for row in await rows(servers, cls)]


async def letters(servers: ServerPair) -> list[str]:
    """What the dead letters of the input `tail` hold, in order."""
    probe = StreamProbe(servers.leaf.domain, await servers.leaf.connect("agent"))
    probe.stream = leaf_stream(servers.leaf.domain, "normal")
    found = [message for message in await probe.messages() if message.subject.endswith("_dead.tail")]
    return [parse_letter(line).received.decode() for message in found for line in message.data.splitlines()]


def dropped(one: Agent, rule: str, reason: str) -> float:
    return one.value("petiole_dropped_readings_total", input="http", rule=rule, reason=reason)


async def fill(one: Agent) -> None:
    """Fill the class of alarms."""
    with suppress(RefusedError):
        while True:
            await one.leaf.intake.submit("http", "normal", chunk(("d", "alarm", os.urandom(4000).hex())))


async def make_room(one: Agent, servers: ServerPair) -> None:
    probe = StreamProbe(servers.leaf.domain, await servers.leaf.connect("agent"))
    stream = leaf_stream(servers.leaf.domain, "critical")
    await probe.js.purge(stream, (await probe.js.stream_info(stream)).last + 1)
    one.leaf._sender.has_room("critical")


async def test_readings_go_where_the_rules_say_and_what_is_dropped_is_counted(
    servers: ServerPair, config: Config
) -> None:
    async with agent(config) as one:
        submit = one.leaf.intake.submit
        await submit(
            "http", "normal", chunk(("pump-1", "alarm", 1), ("x", "debug", 2), ("pump-2", "flow", 3))
        )
        await submit("http", "normal", chunk(("x", "temperature", 20.0), ("x", "temperature", 20.4)))
        await submit("http", "normal", chunk(("x", "temperature", 20.5), ("x", "temperature", 20.6)))
        await submit("http", "normal", chunk(("x", "debug", 4)))
        assert await rows(servers, "critical") == [
            {"ts": 1, "device": "pump-1", "metric": "alarm", "value": 1, "tags": {"site": "north"}}
        ]
        assert [(row["value"], row.get("tags")) for row in await rows(servers, "normal")] == [
            (3, {"site": "north"}),
            (20.0, None),
            (20.6, None),
        ]
        assert (dropped(one, "debug", "drop"), dropped(one, "rule-4", "deadband")) == (2, 2)
        assert one.value("petiole_accepted_readings_total", input="http", **{"class": "normal"}) == 3


async def test_one_reading_of_a_span_is_stored_also_by_an_agent_that_does_not_know_of_it(
    servers: ServerPair, config: Config
) -> None:
    for _ in range(2):
        async with agent(config) as one:
            for pair in ((1, 2), (3, 4)):
                await one.leaf.intake.submit(
                    "http", "normal", chunk(*(("x", "level", value) for value in pair))
                )
            assert dropped(one, "rule-5", "sample") == 3
    assert await values(servers, "normal") == [1, 1]


async def test_a_request_to_several_classes_is_stored_once_though_one_of_them_refused_at_first(
    servers: ServerPair, config: Config
) -> None:
    what = chunk(("x", "flow", "f"), ("x", "alarm", "a"), ("x", "temperature", 7.0), key="k")
    async with agent(config) as one:
        submit = one.leaf.intake.submit
        await fill(one)
        for _ in range(2):
            with pytest.raises(UnknownOutcomeError, match=r"some are stored, others were refused .*full"):
                await submit("http", "normal", what)
        await make_room(one, servers)
        await submit("http", "normal", what)
        await submit("http", "normal", what)
        assert await values(servers, "normal") == ["f", 7.0]
        assert await values(servers, "critical") == ["a"]
        await one.crash()
    async with agent(config) as one:
        await one.leaf.intake.submit("http", "normal", what)
        assert await values(servers, "normal") == ["f", 7.0]
        assert await values(servers, "critical") == ["a"]


async def test_a_request_repeated_after_its_classes_changed_is_stored_once_or_refused_in_words(
    servers: ServerPair, config: Config
) -> None:
    one_class = chunk(("x", "flow", "f"), ("x", "flow", "g"), key="whole")
    split = chunk(("x", "flow", "h"), ("x", "alarm", "a"), key="split")
    some = chunk(("x", "flow", "i"), ("x", "alarm", "b"), key="some")
    other = structs.replace(config, rule=[Rule(metric="flow", class_="critical")])
    async with agent(config) as one:
        submit = one.leaf.intake.submit
        await submit("http", "normal", one_class)
        await submit("http", "critical", one_class)
        await fill(one)
        with pytest.raises(UnknownOutcomeError):
            await submit("http", "normal", some)
        await make_room(one, servers)
        await submit("http", "normal", split)
        await one.leaf.apply(Applied(other, ConfigChange(live=frozenset({"rule"})), [], {}, {}))
        for what in (one_class, split):
            await submit("http", "normal", what)
        with pytest.raises(RefusedError, match="stored in part: class normal has"):
            await submit("http", "normal", some)
        await one.crash()
    async with agent(other) as one:
        for what in (one_class, split):
            await one.leaf.intake.submit("http", "normal", what)
        with pytest.raises(RefusedError, match="stored in part: class normal has"):
            await one.leaf.intake.submit("http", "normal", some)
        await one.crash()
    async with agent(config) as one:
        await one.leaf.intake.submit("http", "normal", some)
    assert await values(servers, "normal") == ["f", "g", "i", "h"]
    assert await values(servers, "critical") == ["a", "b"]


async def test_what_is_refused_by_all_classes_is_refused(servers: ServerPair, config: Config) -> None:
    async with agent(config) as one:
        await fill(one)
        with pytest.raises(RefusedError):
            await one.leaf.intake.submit("http", "normal", chunk(("x", "alarm", "a"), ("x", "debug", 1)))
        assert dropped(one, "debug", "drop") == 0, "it is counted when the rest is stored"


async def test_a_piece_of_a_file_goes_on_where_one_of_its_classes_refused(
    servers: ServerPair, config: Config
) -> None:
    piece = chunk(("x", "flow", 1), ("x", "alarm", 2), ("x", "debug", 3), ("x", "flow", 4), position="p1")
    async with agent(config) as one:
        await fill(one)
        with pytest.raises(RefusedError):
            await one.leaf.intake.submit("tail", "normal", piece)
        await one.crash()
    config.rule = [Rule(metric="flow", class_="critical")]
    async with agent(config) as one:
        assert await one.leaf.intake.position("tail") == ResumePoint(None, "p1")
        await make_room(one, servers)
        await one.leaf.intake.submit("tail", "normal", piece)
        assert await one.leaf.intake.position("tail") == ResumePoint("p1")
        assert await values(servers, "normal") == [1, 4, 2, 3], "what was stored stays where it is"
        assert await values(servers, "critical") == []
        await one.leaf.intake.submit("tail", "normal", chunk(("x", "flow", 5), position="p2"))
        assert await values(servers, "critical") == [5]


async def test_no_reading_is_lost_of_a_piece_that_another_parser_numbers_otherwise(
    servers: ServerPair, config: Config
) -> None:
    letter = Letter(b"x flow 0", "line 1", "its time is none")
    piece = structs.replace(chunk(("x", "flow", 1), ("x", "alarm", 2), position="p1"), letters=(letter,))
    async with agent(config) as one:
        await fill(one)
        with pytest.raises(RefusedError):
            await one.leaf.intake.submit("tail", "normal", piece)
        await one.crash()
    piece = chunk(("x", "flow", 0), ("x", "flow", 1), ("x", "alarm", 2), position="p1")
    async with agent(config) as one:
        await fill(one)
        with pytest.raises(RefusedError):
            await one.leaf.intake.submit("tail", "normal", piece)
        assert await one.leaf.intake.position("tail") == ResumePoint(None, "p1")
        await one.crash()
    async with agent(config) as one:
        await make_room(one, servers)
        await one.leaf.intake.submit("tail", "normal", piece)
        assert await one.leaf.intake.position("tail") == ResumePoint("p1")
        assert await values(servers, "normal") == [1, 0, 1], "what was stored of the other is logged"
        assert await values(servers, "critical") == [2]


async def test_no_line_is_lost_of_a_piece_of_which_another_parser_takes_as_many_but_other_lines(
    servers: ServerPair, config: Config
) -> None:
    def piece(good: int, bad: int) -> Chunk:
        letter = Letter(b"x alarm %d" % bad, f"line {bad}", "of another format")
        return structs.replace(chunk(("x", "alarm", good), position="p1"), letters=(letter,))

    async with agent(config) as one:
        await fill(one)
        with pytest.raises(RefusedError):
            await one.leaf.intake.submit("tail", "normal", piece(2, 1))
        await one.crash()
    async with agent(config) as one:
        await make_room(one, servers)
        await one.leaf.intake.submit("tail", "normal", piece(1, 2))
        assert await one.leaf.intake.position("tail") == ResumePoint("p1")
        assert await values(servers, "critical") == [1]
        assert await letters(servers) == ["x alarm 1", "x alarm 2"]


async def test_a_piece_of_which_all_is_dropped_moves_the_position(
    servers: ServerPair, config: Config
) -> None:
    async with agent(config) as one:
        await one.leaf.intake.submit("tail", "normal", chunk(("x", "flow", 1), position="p1"))
        await one.leaf.intake.submit("tail", "normal", chunk(("x", "debug", 1), position="p2"))
        await one.stop()
    async with agent(config) as one:
        assert await one.leaf.intake.position("tail") == ResumePoint("p2")
        assert await values(servers, "normal") == [1]


async def test_at_level_accepted_a_deadband_moves_with_what_is_stored(
    servers: ServerPair, config: Config
) -> None:
    config.rule = [Rule(deadband=1.0)]
    async with agent(config) as one:
        one.leaf._publisher._levels = {"http": "accepted"}
        await one.leaf.intake.submit("http", "normal", chunk(("x", "t", 20.0)))

        def stored() -> bool:
            return one.value("petiole_stored_readings_total", input="http", **{"class": "normal"}) == 1

        await until(stored, "the reading is acknowledged by the stream")
        await one.leaf.intake.submit("http", "normal", chunk(("x", "t", 20.5)))
        assert dropped(one, "rule-1", "deadband") == 1
