"""Aggregates on a real server: each acknowledged reading is in one window's part, whatever is killed."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agent.config import Config, Rule, Seconds
from agent.contract import make_request, request_scope
from agent.leaf.intake import Chunk, RefusedError, ResumePoint, UnknownOutcomeError
from agent.leaf.rules.record_log import RecordLog, TakenRecord
from agent.process.reload import Applied, ConfigChange
from tests.harness.agents import agent, leaf_config, probe_stream
from tests.harness.leaf_process import LeafProcess
from tests.harness.servers import ServerPair, open_server_pair
from tests.harness.wait import WAIT_SECONDS, until

WHOLE_DAY = Rule(name="day", metric="m", aggregate=["mean", "count"], window=Seconds(86400.0))
ALL_DROPPED = Rule(drop=True)
STORED = "petiole_stored_readings_total"
BY_CLASS = {"class": "normal"}


@pytest_asyncio.fixture
async def servers(tmp_path: Path) -> AsyncIterator[ServerPair]:
    async with open_server_pair(tmp_path, "edge-1") as one:
        yield one


@pytest.fixture
def config(servers: ServerPair, tmp_path: Path) -> Config:
    """An agent with windows that stay open."""
    config = leaf_config(servers.leaf, tmp_path / "state")
    config.rule = [WHOLE_DAY]
    return config


def chunk(*readings: tuple[str, float], key: str | None = None, position: str | None = None) -> Chunk:
    lines = b"".join(
        json.dumps({"ts": 1, "device": "d", "metric": metric, "value": value}).encode() + b"\n"
        for metric, value in readings
    )
    request = None if key is None else make_request(key, request_scope("http"), lines)
    return Chunk(lines, len(readings), request, position)


async def rows(servers: ServerPair) -> list[dict[str, Any]]:
    return [row for batch in await (await probe_stream(servers.leaf)).rows("normal") for row in batch]


async def values(servers: ServerPair) -> list[tuple[str, Any]]:
    return [(row["metric"], row["value"]) for row in await rows(servers)]


async def closed(servers: ServerPair, config: Config) -> list[tuple[str, Any]]:
    """What is stored once an agent without the rule has closed what was open."""
    config.rule = [ALL_DROPPED]
    async with agent(config) as one:
        await until(lambda: one.value("petiole_open_windows") == 0, "the windows are closed")
        await until(lambda: one.value(STORED, input="rules", **BY_CLASS) > 0, "the aggregates are stored")
        return await values(servers)


def tear(config: Config) -> None:
    """Leave the begin of a record at the end of the log, as a kill may; the next agent writes it anew."""
    with (config.state_dir / "aggregates" / "aggregates.log").open("ab") as log:
        log.write(b"\x40\0\0\0torn")


class Killed:
    """An agent that is killed again and again, and a sender that repeats what was not acknowledged."""

    def __init__(self, config: Config) -> None:
        self.log = config.state_dir / "aggregates" / "aggregates.log"
        self.config = config
        self.waiting: dict[str, list[dict[str, object]]] = {}
        self.sent = 0

    def more(self, requests: int) -> None:
        for _ in range(requests):
            number = self.sent = self.sent + 1
            row = {"ts": number / 4, "device": f"d{number % 2}", "value": number}
            self.waiting[f"k{number}"] = [{**row, "metric": "m"}, {**row, "metric": "as-it-is"}]

    async def run(self, *, until_all_stored: bool, until_written: bool) -> None:
        """Send what waits; kill the agent when the log grows, when all is acknowledged, or when it closes
        windows thereafter."""
        process = await LeafProcess.start(self.config, window=1.0)
        if not until_all_stored:
            killing = asyncio.create_task(asyncio.to_thread(self._kill_when_written, process))
        self._send(process)
        while self.waiting and (said := await process.said()) is not None:
            if said.startswith("stored "):
                del self.waiting[said.split()[1]]
        if until_all_stored and until_written:
            killing = asyncio.create_task(
                asyncio.to_thread(self._kill_when_closed, process, self._last_piece())
            )
            self.more(60)  # fifteen seconds later, which closes whatever is open
            self._send(process)
        if until_written:
            await killing
        await process.kill()

    def _send(self, process: LeafProcess) -> None:
        for key, readings in self.waiting.items():
            process.send(key, readings)

    def _last_piece(self) -> int:
        """The number of the last piece of which the log tells."""
        numbers = [
            record.number for record in RecordLog(self.log).read() if not isinstance(record, TakenRecord)
        ]
        return numbers[-1] if numbers else 0

    def _size(self) -> tuple[int, int]:
        found = self.log.stat() if self.log.exists() else None
        return (0, 0) if found is None else (found.st_ino, found.st_size)

    def _kill_when_written(self, process: LeafProcess) -> None:
        before = self._size()
        self._kill_when(process, lambda: self._size() != before, "nothing was written into the log")

    def _kill_when_closed(self, process: LeafProcess, before: int) -> None:
        self._kill_when(process, lambda: self._last_piece() != before, "no window was closed")

    def _kill_when(self, process: LeafProcess, happened: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not happened():
            assert time.monotonic() < deadline, otherwise
            time.sleep(0.0002)
        process.kill_now()


async def test_each_reading_is_in_one_part_of_its_window_whenever_the_agent_is_killed(
    servers: ServerPair, config: Config
) -> None:
    killed = Killed(config)
    for _ in range(2):
        killed.more(9)
        await killed.run(until_all_stored=False, until_written=True)  # written, and not answered
        tear(config)
        await killed.run(until_all_stored=True, until_written=True)  # a piece is written, and not stored
    killed.more(3)
    await killed.run(until_all_stored=True, until_written=False)
    config.rule = []
    async with agent(config) as one:
        await until(lambda: one.value("petiole_open_windows") == 0, "the windows are closed")

        async def all_there() -> bool:
            found = [row for row in await rows(servers) if row["metric"] == "m_count"]
            return int(sum(row["value"] for row in found)) >= killed.sent

        await until(all_there, "all readings are in windows")
        found = await rows(servers)
    parts = Counter(
        (row["metric"], row["device"], row["ts"], row.get("tags", {}).get("window_part")) for row in found
    )
    aggregates = {part: count for part, count in parts.items() if part[0] != "as-it-is"}
    assert set(aggregates.values()) == {1}, "no part of a window is stored twice"
    counts: Counter[tuple[str, str]] = Counter()
    for row in found:
        if row["metric"] == "m_count":
            counts[row["device"], row["ts"]] += row["value"]
    numbers = range(1, killed.sent + 1)
    assert counts == Counter((f"d{n % 2}", f"1970-01-01T00:{n // 240:02}:{n // 4 % 60:02}Z") for n in numbers)
    assert sorted(row["value"] for row in found if row["metric"] == "as-it-is") == list(numbers)


async def test_a_piece_of_a_file_of_which_all_is_aggregated_is_counted_once(
    servers: ServerPair, config: Config
) -> None:
    pieces = [chunk(("m", 1.0), ("m", 2.0), position=f"p{number}") for number in (1, 2, 3)]
    async with agent(config) as one:
        assert await one.leaf.intake.position("tail") == ResumePoint()
        for piece in pieces:
            await one.leaf.intake.submit("tail", "normal", piece)
        await one.crash()
    tear(config)
    async with agent(config) as one:
        await one.submit(chunk(("m", 1.0), key="k"))
        await one.crash()
    async with agent(config) as one:
        assert one.value("petiole_open_windows") == 1
        place = await one.leaf.intake.position("tail")
        assert place in (ResumePoint("p2", "p3"), ResumePoint("p3"))
        for piece in (pieces[2], chunk(("m", 6.0), position="p4")):
            await one.leaf.intake.submit("tail", "normal", piece)
        assert await one.leaf.intake.position("tail") == ResumePoint("p4")
        await one.stop()
    assert await closed(servers, config) == [("m_mean", 2.0), ("m_count", 8)]


async def test_what_a_piece_has_in_windows_stays_there_whatever_the_rules_say_by_then(
    servers: ServerPair, config: Config
) -> None:
    piece = chunk(("m", 1.0), ("x", 2.0), position="p1")
    async with agent(config) as one:
        one.leaf._publisher.admission.refusal = lambda cls: "the disk is full"
        with pytest.raises(RefusedError):
            await one.leaf.intake.submit("tail", "normal", piece)
        await one.crash()
    config.rule = []
    async with agent(config) as one:
        assert await one.leaf.intake.position("tail") == ResumePoint(None, "p1")
        await one.leaf.intake.submit("tail", "normal", piece)
        await until(lambda: one.value("petiole_open_windows") == 0, "the window is closed")
        await until(lambda: one.value(STORED, input="rules", **BY_CLASS) > 0, "the aggregates are stored")
        assert sorted(await values(servers)) == [("m_count", 1), ("m_mean", 1.0), ("x", 2.0)]


async def test_a_request_is_counted_once_though_a_part_of_it_was_refused(
    servers: ServerPair, config: Config
) -> None:
    what = chunk(("m", 1.0), ("x", 2.0), key="k")
    async with agent(config) as one:
        one.leaf._publisher.admission.refusal = lambda cls: "the disk is full"
        with pytest.raises(UnknownOutcomeError):
            await one.submit(what)
        with pytest.raises(RefusedError):
            await one.submit(chunk(("m", 1.0), ("x", 2.0)))
        await one.crash()
    tear(config)
    async with agent(config) as one:
        await one.submit(chunk(("m", 5.0), key="other"))
        await one.crash()
    async with agent(config) as one:
        for _ in range(2):
            await one.submit(what)
        with pytest.raises(RefusedError, match="use a new key"):
            await one.submit(chunk(("m", 3.0), key="k"))
        await one.crash()
    assert sorted(await closed(servers, config)) == [("m_count", 2), ("m_mean", 3.0), ("x", 2.0)]


async def test_where_the_log_cannot_be_written_nothing_is_acknowledged_or_it_is_sent_as_it_is(
    servers: ServerPair, config: Config
) -> None:
    directory = config.state_dir / "aggregates"
    async with agent(config) as one:
        directory.write_text("in the way")
        with pytest.raises(RefusedError, match="log of aggregates"):
            await one.submit(chunk(("m", 1.0), key="k"))
        await one.submit(chunk(("m", 2.0), ("x", 3.0)))
        assert await values(servers) == [("x", 3.0), ("m", 2.0)]
        directory.unlink()
        await one.submit(chunk(("m", 1.0), key="k"))
        assert one.value("petiole_dropped_readings_total", input="http", rule="day", reason="aggregate") == 1
        assert one.value("petiole_open_windows") == 1


async def test_what_comes_for_a_closed_window_is_a_further_part_of_it(
    servers: ServerPair, config: Config
) -> None:
    config.rule = [Rule(name="r", metric="m", aggregate=["count"], window=Seconds(1.0), late=Seconds(0.1))]
    async with agent(config) as one:
        for part in (1, 2):
            await one.submit(chunk(*[("m", 1.0)] * part))

            async def stored(part: int = part) -> bool:
                return len(await rows(servers)) == part

            await until(stored, "the window is closed")
        assert one.value("petiole_late_readings_total", rule="r") == 2
    assert [(row["value"], row.get("tags")) for row in await rows(servers)] == [
        (1, None),
        (2, {"window_part": "2"}),
    ]


async def test_rules_that_are_taken_in_while_the_agent_runs_begin_windows_and_end_them(
    servers: ServerPair, config: Config
) -> None:
    with_rule, without = config, leaf_config(servers.leaf, config.state_dir)
    async with agent(without) as one:
        await one.leaf.apply(Applied(with_rule, ConfigChange(live=frozenset({"rule"})), [], {}, {}))
        await one.submit(chunk(("m", 1.0)))
        assert one.value("petiole_open_windows") == 1
        await one.leaf.apply(Applied(without, ConfigChange(live=frozenset({"rule"})), [], {}, {}))

        async def stored() -> bool:
            return await values(servers) == [("m_mean", 1.0), ("m_count", 1)]

        await until(stored, "the window of the rule that is gone is closed")


async def test_a_piece_that_could_not_be_stored_is_stored_by_the_next_agent(
    servers: ServerPair, config: Config
) -> None:
    config.rule = [Rule(metric="m", aggregate=["count"], window=Seconds(1.0), late=Seconds(0.1))]
    async with agent(config) as one:
        one.leaf._publisher.admission.refusal = lambda cls: "the disk is full"
        await one.submit(chunk(("m", 1.0)))
        await until(lambda: one.value("petiole_open_windows") == 0, "the window is closed")
        (config.state_dir / "aggregates" / "aggregates.log").unlink()
        with pytest.raises(RefusedError):
            await one.submit(chunk(("m", 2.0), key="k"))
        await one.submit(chunk(("m", 2.0), ("m", 3.0), key="k"))
        assert await rows(servers) == []
        await one.crash()
    async with agent(config) as one:

        async def stored() -> bool:
            return await values(servers) == [("m_count", 1), ("m_count", 2)]

        await until(stored, "both parts of the window are stored")


async def test_a_request_in_windows_is_not_stored_again_as_it_came_whatever_the_rules_say_by_then(
    servers: ServerPair, config: Config
) -> None:
    what = chunk(("m", 1.0), key="k")
    async with agent(config) as one:
        await one.submit(what)
        without = leaf_config(servers.leaf, config.state_dir)
        await one.leaf.apply(Applied(without, ConfigChange(live=frozenset({"rule"})), [], {}, {}))
        await one.submit(what)
        await one.crash()
    config.rule = []
    async with agent(config) as one:
        await one.submit(what)
        await until(lambda: one.value("petiole_open_windows") == 0, "the window is closed")

        async def stored() -> bool:
            return len(await values(servers)) >= 2

        await until(stored, "the aggregates are stored")
        assert await values(servers) == [("m_mean", 1.0), ("m_count", 1)]


async def test_a_request_stored_before_there_was_a_rule_to_aggregate_it_adds_nothing_to_windows(
    servers: ServerPair, config: Config
) -> None:
    what = chunk(("m", 1.0), key="k")
    without = leaf_config(servers.leaf, config.state_dir)
    async with agent(without) as one:
        await one.submit(what)
        await one.leaf.apply(Applied(config, ConfigChange(live=frozenset({"rule"})), [], {}, {}))
        await one.submit(what)
        await one.crash()
    async with agent(config) as one:
        await one.submit(what)
        assert one.value("petiole_open_windows") == 0
        await one.submit(chunk(("m", 2.0), key="new"))
        assert one.value("petiole_open_windows") == 1
        assert await values(servers) == [("m", 1.0)]


async def test_windows_closed_after_the_log_was_lost_are_not_taken_for_those_closed_before(
    servers: ServerPair, config: Config
) -> None:
    for value in (1.0, 2.0):
        config.rule = [WHOLE_DAY]
        async with agent(config) as one:
            await one.submit(chunk(("m", value)))
            await one.stop()
        stored = await closed(servers, config)
        (config.state_dir / "aggregates" / "aggregates.log").unlink()
    assert stored == [("m_mean", 1.0), ("m_count", 1), ("m_mean", 2.0), ("m_count", 1)]
