"""A leaf's stream whose server created it anew over its messages keeps its identity on both sides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec import structs

from agent.config import Config
from agent.contract import H_SOURCE, Ledger, Readings, StreamState, leaf_stream, new_run
from agent.jetstream import JetStream, RawMessage
from agent.leaf.link.identity import recorded_identity
from hub_jobs.source.streams import made_again, name_hash, parse_source
from tests.harness.agents import CLASS, Agent, agent, chunk, insist, probe_stream, registrar
from tests.harness.servers import Leaf, ServerPair
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until

STREAM = leaf_stream("edge-1", CLASS)


async def pass_over(leaf: Leaf) -> None:
    """The power goes while the stream's metadata are written, and comes back."""
    await leaf.kill()
    (leaf.config.store_dir / "jetstream" / "PETIOLE" / "streams" / STREAM / "meta.inf").write_bytes(b"")
    await leaf.start()


async def publish(leaf: Leaf, count: int) -> int:
    """Messages of a device; the sequence of the last."""
    device = (await leaf.connect("device")).jetstream()
    return [await device.publish(f"tel.edge-1.{CLASS}.pump-1.flow", b"1") for _ in range(count)][-1].seq


async def made_at(leaf: Leaf) -> str:
    """When the server says that it created the stream."""
    probe = await probe_stream(leaf)
    return (await probe.js.stream_info(STREAM)).created


async def _nothing(one: Agent, leaf: Leaf) -> None:
    return


async def _without_state(one: Agent, leaf: Leaf) -> None:
    for path in one.config.state_dir.glob("state*"):
        path.unlink()


async def _without_ledger(one: Agent, leaf: Leaf) -> None:
    probe = await probe_stream(leaf)
    await probe.js.purge(STREAM, 1)
    assert await probe.ledgers() == []


@pytest.mark.parametrize("loss", [_nothing, _without_state, _without_ledger])
async def test_a_stream_that_is_created_anew_over_its_messages_is_the_one_before(
    servers: ServerPair, config: Config, tmp_path: Path, loss: Callable[[Agent, Leaf], Awaitable[None]]
) -> None:
    async with registrar(servers, tmp_path), agent(config) as one:
        await one.submit(chunk("before"))
        last = await publish(servers.leaf, 3)
        await until(lambda: one.state().acked[CLASS].top == last, "the agent has seen them")
        await one.crash()
        first = await made_at(servers.leaf)
        await loss(one, servers.leaf)
        await pass_over(servers.leaf)
        async with agent(config) as two:
            await two.submit(chunk("after"))
            assert two.epochs("stream_recreated") == 0
            again = await made_at(servers.leaf)
            assert again != first, "its server does not know the stream"
            record = (await (await probe_stream(servers.leaf)).ledgers())[-1]
            assert (record.stream.created, record.lost) == (first, ())
            await at_hub(servers, {(STREAM, name_hash(again)): name_hash(first)})
            await two.stop()
        async with agent(config) as three:
            assert three.epochs("stream_recreated") == 0, "the next run knows it by its state"
            assert three.state().acked[CLASS].created == first


async def at_hub(servers: ServerPair, made: dict[tuple[str, str], str]) -> None:
    """The aggregate says so, and its newest message is from the stream that was created anew."""
    js = JetStream(await servers.hub.connect("registrar"))
    subject = f"tel.edge-1.{CLASS}._batch.http"

    async def newest() -> tuple[str, str]:
        message = await js.get_message(AGGREGATE, last_by_subject=subject)
        assert message is not None
        source = parse_source(message.headers[H_SOURCE].encode())
        return source.stream, source.identity

    async def is_from_it() -> bool:
        return await newest() == next(iter(made))

    await until(is_from_it, "a message of the stream that was created anew is at the hub")
    assert made_again((await js.stream_info(AGGREGATE)).config["metadata"]) == made


async def test_a_store_that_comes_back_after_another_one_took_its_place_lacks_its_end(
    servers: ServerPair, config: Config, tmp_path: Path
) -> None:
    async with agent(config) as one:
        await one.submit(chunk("before"))
        probe = await probe_stream(servers.leaf)
        known = await probe.js.stream_info(STREAM)
        await servers.leaf.back_up(tmp_path / "copy")
        await one.ready()
        last = await publish(servers.leaf, 20)
        await until(lambda: one.state().acked[CLASS].last == last, "the agent has seen them")
        await servers.leaf.wipe()
        await until(lambda: one.epochs("stream_recreated") == 1, "there is a new epoch")
        await insist(one, chunk("between", key="between"))
        await one.crash()
    await servers.leaf.restore(tmp_path / "copy")
    await publish(servers.leaf, 40)
    async with agent(config) as one:
        record = (await (await probe_stream(servers.leaf)).ledgers())[-1]
    assert record.stream.created == known.created
    assert [(end.last, end.kept) for end in record.lost if end.created == known.created] == [
        (last, None),
        (last, known.last),
    ]


def test_a_ledger_record_that_knows_of_messages_behind_it_was_copied_from_another_stream() -> None:
    ledger = Ledger("edge-1", CLASS, new_run(), 0, (), Readings(), StreamState("then", 1, 7))
    record = RawMessage(8, "", {}, ledger.encode(), "")
    assert recorded_identity(record) == "then"
    assert recorded_identity(structs.replace(record, seq=7)) == ""
    assert recorded_identity(structs.replace(record, data=b"{}")) == ""
    assert recorded_identity(None) == ""
