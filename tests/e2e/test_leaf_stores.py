"""The leaf's agent when a store, a consumer or its state is lost or put back: a new epoch comes first."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec import structs

from agent.base.files import SlotFile
from agent.base.metrics import Metrics
from agent.config import Config
from agent.contract import LostStream, link_consumer
from agent.jetstream import JetStream, UnavailableError
from agent.leaf.events import EpochBegun, Events
from agent.leaf.link.act import Trimmer
from agent.leaf.link.guard import EpochReason, NewEpoch
from agent.leaf.link.prepare import prepare_stream
from agent.leaf.state import State
from agent.leaf.state_file import StateFile
from hub_jobs.audit.ledgers import LostStores
from tests.harness.agents import CLASS, Agent, StreamProbe, agent, chunk, insist, probe_stream
from tests.harness.registrar import LeafHand
from tests.harness.servers import ServerPair
from tests.harness.wait import until


async def new_epoch_first(probe: StreamProbe, one: Agent, old: str) -> None:
    """The epoch is another one than `old` and its consumer was there before the first batch
    of this run was stored."""
    await until(lambda: one.state().epochs[CLASS] != old, "there is a new epoch")
    name = link_consumer(one.state().epochs[CLASS])
    assert name in await probe.link_consumers()
    made = (await probe.js.consumer_info(probe.stream, name)).created
    mine = [batch for batch in await probe.batches() if "after/0" in batch.texts]
    assert len(mine) == 1
    assert made < mine[0].time


async def test_a_store_that_is_wiped_while_the_agent_is_down_gets_a_new_epoch_first(
    servers: ServerPair, config: Config
) -> None:
    async with agent(config) as one:
        await one.submit(chunk("before", position="7"), "tail")
        await one.stop()
        old, known = one.state().epochs[CLASS], one.state().acked[CLASS]
    await servers.leaf.wipe()
    async with agent(config) as one:
        await one.submit(chunk("after"))
        await new_epoch_first(await probe_stream(servers.leaf), one, old)
        record = (await (await probe_stream(servers.leaf)).ledgers())[0]
        lost = LostStream(known.created, known.seq, at=known.at)
        assert record.lost == (lost,), "what is of no run is named by this"
        assert (await one.leaf.intake.position("tail")).position == "7", "the lost batch is not read in twice"


async def test_a_store_that_was_put_back_gets_a_new_epoch_first(
    servers: ServerPair, config: Config, tmp_path: Path
) -> None:
    async with agent(config) as one:
        await one.submit(chunk("before"))
        await servers.leaf.back_up(tmp_path / "copy")
        await insist(one, chunk("lost", key="lost"))
        old = one.leaf._state.current.epochs[CLASS]
        await servers.leaf.restore(tmp_path / "copy")
        await insist(one, chunk("after", key="after"))
        probe = await probe_stream(servers.leaf)
        await new_epoch_first(probe, one, old)
        assert await probe.texts() == ["before/0", "after/0"]
        assert one.epochs("stream_put_back") == 1


async def test_what_devices_published_to_a_store_that_an_older_one_replaced_is_named(
    servers: ServerPair, config: Config, tmp_path: Path
) -> None:
    async with agent(config) as one:
        kept, last = await _copied_and_filled(servers, one, tmp_path / "copy")
        await servers.leaf.restore(tmp_path / "copy")
        await until(lambda: one.epochs("stream_put_back") == 1, "there is a new epoch")
        await one.ready()
        await one.stop()
    await _names(servers, kept, last)


@pytest.mark.parametrize("newer", [0, 7, 40], ids=["none", "fewer than were lost", "more than were lost"])
async def test_what_devices_publish_to_an_older_store_before_the_agent_looks_is_not_taken_for_its_own(
    servers: ServerPair, config: Config, tmp_path: Path, newer: int
) -> None:
    async with agent(config) as one:
        kept, last = await _copied_and_filled(servers, one, tmp_path / "copy")
        await one.crash()
    await servers.leaf.restore(tmp_path / "copy")
    if newer:
        await _publish(servers, newer)
    async with agent(config) as one:
        assert one.epochs("stream_put_back") == 1
        await one.stop()
    await _names(servers, kept, last)


async def test_a_store_that_was_put_back_after_the_clock_was_set_back_is_not_said_to_hold_more_than_it_does(
    servers: ServerPair, config: Config, tmp_path: Path
) -> None:
    async with agent(config) as one:
        kept, last = await _copied_and_filled(servers, one, tmp_path / "copy")
        await one.crash()
    state = StateFile(one.state_path, one.state())
    acked = state.current.acked[CLASS]
    state.current.acked[CLASS] = structs.replace(acked, at=acked.at + 3_600 * 10**9)
    await state.save()
    await servers.leaf.restore(tmp_path / "copy")
    await _publish(servers, 40)
    async with agent(config) as one:
        assert one.epochs("stream_put_back") == 1
        await one.stop()
    (lost,) = (await (await probe_stream(servers.leaf)).ledgers())[-1].lost
    assert lost.last == last
    assert lost.kept is not None
    assert lost.kept <= kept


async def _copied_and_filled(servers: ServerPair, one: Agent, copy: Path) -> tuple[int, int]:
    """A copy of the leaf's store, to which devices then publish until the agent has seen it; the last
    sequence of the copy, and that of the store."""
    await one.submit(chunk("before"))
    probe = await probe_stream(servers.leaf)
    kept = (await probe.js.stream_info(probe.stream)).last
    await servers.leaf.back_up(copy)
    await one.ready()
    last = await _publish(servers, 20)
    await until(lambda: one.state().acked[CLASS].last == last, "the agent has seen them")
    return kept, last


async def _publish(servers: ServerPair, count: int) -> int:
    """A device's messages, each acknowledged; the sequence of the last."""
    device = (await servers.leaf.connect("device")).jetstream()
    acks = [await device.publish(f"tel.edge-1.{CLASS}.pump-1.flow", b"%d" % n) for n in range(count)]
    return acks[-1].seq


async def _names(servers: ServerPair, kept: int, last: int) -> None:
    """The newest ledger record names what stood behind the one sequence up to the other."""
    record = (await (await probe_stream(servers.leaf)).ledgers())[-1]
    (lost,) = record.lost
    assert lost.at
    assert replace(lost, at=0) == LostStream(record.stream.created, last, kept)


async def test_a_copy_that_is_restored_twice_is_told_of_as_two_losses_though_as_much_was_lost_each_time(
    servers: ServerPair, config: Config, tmp_path: Path
) -> None:
    copy, source = tmp_path / "copy", ("TEL_edge-1_normal", "abc")
    async with agent(config) as one:
        kept, last = await _copied_and_filled(servers, one, copy)
        await asyncio.to_thread(shutil.copytree, copy, tmp_path / "again")
        await servers.leaf.restore(copy)
        await until(lambda: one.epochs("stream_put_back") == 1, "there is a new epoch")
        await one.ready()
        assert await _publish(servers, last - kept) == last
        await until(lambda: one.state().acked[CLASS].last == last, "the agent has seen them")
        await servers.leaf.restore(tmp_path / "again")
        await until(lambda: one.epochs("stream_put_back") == 2, "there is another epoch")
        await one.ready()
        await one.stop()
    record = (await (await probe_stream(servers.leaf)).ledgers())[-1]
    told = LostStores()
    told.add(record, source, (1, record.stream.last))
    (ends,) = told.ends(source).values()
    assert [(end.kept, end.last) for end in ends] == [(kept, last)] * 2
    assert ends[0].at < ends[1].at


async def test_a_restore_is_told_of_once_where_no_state_was_written_since_and_the_agent_was_killed(
    servers: ServerPair, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, told = ("TEL_edge-1_normal", "abc"), LostStores()
    async with agent(config) as one:
        kept, seen = await _copied_and_filled(servers, one, tmp_path / "copy")
        with monkeypatch.context() as full:
            full.setattr("agent.leaf.state_file.write_private", _no_space)
            full.setattr(SlotFile, "write", _no_space)
            last = await _publish(servers, 10)
            await until(lambda: one.leaf._state.current.acked[CLASS].last == last, "the agent has seen them")
            await servers.leaf.restore(tmp_path / "copy")
            await until(lambda: one.epochs("stream_put_back") == 1, "there is a new epoch")
            await one.ready()
            await insist(one, chunk("after", key="after"))
            await one.leaf._ledger_publisher._publish(one.leaf._ledger_publisher._js, CLASS, final=False)
            await one.crash()
    assert one.state().acked[CLASS].last == seen
    async with agent(config) as one:
        assert one.epochs("stream_put_back") == 1, "the file knows nothing of the first epoch"
        await one.stop()
    for record in await (await probe_stream(servers.leaf)).ledgers():
        told.add(record, source, (record.stream.last, record.stream.last))
    assert [(end.kept, end.last) for ends in told.ends(source).values() for end in ends] == [(kept, last)]


def _no_space(*_arguments: object) -> NoReturn:
    raise OSError(28, "No space left on device")


class Unanswered(JetStream):
    """Whose server does not answer when a consumer is to be deleted."""

    async def delete_consumer(self, stream: str, name: str) -> bool:
        raise UnavailableError(f"no answer about {name} of {stream}")


async def test_a_store_put_back_is_told_of_again_where_its_old_link_consumer_could_not_be_deleted(
    servers: ServerPair, probe: StreamProbe, config: Config
) -> None:
    async with agent(config) as one:
        await one.submit(chunk("before"))
        await one.stop()
    state = StateFile(one.state_path, one.state())
    known, old = state.current.acked[CLASS], state.current.epochs[CLASS]
    nc = await servers.leaf.connect("agent")
    klass = config.class_[0]
    state.current.acked[CLASS] = structs.replace(known, top=known.last + 10)
    begun: list[NewEpoch] = []
    with pytest.raises(UnavailableError):
        await prepare_stream(Unanswered(nc), config.domain, klass, state, begun=begun.append)
    assert begun == []
    await prepare_stream(JetStream(nc), config.domain, klass, state, begun=begun.append)
    assert [epoch.reason for epoch in begun] == [EpochReason.RESTORED]
    lost = LostStream(known.created, known.last + 10, known.last, known.at)
    assert state.current.lost == {CLASS: [lost]}, "a restore that is found twice is one"
    assert state.current.epochs[CLASS] != old
    assert await probe.link_consumers() == [link_consumer(state.current.epochs[CLASS])]


async def test_a_position_is_the_newest_that_was_stored_whatever_store_and_state_remember(
    servers: ServerPair, config: Config, tmp_path: Path
) -> None:
    probe = await probe_stream(servers.leaf)
    async with agent(config) as one:
        await one.submit(chunk("a", position="1"), "tail")
        await servers.leaf.back_up(tmp_path / "copy")
        await insist(one, chunk("b", key="b", position="2"))
        await one.submit(chunk("b", position="2"), "tail")
        await servers.leaf.restore(tmp_path / "copy")
        await until(lambda: one.epochs("stream_put_back") == 1, "there is a new epoch")
        assert (await one.leaf.intake.position("tail")).position == "2", "the store is older than the state"
        remembered = one.state_path.read_bytes()
        await one.submit(chunk("c", position="3"), "tail")
        assert [batch.position for batch in await probe.batches()] == ["1", "3"]
        await one.crash()
        one.state_path.write_bytes(remembered)
    async with agent(config) as one:
        assert (await one.leaf.intake.position("tail")).position == "3", "the state is older than the store"


async def test_a_link_consumer_that_was_deleted_is_made_anew_without_the_hub(
    probe: StreamProbe, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.leaf.link.decide.ANSWER_WITHIN", 0.5)  # for which the hub is waited for
    async with agent(config) as one:
        await one.submit(chunk("before"))
        await one.stop()
        old = one.state().epochs[CLASS]
    await probe.js.delete_consumer(probe.stream, link_consumer(old))
    async with agent(config) as one:
        await until(lambda: one.state().epochs[CLASS] != old, "there is a new epoch")
        assert link_consumer(one.state().epochs[CLASS]) in await probe.link_consumers()


async def test_a_state_file_that_was_lost_means_a_new_epoch_first(probe: StreamProbe, config: Config) -> None:
    async with agent(config) as one:
        await one.submit(chunk("before", key="k", position="7"), "tail")
        await one.stop()
        old = one.state().epochs[CLASS]
        one.state_path.unlink()
    async with agent(config) as one:
        await one.submit(chunk("before", key="k", position="7"), "tail")
        assert (await one.leaf.intake.position("tail")).position == "7"
        await one.submit(chunk("after"))
        await new_epoch_first(probe, one, old)
        assert link_consumer(old) in await probe.link_consumers(), "without a registrar it still flows"
        assert await probe.texts() == ["before/0", "after/0"]


async def test_an_epoch_that_could_not_be_saved_is_saved_when_the_disk_takes_it(
    probe: StreamProbe, config: Config, monkeypatch: pytest.MonkeyPatch
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
        assert await probe.link_consumers() == [link_consumer(one.state().epochs[CLASS])]


async def test_what_was_saved_of_a_stream_says_nothing_of_the_one_that_took_its_place(
    servers: ServerPair, tmp_path: Path
) -> None:
    """The disk is full, so that only those messages may go of which all is saved already."""
    leaf, full = await LeafHand.make(servers.leaf), False

    async def prepare() -> None:
        if full:
            raise OSError("no room")

    async def note(*_: object) -> None:
        return

    state = StateFile(tmp_path / "state.json", State(1, "m", leaf.domain))
    trimmer = Trimmer(state, Metrics(), Events(), allowed=lambda: True, prepare=prepare, note=note)

    async def trimmed(confirmed: int) -> int:
        """The first message that is left."""
        await trimmer.trim(leaf.js, CLASS, await leaf.js.stream_info(leaf.stream), confirmed)
        return (await leaf.js.stream_info(leaf.stream)).first

    await leaf.store(10)
    assert await trimmed(5) == 5
    full = True
    assert await trimmed(8) == 8
    trimmer.epoch_begun(EpochBegun(CLASS))
    assert await trimmed(10) == 8
    full = False
    assert await trimmed(10) == 10
