"""The registrar on real servers; the leaf's side is done by hand, as the leaf's agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import structlog
from nats.aio.client import Client

from agent.config import Config, LeafMember, Size
from agent.config import Registrar as RegistrarConfig
from agent.contract import (
    COMMANDS,
    H_MESSAGE_ID,
    H_SOURCE,
    Announce,
    Answer,
    Checkpoint,
    ClassAnswer,
    ClassState,
    Committed,
    announce_subject,
    batch_subject,
    committed_subject,
    deliver_subject,
    leaf_stream,
    link_consumer,
    new_epoch,
    new_run,
    parse_answer,
)
from agent.jetstream import JetStream, JetStreamError, StreamInfo
from agent.link.aggregate import parse_source_header
from agent.link.registrar import MAX_ANNOUNCE, Registrar
from agent.metrics import Metrics
from tests.servers import Leaf, World, until
from tests.streams import AGGREGATE, make_leaf_stream

MACHINE = "test"
KEEP = 5


class LeafHand:
    """The leaf's side of one class, by hand."""

    def __init__(self, leaf: Leaf, nc: Client) -> None:
        self.domain = leaf.domain
        self.stream = leaf_stream(leaf.domain, "normal")
        self.nc = nc
        self.js = JetStream(nc)
        self.epoch = new_epoch()
        self.run = new_run()
        self.sent = 0

    @classmethod
    async def make(cls, leaf: Leaf) -> LeafHand:
        """With its stream and link consumer."""
        hand = cls(leaf, await leaf.connect("agent"))
        await make_leaf_stream(hand.nc, hand.domain, hand.epoch)
        return hand

    async def next_epoch(self, start: int) -> None:
        """Another link consumer, beginning at a sequence."""
        self.epoch = new_epoch()
        await self.js.create_consumer(
            self.stream,
            {
                "name": link_consumer(self.epoch),
                "durable_name": link_consumer(self.epoch),
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": start,
                "ack_policy": "flow_control",
                "max_ack_pending": 10_000,
                "deliver_subject": deliver_subject(self.domain, "normal", self.epoch),
            },
        )

    async def store(self, count: int = 1) -> int:
        """Batches in the leaf's stream; returns the sequence of the last one."""
        seq = 0
        for _ in range(count):
            self.sent += 1
            message_id = f"{self.run}-normal-{self.sent}"
            subject = batch_subject(self.domain, "normal", "http")
            seq = await self.js.publish(subject, b"{}\n", {H_MESSAGE_ID: message_id})
        return seq

    async def acknowledged(self) -> bool:
        """Whether the leaf knows that the hub holds all."""
        info = await self.js.stream_info(self.stream)
        return (await self.js.consumer_info(self.stream, link_consumer(self.epoch))).ack_floor == info.last

    async def answers(self) -> bool:
        """Whether the leaf's server answers its agent."""
        try:
            await self.js.stream_info(self.stream)
        except JetStreamError:
            return False
        return True

    async def announcement(self, checkpoint: Checkpoint | None = None, confirmed: int = 0) -> Announce:
        """What the leaf would announce now."""
        info = await self.js.stream_info(self.stream)
        state = ClassState(self.epoch, info.created, info.first, info.last, confirmed, info.bytes)
        return Announce(
            domain=self.domain,
            machine=MACHINE,
            run=self.run,
            versions={"agent": "0.1.0"},
            classes={"normal": state},
            checkpoint={} if checkpoint is None else {"normal": checkpoint},
        )

    async def announce(self, checkpoint: Checkpoint | None = None, confirmed: int = 0) -> ClassAnswer:
        """The answer for the class; a refusal fails the test."""
        answer = await self.say((await self.announcement(checkpoint, confirmed)).encode())
        assert answer.refused is None, answer.refused
        return answer.classes["normal"]

    async def refused(self, data: bytes) -> str:
        """The words in which an announcement is refused."""
        answer = await self.say(data)
        assert answer.refused is not None
        return answer.refused

    async def say(self, data: bytes) -> Answer:
        """The answer to whatever is announced."""
        reply = await self.nc.request(announce_subject(self.domain), data, timeout=5)
        return parse_answer(reply.data)


class HubHand:
    """The hub's side: looks at the aggregate, starts and stops registrars."""

    def __init__(self, world: World, nc: Client, jobs: Client) -> None:
        self.world = world
        self.js = JetStream(nc)
        self.nc = nc
        self.jobs = jobs
        self.metrics = Metrics()

    @asynccontextmanager
    async def registrar(self, *, knows_leaves: bool = True) -> AsyncIterator[Registrar]:
        """A registrar that runs as long as the context, on connections of its own."""
        self.metrics = Metrics()
        hub = self.world.hub
        config = Config(
            domain="hub",
            role="hub",
            leaf=[
                LeafMember(user.domain, user.key, list(user.classes))
                for user in hub.config.leaves
                if knows_leaves
            ],
            registrar=RegistrarConfig(keep=KEEP, max_bytes=Size(64 * 2**20)),
        )
        nc, system = await hub.connect("registrar"), await hub.connect("registrar_system")
        registrar = Registrar(config, nc, system, self.metrics, structlog.get_logger("registrar"))
        stopping = asyncio.Event()
        task = asyncio.create_task(registrar.run(stopping))
        try:
            await until(lambda: registrar.status()["aggregate"] is not None, "the registrar is ready")
            yield registrar
        finally:
            stopping.set()
            async with asyncio.timeout(10):
                await task
            await nc.close()
            await system.close()

    async def aggregate(self) -> StreamInfo:
        """The aggregate now."""
        return await self.js.stream_info(AGGREGATE)

    async def holds(self, domain: str, seq: int) -> StreamInfo:
        """The aggregate, once its source of this leaf has reached a leaf sequence."""
        async with asyncio.timeout(20):
            while True:
                try:
                    info = await self.aggregate()
                except JetStreamError:
                    continue
                if any(
                    one["name"] == leaf_stream(domain, "normal") and one.get("seq", 0) >= seq
                    for one in info.sources
                ):
                    return info
                await asyncio.sleep(0.02)

    async def leaf_sequences(self, domain: str, first: int) -> list[int]:
        """The leaf sequences that the aggregate holds of a leaf, from a hub sequence on, in its order."""
        info = await self.aggregate()
        found = []
        for seq in range(max(first, info.first), info.last + 1):
            message = await self.js.get_message(AGGREGATE, seq=seq)
            assert message is not None
            name, leaf_seq = parse_source_header(message.headers[H_SOURCE])
            if name == leaf_stream(domain, "normal"):
                found.append(leaf_seq)
        return found

    async def committed(self, record: Committed, stream: str = AGGREGATE) -> dict[str, Any]:
        """What the registrar answers to `ingest`."""
        reply = await self.jobs.request(committed_subject(stream), record.encode(), timeout=5)
        answer: dict[str, Any] = json.loads(reply.data)
        return answer

    def counted(self, name: str, **labels: str) -> float:
        """A metric of the running registrar."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


async def hub_of(world: World) -> HubHand:
    """The hub's side of a world."""
    return HubHand(world, await world.hub.connect("registrar"), await world.hub.connect("jobs"))


async def test_a_leaf_that_announces_itself_is_sourced_under_its_own_domain(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar() as registrar:
        await leaf.store(3)
        answer = await leaf.announce()
        assert answer.stream == AGGREGATE
        info = await hub.holds(leaf.domain, 3)
        assert info.last == 3
        message = await hub.js.get_message(AGGREGATE, seq=3)
        assert message is not None
        assert message.subject == batch_subject(leaf.domain, "normal", "http")

        answer = await leaf.announce(confirmed=3)
        assert answer == ClassAnswer(
            AGGREGATE,
            3,
            f"{leaf.run}-normal-3",
            "flowing",
            None,
            Checkpoint(3, answer.message_id, AGGREGATE, 3),
        )
        row = registrar.status()["leaves"][leaf.domain]
        assert (row["state"], row["linked"], row["classes"]["normal"]["cursor"]) == ("flowing", True, 3)


async def test_a_leaf_that_forges_the_domain_of_another_writes_into_its_own(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    forged = {"src": f"tel.{leaf.domain}.>", "dest": "tel.edge-9.>"}
    await leaf.js.ensure_stream({"name": leaf.stream, "subject_transform": forged})
    async with hub.registrar():
        await leaf.announce()
        await hub.holds(leaf.domain, await leaf.store())
        message = await hub.js.get_message(AGGREGATE, seq=1)
        assert message is not None
        assert message.subject == batch_subject(leaf.domain, "normal", "http")


async def test_the_streams_of_the_hub_hold_what_must_not_be_lost(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar():
        await leaf.announce()
        config = (await hub.aggregate()).config
        assert "subjects" not in config
        assert (config["discard"], config["max_age"], config["compression"]) == ("new", 0, "s2")
        assert config.get("duplicate_window", 0) == 0
        commands = (await hub.js.stream_info(COMMANDS)).config
        assert (commands["subjects"], commands["max_consumers"]) == (["cmd.>"], -1)


async def test_an_aggregate_that_would_drop_messages_is_set_right(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar():
        await leaf.announce()
        await hub.holds(leaf.domain, await leaf.store())
    config = (await hub.aggregate()).config
    await hub.js.update_stream({**config, "duplicate_window": 60 * 10**9, "max_age": 3600 * 10**9})
    with structlog.testing.capture_logs() as logs:
        async with hub.registrar():
            config = (await hub.aggregate()).config
            assert hub.counted("petiole_source_readds_total") == 0
    assert (config.get("duplicate_window", 0), config["max_age"]) == (0, 0)
    said = [one["event"] for one in logs]
    assert any("duplicate_window was not 0" in text for text in said)
    assert any("max_age was not 0" in text for text in said)


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: {key: value for key, value in row.items() if key != name}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: row | {"v": 2}, "version 2 is not known"),
        (lambda row: row | {"domain": "edge-9"}, "was announced on the subject of 'edge-1'"),
        (lambda row: row | {"machine": "A B"}, "machine 'A B' is not"),
        (lambda row: row | {"clock": "x" * MAX_ANNOUNCE}, "above the limit"),
        (
            lambda row: row | {"classes": {"bulk": row["classes"]["normal"]}},
            "class 'bulk' of 'edge-1' is not",
        ),
        (without("run"), "run None is not a UUIDv7"),
    ],
)
async def test_what_is_wrong_with_an_announcement_is_said_and_the_next_one_is_answered(
    world: World, change: Callable[[dict[str, Any]], dict[str, Any]], words: str
) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar():
        good = await leaf.announcement()
        assert words in await leaf.refused(json.dumps(change(json.loads(good.encode()))).encode())
        assert "not JSON" in await leaf.refused(b"\xff{")
        assert (await leaf.announce()).stream == AGGREGATE
        assert hub.counted("petiole_announcements_total", outcome="refused") == 2


async def test_a_domain_that_the_hub_does_not_know_is_refused(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar(knows_leaves=False):
        words = await leaf.refused((await leaf.announcement()).encode())
        assert "'edge-1' is not among the leaves in the hub's configuration" in words


async def test_a_flood_of_announcements_is_held_off(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar():
        data = (await leaf.announcement()).encode()
        answers = [await leaf.say(data) for _ in range(15)]
        refused = [one.refused for one in answers if one.refused]
        assert refused
        assert all("too often" in text for text in refused)
        assert answers[0].refused is None


async def test_a_second_machine_with_the_domain_is_refused_and_both_are_told(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    with structlog.testing.capture_logs() as logs:
        async with hub.registrar() as registrar:
            await leaf.announce()
            other = replace(await leaf.announcement(), machine="other")
            for _ in range(2):
                words = await leaf.refused(other.encode())
            assert "belongs to machine test" in words
            assert (await leaf.announce()).state == "contested"
            assert "belongs to machine test" in registrar.status()["leaves"][leaf.domain]["state"]
    assert len([one for one in logs if one.get("about") == f"rival of {leaf.domain}"]) == 1


async def test_a_new_epoch_moves_the_source(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar():
        await leaf.store(4)
        await leaf.announce()
        await hub.holds(leaf.domain, 4)
        old = leaf.epoch
        await leaf.next_epoch(start=5)
        answer = await leaf.announce()
        assert (answer.cursor, answer.checkpoint) == (0, None)
        assert await leaf.js.delete_consumer(leaf.stream, link_consumer(old))
        await hub.holds(leaf.domain, await leaf.store(2))
        assert await hub.leaf_sequences(leaf.domain, 1) == [1, 2, 3, 4, 5, 6]


async def test_a_flood_of_epochs_is_held_off(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar():
        await leaf.announce()
        for _ in range(3):
            await leaf.next_epoch(start=1)
            await leaf.announce()
        await leaf.next_epoch(start=1)
        words = await leaf.refused((await leaf.announcement()).encode())
        assert "new epochs too often" in words


async def test_a_leaf_that_comes_back_flows_on(two_leaves: World) -> None:
    hub = await hub_of(two_leaves)
    one, two = [await LeafHand.make(leaf) for leaf in two_leaves.leaves.values()]
    async with hub.registrar():
        for leaf in (one, two):
            await leaf.store(2)
            await leaf.announce()
            await hub.holds(leaf.domain, 2)
        cut = two_leaves.leaves[one.domain]
        cut.proxy.cut()
        await cut.wait_linked(False)
        last = await one.store(20)
        await silent(hub, one.domain)
        cut.proxy.restore()
        await hub.holds(one.domain, last)
        assert await hub.leaf_sequences(one.domain, 1) == list(range(1, last + 1))
        assert await hub.leaf_sequences(two.domain, 1) == [1, 2]


async def test_a_killed_hub_goes_on_where_it_was(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar():
        await leaf.store(10)
        await leaf.announce()
        await hub.holds(leaf.domain, 10)
        await world.hub.kill()
        last = await leaf.store(10)
        await world.hub.start()
        await hub.holds(leaf.domain, last)
        assert hub.counted("petiole_source_readds_total") >= 1
        assert await hub.leaf_sequences(leaf.domain, 1) == list(range(1, last + 1))
        await world.leaf.wait_linked()
        assert (await leaf.announce(confirmed=last)).cursor == last


async def test_a_source_is_added_again_when_its_leaf_connects_and_what_it_held_is_remembered(
    world: World,
) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar():
        await leaf.store(10)
        await leaf.announce()
        await hub.holds(leaf.domain, 10)
        held = await leaf.announce(confirmed=10)
        info = await hub.holds(leaf.domain, await leaf.store(2))
        await until(leaf.acknowledged, "the hub's acknowledgements are back at the leaf")
        await hub.js.purge(AGGREGATE, info.last)
        await world.leaf.stop()  # killed, it would forget its newest acknowledgements and send those again
        await world.leaf.start()
        await until(lambda: hub.counted("petiole_source_readds_total") >= 1, "the source is added again")
        await until(leaf.answers, "the leaf's agent is connected again")
        answer = await leaf.announce(held.checkpoint, confirmed=12)
        assert (answer.cursor, answer.message_id, answer.agreed) == (12, "", True)
        await hub.holds(leaf.domain, await leaf.store(3))
        assert await hub.leaf_sequences(leaf.domain, 1) == [13, 14, 15]


async def test_a_registrar_that_starts_leaves_sources_that_flow_alone(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar():
        await leaf.announce()
        await hub.holds(leaf.domain, await leaf.store())
    async with hub.registrar():
        await heartbeat(hub, leaf.domain)
        assert (await leaf.announce()).state == "flowing"
        assert hub.counted("petiole_source_readds_total") == 0


async def test_a_hub_that_was_killed_after_a_purge_keeps_its_cursor_and_loses_nothing(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar():
        await leaf.store(10)
        await leaf.announce()
        info = await hub.holds(leaf.domain, 10)
        held = await leaf.announce(confirmed=10)
        await hub.js.purge(AGGREGATE, info.last)
        await world.hub.kill()
        await world.hub.start()
        await world.leaf.wait_linked()
        await until(lambda: hub.counted("petiole_source_readds_total") >= 1, "the source is added again")
        answer = await leaf.announce(held.checkpoint, confirmed=10)
        assert (answer.cursor, answer.message_id, answer.agreed) == (10, held.message_id, True)
        await hub.holds(leaf.domain, await leaf.store(5))
        found = await hub.leaf_sequences(leaf.domain, 1)
        again = found[:-5]
        assert found[-5:] == [11, 12, 13, 14, 15]
        assert again == list(range(11 - len(again), 11)), "what comes again is the newest, in its order"


async def test_the_aggregate_is_purged_up_to_what_is_committed_less_a_margin(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar():
        await leaf.store(20)
        await leaf.announce()
        info = await hub.holds(leaf.domain, 20)
        assert (await hub.committed(Committed(AGGREGATE, info.created, KEEP)))["purged"] == 0
        assert await hub.committed(Committed(AGGREGATE, info.created, 12)) == {"v": 1, "purged": 12 - KEEP}
        assert (await hub.aggregate()).first == 12 - KEEP + 1


async def test_nothing_is_purged_that_is_not_known_to_be_committed(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar():
        await leaf.store(20)
        await leaf.announce()
        info = await hub.holds(leaf.domain, 20)
        wrong = {
            "ends at 20, so 21 cannot be committed": Committed(AGGREGATE, info.created, 21),
            "is of a stream that is gone": Committed(AGGREGATE, "2020-01-01T00:00:00Z", 20),
            "came on the subject of": Committed(COMMANDS, info.created, 20),
        }
        for words, record in wrong.items():
            answer = await hub.committed(record)
            assert answer["purged"] == 0
            assert words in answer["refused"]
        assert (await hub.aggregate()).first == 1


async def test_a_registrar_that_starts_again_reads_the_fleet_back(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar():
        await leaf.store(3)
        await leaf.announce()
        await hub.holds(leaf.domain, 3)
        held = await leaf.announce(confirmed=3)
    config = (await hub.aggregate()).config
    without_sources = {key: value for key, value in config.items() if key != "sources"}
    await hub.js.update_stream(without_sources)
    async with hub.registrar() as registrar:
        row = registrar.status()["leaves"][leaf.domain]
        assert (row["machine"], row["classes"]["normal"]["cursor"]) == (MACHINE, 3)
        await hub.holds(leaf.domain, await leaf.store())
        other = replace(await leaf.announcement(), machine="other")
        assert "belongs to machine" in await leaf.refused(other.encode())
        assert (await leaf.announce(held.checkpoint, confirmed=3)).agreed is True


async def test_a_registrar_ends_in_order_while_its_server_is_away(world: World) -> None:
    hub = await hub_of(world)
    async with hub.registrar() as registrar:
        await world.hub.kill()
        assert set(registrar.status()["leaves"]) == {"edge-1"}


async def test_a_checkpoint_that_the_hub_does_not_hold_is_not_agreed(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar():
        await leaf.store(3)
        await leaf.announce()
        await hub.holds(leaf.domain, 3)
        held = (await leaf.announce(confirmed=3)).checkpoint
        assert held is not None
        assert (await leaf.announce(held)).agreed is True
        assert (await leaf.announce(replace(held, message_id="another"))).agreed is False
        assert (await leaf.announce(replace(held, hub_seq=2))).agreed is False
        assert (await leaf.announce(replace(held, hub_seq=99))).agreed is False


async def test_a_purged_checkpoint_is_agreed_if_the_hub_remembers_it_and_unknown_if_not(world: World) -> None:
    hub, leaf = await hub_of(world), await LeafHand.make(world.leaf)
    async with hub.registrar():
        await leaf.store(3)
        await leaf.announce()
        await hub.holds(leaf.domain, 3)
        held = (await leaf.announce(confirmed=3)).checkpoint
        assert held is not None
        assert (await leaf.announce(held)).agreed is True
        await hub.holds(leaf.domain, await leaf.store(3))
        await hub.js.purge(AGGREGATE, 5)
    async with hub.registrar():
        assert (await leaf.announce(held)).agreed is True
        assert (await leaf.announce(replace(held, message_id="another"))).agreed is None


async def silent(hub: HubHand, domain: str) -> None:
    """Return when the source of a leaf has shown no sign of life for longer than a heartbeat."""

    async def reached() -> bool:
        return await active(hub, domain) > 3e9

    await until(reached, f"the source of {domain} is silent")


async def heartbeat(hub: HubHand, domain: str) -> None:
    """Return when the source of a leaf has shown another sign of life."""
    seen = [await active(hub, domain)]

    async def reached() -> bool:
        seen.append(await active(hub, domain))
        return seen[-1] < seen[-2]

    await until(reached, f"a heartbeat of {domain}")


async def active(hub: HubHand, domain: str) -> int:
    """Nanoseconds since the source of a leaf showed a sign of life, -1 if it never did."""
    name = leaf_stream(domain, "normal")
    return next(int(one["active"]) for one in (await hub.aggregate()).sources if one["name"] == name)
