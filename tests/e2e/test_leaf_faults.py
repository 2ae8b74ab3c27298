"""The leaf's agent when its server, its store or itself goes away: nothing acknowledged is lost or
doubled."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from agent import connection, publisher, sender
from agent.config import Config, Publish, Seconds, Size
from agent.contract import link_consumer
from agent.intake import Reason, RefusedError, UnknownOutcomeError
from tests.agents import CLASS, Agent, Shelf, agent, chunk, insist, leaf_config, shelf
from tests.servers import Leaf as LeafServer
from tests.servers import World, until

QUICK = Publish(linger=Seconds(0.005), drain=Seconds(1.0))


@pytest.fixture
def config(world: World, tmp_path: Path) -> Config:
    """An agent beside the first leaf's server."""
    return leaf_config(world.leaf, tmp_path / "state", QUICK)


class Load:
    """Senders that repeat each request under its key until it is answered."""

    def __init__(self, one: Agent, senders: int = 4) -> None:
        self.acknowledged: list[str] = []
        self._stopping = False
        self._tasks = [asyncio.create_task(self._send(one, f"s{number}")) for number in range(senders)]

    async def _send(self, one: Agent, name: str) -> None:
        number = 0
        while not self._stopping:
            number += 1
            await insist(one, chunk(f"{name}-{number}", key=f"{name}-{number}"))
            self.acknowledged.append(f"{name}-{number}/0")

    async def more(self, count: int) -> None:
        """Return when so many more requests were acknowledged."""
        want = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= want, f"{count} more requests are acknowledged")

    async def stop(self) -> None:
        """Return when all senders have their last answer."""
        self._stopping = True
        await asyncio.gather(*self._tasks)


async def all_is_there_once(one_shelf: Shelf, acknowledged: list[str]) -> None:
    """Every acknowledged reading is in the stream exactly once, and so is every batch, without gaps."""
    batches = await one_shelf.batches()
    assert Counter(text for batch in batches for text in batch.texts) == Counter(acknowledged)
    by_run: dict[str, list[int]] = {}
    for batch in batches:
        by_run.setdefault(batch.id.run, []).append(batch.id.n)
    for numbers in by_run.values():
        assert sorted(numbers) == list(range(1, len(numbers) + 1))


async def test_nothing_is_lost_or_doubled_when_the_server_is_killed_under_load(
    world: World, config: Config
) -> None:
    async with agent(config) as one:
        load = Load(one)
        for _ in range(3):
            await load.more(100)
            await world.leaf.kill()
            await world.leaf.start()
        await load.more(100)
        await load.stop()
        await one.stop()
        assert one.value("petiole_reconnects_total") >= 3
        one_shelf = await shelf(world.leaf)
        await all_is_there_once(one_shelf, load.acknowledged)
        record = (await one_shelf.ledgers())[-1]
        assert record.final
        assert record.stored == ((1, record.n),)
        assert record.readings.stored == len(load.acknowledged)


async def test_the_outcome_of_a_hung_server_is_unknown_and_settles_when_it_goes_on(
    world: World, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "PATIENCE", 0.5)
    monkeypatch.setattr(sender, "ACK_WAIT", 0.3)
    monkeypatch.setattr(sender, "RETRY_PAUSE", 0.1)
    async with agent(config) as one:
        await one.submit(chunk("before"))
        world.leaf.pause()
        try:
            with pytest.raises(UnknownOutcomeError):
                await one.submit(chunk("a", key="k"))
            with pytest.raises(UnknownOutcomeError):
                await one.submit(chunk("a", key="k"))
        finally:
            world.leaf.resume()
        await insist(one, chunk("a", key="k"))
        assert one.value("petiole_publish_retries_total", **{"class": CLASS}) > 0
        assert one.value("petiole_in_flight_bytes") == 0
        assert await (await shelf(world.leaf)).texts() == ["before/0", "a/0"]


async def test_a_hung_server_that_reads_nothing_is_noticed_and_its_connection_dropped(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = leaf_config(
        world.leaf, tmp_path / "state", Publish(linger=Seconds(0.005), in_flight=Size(2**26))
    )
    monkeypatch.setattr(publisher, "PATIENCE", 1.0)
    monkeypatch.setattr(connection, "_PING_SECONDS", 0.3)
    monkeypatch.setattr(connection, "_CONNECT_SECONDS", 0.5)
    async with agent(config) as one:
        load = Load(one, senders=1)
        await load.more(5)
        world.leaf.pause()
        # More than sockets hold, so that the client is left with what it cannot send.
        huge = [
            chunk(base64.b64encode(os.urandom(1_000_000)).decode(), key=f"huge-{number}")
            for number in range(20)
        ]
        big = [asyncio.create_task(insist(one, what)) for what in huge]
        try:
            await until(lambda: not one.leaf.ready()[0], "the hung server is noticed")
            await until(lambda: _sockets(world.leaf) <= 3, "the connections to it are gone")
        finally:
            world.leaf.resume()
        await asyncio.gather(*big)
        await load.more(5)
        await load.stop()
        one_shelf = await shelf(world.leaf)
        texts = Counter(await one_shelf.texts())
        assert set(texts.values()) == {1}
        assert len(texts) == len(load.acknowledged) + len(huge)


def _sockets(server: LeafServer) -> int:
    mine = psutil.Process().net_connections(kind="tcp")
    return sum(1 for one in mine if one.raddr and one.raddr.port == server.port)


async def test_readings_are_refused_at_once_while_the_server_is_away(
    world: World, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "AWAY_GRACE", 0.3)
    monkeypatch.setattr(publisher, "PATIENCE", 0.5)
    async with agent(config) as one:
        await one.submit(chunk("before"))
        await world.leaf.kill()
        refusals = [await _refusal(one, f"away-{number}") for number in range(20)]
        assert {refusal.reason for refusal in refusals} == {Reason.UNAVAILABLE}
        assert all(refusal.retry_after for refusal in refusals)
        assert len(one.leaf._publisher.queue) == 0, "what was refused takes no memory"
        assert one.value("petiole_in_flight_bytes") == 0
        assert not one.leaf.ready()[0]
        await world.leaf.start()
        await insist(one, chunk("after", key="after"))
        assert await (await shelf(world.leaf)).texts() == ["before/0", "after/0"]


async def _refusal(one: Agent, text: str) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await one.submit(chunk(text, 100))
    return caught.value


async def test_what_waits_through_a_short_outage_is_stored(world: World, config: Config) -> None:
    async with agent(config) as one:
        await world.leaf.kill()
        waiting = [asyncio.create_task(one.submit(chunk(str(number)))) for number in range(20)]
        await world.leaf.start()
        await asyncio.gather(*waiting)
        assert len(await (await shelf(world.leaf)).texts()) == 20


async def test_a_stop_while_the_server_is_away_ends_and_leaves_the_run_open(
    world: World, config: Config
) -> None:
    async with agent(config) as one:
        await one.submit(chunk("a"))
        await world.leaf.kill()
        await until(lambda: not one.leaf.ready()[0], "the agent has noticed")
        late = asyncio.create_task(one.submit(chunk("late")))
        await asyncio.sleep(0)
        await asyncio.wait_for(one.stop(), 10)
        assert isinstance(late.exception(), RefusedError | UnknownOutcomeError)
        last = one.state().acked[CLASS]
        assert (last.run, last.n, last.closed) == (one.run, 1, False)
        await world.leaf.start()
    assert not any(record.final for record in await (await shelf(world.leaf)).ledgers())


async def test_a_first_start_that_never_saw_a_server_stops_in_order(world: World, config: Config) -> None:
    await world.leaf.kill()
    one = Agent(config)
    await asyncio.sleep(0.3)
    await asyncio.wait_for(one.stop(), 10)
    assert one.state().acked == {}


async def new_epoch_first(one_shelf: Shelf, one: Agent, old: str) -> None:
    """The epoch is another one than `old`, its consumer is the only one, and was there before the first batch
    of this run was stored."""
    await until(lambda: one.state().epochs[CLASS] != old, "there is a new epoch")
    name = link_consumer(one.state().epochs[CLASS])
    assert await one_shelf.link_consumers() == [name]
    made = (await one_shelf.js.consumer_info(one_shelf.stream, name)).created
    mine = [batch for batch in await one_shelf.batches() if "after/0" in batch.texts]
    assert len(mine) == 1
    assert made < mine[0].time


async def wipe(server: LeafServer) -> None:
    """Lose the server's store."""
    await server.kill()
    await asyncio.to_thread(shutil.rmtree, server.config.store_dir)
    await server.start()


async def test_a_store_that_is_wiped_while_the_agent_runs_gets_a_new_epoch_first(
    world: World, config: Config
) -> None:
    async with agent(config) as one:
        await one.submit(chunk("before"))
        old = one.leaf._state.current.epochs[CLASS]
        await wipe(world.leaf)
        await insist(one, chunk("after", key="after"))
        await new_epoch_first(await shelf(world.leaf), one, old)
        assert one.value("petiole_epochs_total", reason="stream_recreated", **{"class": CLASS}) == 1


async def test_a_store_that_is_wiped_while_the_agent_is_down_gets_a_new_epoch_first(
    world: World, config: Config
) -> None:
    async with agent(config) as one:
        await one.submit(chunk("before", position="7"), "tail")
        await one.stop()
        old = one.state().epochs[CLASS]
    await wipe(world.leaf)
    async with agent(config) as one:
        await one.submit(chunk("after"))
        await new_epoch_first(await shelf(world.leaf), one, old)
        assert await one.leaf.position("tail", CLASS) == "7", "the lost batch is not read in twice"


async def test_a_store_that_was_put_back_gets_a_new_epoch_first(
    world: World, config: Config, tmp_path: Path
) -> None:
    store, copy = world.leaf.config.store_dir, tmp_path / "copy"
    async with agent(config) as one:
        await one.submit(chunk("before"))
        await world.leaf.stop()
        await asyncio.to_thread(shutil.copytree, store, copy)
        await world.leaf.start()
        await insist(one, chunk("lost", key="lost"))
        old = one.leaf._state.current.epochs[CLASS]
        await world.leaf.kill()
        await asyncio.to_thread(shutil.rmtree, store)
        await asyncio.to_thread(shutil.move, copy, store)
        await world.leaf.start()
        await insist(one, chunk("after", key="after"))
        one_shelf = await shelf(world.leaf)
        await new_epoch_first(one_shelf, one, old)
        assert await one_shelf.texts() == ["before/0", "after/0"]
        assert one.value("petiole_epochs_total", reason="stream_put_back", **{"class": CLASS}) == 1


async def test_a_link_consumer_that_was_deleted_gets_a_new_epoch_first(world: World, config: Config) -> None:
    one_shelf = await shelf(world.leaf)
    async with agent(config) as one:
        await one.submit(chunk("before"))
        await one.stop()
        old = one.state().epochs[CLASS]
    await one_shelf.js.delete_consumer(one_shelf.stream, link_consumer(old))
    async with agent(config) as one:
        await one.submit(chunk("after"))
        await new_epoch_first(one_shelf, one, old)


async def test_a_state_file_that_was_lost_means_a_new_epoch_first(world: World, config: Config) -> None:
    one_shelf = await shelf(world.leaf)
    async with agent(config) as one:
        await one.submit(chunk("before", key="k", position="7"), "tail")
        await one.stop()
        old = one.state().epochs[CLASS]
        one.state_path.unlink()
    async with agent(config) as one:
        await one.submit(chunk("before", key="k", position="7"), "tail")
        assert await one.leaf.position("tail", CLASS) == "7"
        await one.submit(chunk("after"))
        await new_epoch_first(one_shelf, one, old)
        assert await one_shelf.texts() == ["before/0", "after/0"]


async def test_an_epoch_that_could_not_be_saved_is_saved_when_the_disk_takes_it(
    world: World, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True
    replace = Path.replace

    def refuse(one: Path, to: Path) -> Path:
        if full:
            raise OSError(28, "No space left on device")
        return replace(one, to)

    monkeypatch.setattr(Path, "replace", refuse)
    async with agent(config) as one:
        await one.submit(chunk("a"))
        assert one.state().epochs == {}
        full = False
        await until(lambda: one.state().epochs != {}, "the epoch is saved")
        assert await (await shelf(world.leaf)).link_consumers() == [link_consumer(one.state().epochs[CLASS])]


class Process:
    """A leaf's agent in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, config: Config) -> Process:
        """One that takes requests."""
        given = {
            "domain": config.domain,
            "listen": config.nats.listen,
            "seed": str(config.nats.seed_file),
            "system_seed": str(config.nats.system_seed_file),
            "state_dir": str(config.state_dir),
        }
        one = cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.leaf_process", json.dumps(given)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        )
        await one.says("ready")
        return one

    def ask(self, numbers: range) -> None:
        """Send requests with the keys `k<number>`."""
        assert self._process.stdin is not None
        for number in numbers:
            self._process.stdin.write(f"k{number} text-{number}\n".encode())

    async def says(self, word: str, times: int = 1) -> None:
        """Return when it has said a word so often."""
        assert self._process.stdout is not None
        async with asyncio.timeout(20):
            while times:
                line = await self._process.stdout.readline()
                assert line, "the process has ended"
                times -= line.decode().split()[0] == word

    async def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        await self._process.wait()


async def test_requests_repeated_after_the_agent_was_killed_are_stored_once(
    world: World, config: Config
) -> None:
    one_shelf = await shelf(world.leaf)
    for turn in range(3):
        process = await Process.start(config)
        process.ask(range(200 * turn + 200))
        await process.says("stored", 200 * turn + 50)
        await process.kill()
    process = await Process.start(config)
    process.ask(range(600))
    await process.says("stored", 600)
    await process.kill()
    await all_is_there_once(one_shelf, [f"text-{number}/0" for number in range(600)])
    await _every_run_is_told_in_full(one_shelf)


async def _every_run_is_told_in_full(one_shelf: Shelf) -> None:
    """The run after a killed one says how far that one came, whatever its state file knew."""
    stored: Counter[str] = Counter()
    highest: Counter[str] = Counter()
    for batch in await one_shelf.batches():
        stored[batch.id.run] += batch.count
        highest[batch.id.run] = max(highest[batch.id.run], batch.id.n)
    told = {one.previous.run: one.previous for one in await one_shelf.ledgers() if one.previous is not None}
    assert len(told) == 3
    for run, previous in told.items():
        assert (previous.n, previous.readings.stored) == (highest[run], stored[run])
        assert not previous.closed
