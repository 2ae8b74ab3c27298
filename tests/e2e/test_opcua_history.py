"""The input `opcua` and the history of servers: of node-opcua, which is killed, and of asyncua."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from asyncua import ua
from asyncua.common.node import Node
from asyncua.server.history_sql import HistorySQLite
from asyncua.server.server import Server

from agent.base.metrics import Metrics
from agent.config import Seconds
from agent.demo.loopback import free_port
from agent.leaf.inputs.opcua import NodeSelection, OpcuaOptions, history
from agent.leaf.inputs.opcua.input import OpcuaInput
from agent.leaf.inputs.shared import LocalServer
from agent.testing.contract import leaf_of
from agent.testing.input_case import InputCase
from agent.testing.stored_stream import numbers_in
from tests.harness.intakes import Burying
from tests.harness.plant_servers import OpcuaServer
from tests.harness.wait import until, wait_for

N, M = "Line1/n", "Line1/m"
_FAST = 'nodes = [{ path = "Line1/n", metric = "{2}" }]\npublish = "100ms"\n'
Recorded = tuple[float, float] | tuple[float, float, str]


class Follower:
    """An agent's input, which may be killed and started again, before a core that outlives it."""

    def __init__(self, url: str, state: Path, **options: Any) -> None:
        self._url, self._state, self._options = url, state, options
        self.core = Burying("opcua")
        self.metrics = Metrics()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        nodes = [NodeSelection(path="Line1/*", metric="{2}")]
        options = OpcuaOptions(url=self._url, nodes=nodes, publish=Seconds(0.1), **self._options)
        self._stopping = asyncio.Event()
        made = OpcuaInput(options, self.metrics, LocalServer("", Path(), self._state))
        self._running = asyncio.create_task(made.run(self.core, self._stopping))

    async def kill(self) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.wait([self._running])

    async def stop(self) -> None:
        self._stopping.set()
        assert self._running is not None
        await self._running

    @property
    def gaps(self) -> float:
        return self.metrics.registry.get_sample_value("petiole_source_gaps_total", {"input": "opcua"}) or 0.0

    async def has(self, value: object) -> None:
        await until(lambda: value in self.core.values(), f"{value} is stored")

    def stored(self, metric: str = "n") -> Counter[tuple[float, Any]]:
        """Times and values of a metric, and how often each is stored."""
        return Counter((row["ts"], row["value"]) for row in self.core.rows() if row["metric"] == metric)


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OpcuaServer]:
    """A server with a history of `n` and none of `m`."""
    given = {"history": True, **getattr(request, "param", {})}
    one = OpcuaServer(tmp_path / "server", json.dumps(given))
    one.start()
    one.declare(N)
    one.keep_history(N)
    yield one
    one.kill()


@contextlib.asynccontextmanager
async def following(server: OpcuaServer, tmp_path: Path, **options: Any) -> AsyncIterator[Follower]:
    """A follower that has stored the value 1 of `n`."""
    one = Follower(server.url, tmp_path / "state", **options)
    one.start()
    try:
        server.write(N, 1.0)
        await one.has(1.0)
        yield one
    finally:
        one.core.open.set()
        await one.stop()


def missed(count: int, since: float) -> list[tuple[float, float]]:
    """Values of whole milliseconds since a time."""
    begin = int(since * 1000) + 1
    return [((begin + number) / 1000, 100.0 + number) for number in range(count)]


async def come_back(server: OpcuaServer, values: Sequence[Recorded]) -> None:
    """Kill the server, and start it with more history and the present value 2."""
    await restart(server, values)
    server.write(N, 2.0)


async def restart(server: OpcuaServer, values: Sequence[Recorded]) -> None:
    """Kill the server, and start it with more history, after the time of that."""
    server.kill()
    await asyncio.to_thread(server.start)
    server.record(N, *values)
    await until(lambda: not values or time.time() > values[-1][0] + 0.002)


def once(values: list[tuple[float, float]]) -> Counter[tuple[float, float]]:
    return Counter(dict.fromkeys(values, 1))


SMALL = {"limits": {"maxNodesPerHistoryReadData": 1, "maxNodesPerRead": 1}}


@pytest.mark.parametrize("server", [{}, SMALL], indirect=True, ids=["large", "small"])
async def test_what_a_killed_server_has_in_its_history_is_stored_once(
    server: OpcuaServer, tmp_path: Path
) -> None:
    async with following(server, tmp_path) as one:
        values = missed(1_700, time.time())
        await come_back(server, values)
        await until(lambda: len(one.stored()) == len(values) + 2, "all is stored")
        assert {at: count for at, count in one.stored().items() if at[1] >= 100} == once(values)
        assert max(one.stored().values()) == 1
        assert one.gaps == 0


async def test_a_variable_without_history_has_its_gap_named(server: OpcuaServer, tmp_path: Path) -> None:
    server.declare(M)
    server.write(M, 1.5)
    async with following(server, tmp_path) as one:
        await one.has(1.5)
        await come_back(server, [])
        server.write(M, 2.5)
        await one.has(2.5)
        assert one.gaps == 1


@pytest.mark.parametrize("status", ["BadHistoryOperationUnsupported", "BadUserAccessDenied"])
async def test_a_history_that_is_refused_has_its_gap_named(
    server: OpcuaServer, tmp_path: Path, status: str
) -> None:
    async with following(server, tmp_path) as one:
        await restart(server, [])
        server.fail_reads(status)
        server.write(N, 2.0)
        await until(lambda: one.gaps == 1, "the gap is named")


@pytest.mark.parametrize(
    "status", ["BadTimeout", "BadNoData", "BadNoContinuationPoints", "BadDataUnavailable"]
)
async def test_a_read_that_fails_midway_goes_on_behind_what_is_stored(
    server: OpcuaServer, tmp_path: Path, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "FIRST_PAUSE", 0.05)
    async with following(server, tmp_path) as one:
        values = missed(1_200, time.time())
        await restart(server, values)
        server.fail_reads(status, times=2)
        server.write(N, 2.0)
        await until(lambda: len(one.stored()) == len(values) + 2, "all is stored")
        assert max(one.stored().values()) == 1
        assert one.gaps == 0


async def test_a_server_that_gives_less_than_it_is_asked_for_is_asked_again(
    server: OpcuaServer, tmp_path: Path
) -> None:
    async with following(server, tmp_path) as one:
        values = missed(400, time.time())
        await restart(server, values)
        server.cut_pages(100)
        server.write(N, 2.0)
        await until(lambda: len(one.stored()) == len(values) + 2, "all is stored")
        assert max(one.stored().values()) == 1
        assert one.gaps == 0


async def test_a_history_that_lags_is_read_again(
    server: OpcuaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "FIRST_PAUSE", 0.05)
    async with following(server, tmp_path) as one:
        values = missed(30, time.time())
        await restart(server, values[:10])
        server.lag(on=True)
        server.record(N, *values[10:])
        await until(lambda: time.time() > values[-1][0])
        server.write(N, 2.0)
        await until(lambda: server.reads >= 3, "the history was read again")
        assert len(one.stored()) == 12
        server.lag(on=False)
        await until(lambda: len(one.stored()) == len(values) + 2, "all is stored")
        assert max(one.stored().values()) == 1
        assert one.gaps == 0


async def test_a_history_that_never_has_the_present_value_has_its_gap_named(
    server: OpcuaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(history, "LAG", 0.5)
    async with following(server, tmp_path) as one:
        await restart(server, [])
        server.lag(on=True)
        server.write(N, 2.0)
        await until(lambda: one.gaps == 1, "the gap is named")


async def test_values_of_one_time_are_stored_each_once(server: OpcuaServer, tmp_path: Path) -> None:
    async with following(server, tmp_path) as one:
        at = int(time.time() * 1000 + 1) / 1000
        values = [(at, 100.0 + number) for number in range(1_400)]
        await come_back(server, [*values, (at + 0.001, 99.0)])
        await until(lambda: len(one.stored()) == len(values) + 3, "all is stored")
        assert max(one.stored().values()) == 1
        assert one.gaps == 0


async def test_a_bad_value_of_the_history_has_its_status_and_none_is_a_letter(
    server: OpcuaServer, tmp_path: Path
) -> None:
    async with following(server, tmp_path) as one:
        (at, _), (later, _) = missed(2, time.time())
        await come_back(server, [(at, 7.0, "BadSensorFailure"), (later, 8.0)])
        await one.has(8.0)
        (row,) = [row for row in one.core.rows() if row["value"] == 7.0]
        assert row["tags"] == {"status": "BadSensorFailure"}


async def test_an_agent_that_is_killed_while_history_is_read_stores_the_rest_once(
    server: OpcuaServer, tmp_path: Path
) -> None:
    async with following(server, tmp_path) as one:
        values = missed(2_300, time.time())
        await restart(server, values)
        server.fail_reads("BadTimeout", after=1, times=100)
        server.write(N, 2.0)
        await until(lambda: len(one.stored()) > 500, "the first page is stored")
        await one.kill()
        server.fail_reads("BadTimeout", times=0)
        server.forget()
        server.write(N, 3.0)
        one.start()
        await until(lambda: len(one.stored()) == len(values) + 3, "all is stored")
        assert max(one.stored().values()) == 1
        assert one.gaps == 0


async def test_an_agent_that_was_down_when_its_subscription_went_stores_nothing_twice(
    server: OpcuaServer, tmp_path: Path
) -> None:
    async with following(server, tmp_path) as one:
        await one.kill()
        server.forget()
        values = missed(40, time.time())
        server.record(N, *values)
        await until(lambda: time.time() > values[-1][0])
        server.write(N, 2.0)
        one.start()
        await until(lambda: len(one.stored()) == len(values) + 2, "all is stored")
        assert max(one.stored().values()) == 1
        assert one.gaps == 0


async def test_a_queue_that_overflows_is_completed_from_the_history(
    server: OpcuaServer, tmp_path: Path
) -> None:
    async with following(server, tmp_path, queue=3) as one:
        one.core.open.clear()
        server.write(N, 1.5)
        await until(lambda: one.core.waiting == 1, "the stream is full")
        for number in range(20):
            server.write(N, 100.0 + number)
            at = time.time()  # the history keeps whole milliseconds: no two values may share one
            await until(lambda at=at: time.time() - at > 0.002)  # type: ignore[misc]
        one.core.open.set()
        await until(lambda: len(one.stored()) == 22, "all is stored")
        assert max(one.stored().values()) == 1
        assert one.gaps == 0


class Plant:
    """A server of asyncua with a history in SQLite that outlives it. The history gives values in the order of
    their arrival, so the value that `n` begins with has a time before all of them."""

    def __init__(self, path: Path, most: int, begin: datetime) -> None:
        self._path, self._most, self._begin = path, most, begin
        self.url = f"opc.tcp://127.0.0.1:{free_port()}"

    @contextlib.asynccontextmanager
    async def running(self, *recorded: tuple[float, Any]) -> AsyncIterator[Node]:
        """Run with more values in the history; yields the variable `n`, whose number is no text, for which
        HistorySQLite has no table (asyncua 2.1.0)."""
        server, storage = Server(), HistorySQLite(str(self._path), self._most)
        await server.init()
        server.set_endpoint(self.url)
        await storage.init()
        server.iserver.history_manager.set_storage(storage)
        line = await server.nodes.objects.add_object("ns=1;i=2000", "1:Line1")
        node = await line.add_variable("ns=1;i=2001", "1:n", 0.0)
        await write(node, 0.0, self._begin)
        if recorded:
            await storage.new_historized_node(node.nodeid, None)
        for value, at in recorded:
            data = ua.DataValue(ua.Variant(value), ua.StatusCode(ua.UInt32(0)), at, at)
            await storage.save_node_value(node.nodeid, data)
        await server.historize_node_data_change(node, timedelta(days=1))
        async with server:  # it closes the history
            yield node


async def write(node: Node, value: float, at: Any) -> None:
    await node.write_value(ua.DataValue(ua.Variant(value), SourceTimestamp=at))


@pytest.mark.parametrize("most", [10_000, 170], ids=["cut", "paged"])
async def test_the_history_of_asyncua_fills_an_hour(tmp_path: Path, most: int) -> None:
    """It cuts an answer to the requested number without a continuation point, or gives points by time."""
    hour: Any = datetime.now(UTC).replace(microsecond=123_456) - timedelta(hours=1)
    plant = Plant(tmp_path / "history.db", most, hour - timedelta(seconds=1))
    one = Follower(plant.url, tmp_path / "state")
    numbers = {100.0 + step: hour + timedelta(seconds=2 * step) for step in range(1, 1_800)}
    async with plant.running() as node:
        await write(node, 1.0, hour)
        one.start()
        await one.has(1.0)
        await one.kill()
    async with plant.running(*numbers.items()) as node:
        await write(node, 2.0, hour + timedelta(hours=1, seconds=1))
        one.start()
        await until(lambda: len(one.stored()) >= len(numbers) + 2, "all is stored")
        await one.has(2.0)
        assert {value for _, value in one.stored()} >= numbers.keys()
        assert max(one.stored().values()) == 1
        assert one.gaps == 0
        await one.stop()


async def test_events_and_conditions_are_readings_and_a_refresh_repeats_none(
    server: OpcuaServer, tmp_path: Path
) -> None:
    server.make_alarm(N, 50.0)

    def told(one: Follower) -> list[tuple[Any, ...]]:
        tags = ("type", "condition", "active")
        events = [row for row in one.core.rows() if row["metric"] == "event"]
        return [(row["value"][:12], *(row["tags"].get(tag) for tag in tags)) for row in events]

    high = ("Condition is", "NonExclusiveLimitAlarmType", "High", "true")
    async with following(server, tmp_path, events=["i=2253"]) as one:
        server.send_event("door open")
        server.write(N, 70.0)
        await until(lambda: len(told(one)) == 2, "both are stored")
        assert told(one) == [("door open", "BaseEventType", None, None), high]
        (door,) = [row for row in one.core.rows() if row["value"] == "door open"]
        assert (door["tags"]["source"], door["tags"]["severity"], len(door["tags"]["id"])) == (
            "gate",
            "700",
            40,
        )
        server.forget()
        await until(lambda: one.gaps == 1, "events may be missing")
        server.send_event("door closed")
        await one.has("door closed")
        assert told(one)[2:] == [("door closed", "BaseEventType", None, None)]


def test_an_agent_and_a_server_that_are_killed_together_leave_each_reading_once(
    tmp_path: Path,
) -> None:
    """The whole agent, killed again while it reads the history."""
    server = OpcuaServer(tmp_path / "server", json.dumps({"history": True}))
    server.start()
    server.declare(N)
    server.keep_history(N)
    case = InputCase("opcua", lambda _: f'type = "opcua"\nurl = "{server.url}"\n{_FAST}')
    leaf = leaf_of(tmp_path, case)
    try:
        leaf.start()
        server.followed(N)
        server.write(N, 1.0)
        wait_for(lambda: set(numbers_in(leaf.member)) == {1.0}, "it is stored")
        assert leaf.end(signal.SIGKILL) == -signal.SIGKILL
        server.kill()
        server.start()
        values = missed(3_000, time.time())
        server.record(N, *values)
        wait_for(lambda: time.time() > values[-1][0], "they are over")
        server.write(N, 2.0)
        leaf.start()
        wait_for(lambda: len(numbers_in(leaf.member)) > 500, "a page is stored")
        leaf.end(signal.SIGKILL)
        leaf.start()
        wait_for(lambda: len(numbers_in(leaf.member)) >= len(values) + 2, "all is stored")
        assert set(numbers_in(leaf.member).values()) == {1}
        assert leaf.metric("petiole_source_gaps_total", input="opcua") == 0
    finally:
        leaf.close()
        server.kill()
