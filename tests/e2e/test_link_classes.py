"""Classes over a link: the one that matters most goes first, and one that has a rate keeps to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.config import LeafMember, Publish, Size, StreamClass
from agent.contract import link_consumer
from agent.leaf.link import controller
from agent.leaf.link.observation import CAUGHT_UP
from agent.leaf.link.status import LinkState
from tests.harness.agents import CLASS, Agent, StreamProbe, agent, chunk, leaf_config
from tests.harness.registrar import HubHand, hub_of
from tests.harness.servers import ServerPair, open_server_pair
from tests.harness.streams import AGGREGATE, stored_messages
from tests.harness.wait import until

BATCHES = 3 * CAUGHT_UP
CLASSES = ("alarms", "normal")


async def arrived_since(hub: HubHand, seq: int) -> list[str]:
    """The classes of the batches that the hub got, in its order."""
    subjects = [one.subject for one in await stored_messages(hub.js, AGGREGATE, seq + 1)]
    return [subject.split(".")[2] for subject in subjects if "._batch." in subject]


@asynccontextmanager
async def two_classes(directory: Path) -> AsyncIterator[tuple[ServerPair, HubHand, Agent]]:
    """A leaf whose class `alarms` goes before its class `normal`; both flow."""
    async with open_server_pair(directory, "edge-1", classes=CLASSES) as servers:
        config = leaf_config(servers.leaf, directory / "state", Publish(batch_readings=1))
        config.class_ = [StreamClass("normal"), StreamClass("alarms", priority=0)]
        hub = await hub_of(servers)
        async with hub.registrar():
            one = Agent(config)
            await one.ready()
            board = one.leaf.link.status
            await until(lambda: board.state is LinkState.FLOWING, "both classes flow")
            yield servers, hub, one
            await one.crash()


async def test_alarms_do_not_wait_behind_a_backlog_of_samples(tmp_path: Path) -> None:
    async with two_classes(tmp_path) as (servers, hub, one):
        board = one.leaf.link.status
        servers.leaf.proxy.cut()
        await until(lambda: board.state is LinkState.DOWN, "the link is down")
        before = (await hub.js.stream_info(AGGREGATE)).last
        for cls in ("normal", "alarms"):
            await asyncio.gather(
                *(one.leaf.intake.submit("http", cls, chunk(f"{n}")) for n in range(BATCHES))
            )
        work = one.leaf.link.controller._work["alarms"]
        await until(lambda: work.behind >= BATCHES, "the backlog of the alarms is known")
        servers.leaf.proxy.restore()
        await until(lambda: board.classes["normal"].state is LinkState.IN_TURN, "the samples wait")
        assert "class alarms, which goes first" in board.classes["normal"].sentence
        await until(lambda: board.state is LinkState.FLOWING, "both classes flow again")

        async def all_there() -> bool:
            return len(await arrived_since(hub, before)) == 2 * BATCHES

        await until(all_there, "all is at the hub")
        order = await arrived_since(hub, before)
    assert order[: BATCHES - CAUGHT_UP] == ["alarms"] * (BATCHES - CAUGHT_UP)
    assert sorted(order) == ["alarms"] * BATCHES + ["normal"] * BATCHES


async def test_a_class_that_the_hub_does_not_know_is_refused_in_words_and_the_others_flow(
    tmp_path: Path,
) -> None:
    async with open_server_pair(tmp_path, "edge-1", classes=CLASSES) as servers:
        config = leaf_config(servers.leaf, tmp_path / "state")
        config.class_ = [StreamClass("normal"), StreamClass("alarms", priority=0)]
        hub = await hub_of(servers)
        members = [LeafMember(user.domain, user.key, ["normal"]) for user in servers.hub.config.leaves]
        reason = "class 'alarms' of 'edge-1' is not in the hub's configuration"

        async def there(*classes: str) -> bool:
            return set(classes) <= set(await arrived_since(hub, 0))

        async with agent(config) as one:
            links = one.leaf.link.status.classes
            async with hub.registrar(members=members) as registrar:
                await until(lambda: links["alarms"].state is LinkState.REFUSED, "the class is refused")
                for cls in CLASSES:
                    await one.leaf.intake.submit("http", cls, chunk(cls))
                await until(lambda: links["normal"].state is LinkState.FLOWING, "the other one flows")
                await until(lambda: there("normal"), "its readings are at the hub")
                for _ in range(12):
                    asked = hub.counted("petiole_announcements_total", outcome="taken_in")
                    one.leaf.link.controller.announce_now()
                    await until(
                        lambda before=asked: (  # type: ignore[misc]
                            hub.counted("petiole_announcements_total", outcome="taken_in") > before
                        ),
                        "an announcement",
                    )
                    assert reason in links["alarms"].sentence
                    leaf = registrar.status()["leaves"]["edge-1"]
                    assert (leaf["word"], reason in leaf["state"]) == ("refused", True)
            async with hub.registrar():
                await until(lambda: there("alarms"), "the class was added, and what waited is there")


async def test_no_class_waits_for_another_when_their_server_has_forgotten_their_consumers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "REPAIR_EVERY", 3600.0)
    async with two_classes(tmp_path) as (servers, _, one):
        await servers.leaf.kill()
        await servers.leaf.start()
        await until(
            lambda: all(one.epochs("consumer_gone", cls) == 1 for cls in CLASSES),
            "each class has another consumer",
        )
        await until(lambda: one.leaf.link.status.state is LinkState.FLOWING, "both classes flow again")


async def test_data_flows_at_once_after_the_second_of_two_restarts_of_the_server_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "REPAIR_EVERY", 3600.0)
    async with two_classes(tmp_path) as (servers, hub, one):
        for restarts in (1, 2):
            await servers.leaf.kill()
            await servers.leaf.start()

            def begun(times: int) -> bool:
                return all(one.epochs("consumer_gone", cls) == times for cls in CLASSES)

            await until(lambda times=restarts: begun(times), "each class has another consumer")  # type: ignore[misc]
            await until(lambda: one.leaf.link.status.state is LinkState.FLOWING, "both classes flow again")
        before = (await hub.js.stream_info(AGGREGATE)).last
        await one.leaf.intake.submit("http", "normal", chunk("1"))

        async def arrived() -> bool:
            return "normal" in await arrived_since(hub, before)

        await until(arrived, "a reading that came afterwards is at the hub")


async def test_a_class_gets_its_rate_and_another_one_later_within_one_epoch(
    servers: ServerPair, probe: StreamProbe, tmp_path: Path
) -> None:
    epochs = []
    for rate, bits in ((125_000, 1_000_000), (10**6, 8_000_000), (None, 0)):
        stream = StreamClass(link_rate=None if rate is None else Size(rate))
        async with agent(leaf_config(servers.leaf, tmp_path / "state", stream=stream)) as one:
            epochs.append(one.state().epochs[CLASS])
            consumer = await probe.js.consumer_info(probe.stream, link_consumer(epochs[-1]))
            assert consumer.config.get("rate_limit_bps", 0) == bits
            await one.stop()
    assert len(set(epochs)) == 1
