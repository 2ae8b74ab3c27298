"""The registrar while servers are killed, links are cut and what is committed is purged."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from agent.contract import COMMANDS, Checkpoint, Committed, leaf_stream
from agent.jetstream import JetStreamError, nanoseconds
from tests.harness.registrar import KEEP, MACHINE, HubHand, LeafHand, flowing
from tests.harness.servers import ServerPair
from tests.harness.streams import AGGREGATE, ask_again
from tests.harness.wait import until


async def test_an_aggregate_that_would_drop_messages_is_set_right(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        await flowing(hub, hand)
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


async def test_a_killed_hub_goes_on_where_it_was(servers: ServerPair, hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        await flowing(hub, hand, 10)
        await servers.hub.kill()
        last = await hand.store(10)
        await servers.hub.start()
        await hub.holds(hand.domain, last)
        assert await hub.leaf_sequences(hand.domain, 1) == list(range(1, last + 1))
        await servers.leaf.wait_linked()
        assert (await hand.announce(confirmed=last)).cursor == last


async def test_what_a_source_held_before_a_purge_is_remembered_when_its_leaf_comes_back(
    servers: ServerPair, hub: HubHand, hand: LeafHand
) -> None:
    async with hub.registrar():
        await flowing(hub, hand, 10)
        held = await hand.announce(confirmed=10)
        info = await hub.holds(hand.domain, await hand.store(2))
        await until(hand.acknowledged, "the hub's acknowledgements are back at the leaf")
        await hub.js.purge(AGGREGATE, info.last)
        await servers.leaf.stop()  # killed, it would forget its newest acknowledgements and send those again
        await servers.leaf.start()
        await heard_again(hub, hand.domain)
        await until(hand.answers, "the leaf's agent is connected again")
        answer = await hand.announce(held.checkpoint, confirmed=12)
        assert (answer.cursor, answer.certain, answer.agreed) == (12, True, True)
        await hub.holds(hand.domain, await hand.store(3))
        found = await hub.leaf_sequences(hand.domain, 1)
        assert found[-3:] == [13, 14, 15]
        assert set(found[:-3]) <= {11, 12}, "only the newest may come again"


async def test_a_registrar_that_starts_leaves_sources_that_flow_alone(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        await flowing(hub, hand)
    async with hub.registrar():
        await heartbeat(hub, hand.domain)
        assert (await hand.announce()).state == "flowing"
        assert hub.counted("petiole_source_readds_total") == 0


async def test_a_hub_that_was_killed_after_a_purge_keeps_its_cursor_and_loses_nothing(
    servers: ServerPair, hub: HubHand, hand: LeafHand
) -> None:
    async with hub.registrar():
        info = await flowing(hub, hand, 10)
        held = await hand.announce(confirmed=10)
        await hub.js.purge(AGGREGATE, info.last)
        await servers.hub.kill()
        await servers.hub.start()
        await servers.leaf.wait_linked()
        await heard_again(hub, hand.domain)
        answer = await hand.announce(held.checkpoint, confirmed=10)
        assert (answer.cursor, answer.message_id, answer.agreed) == (10, held.message_id, True)
        await hub.holds(hand.domain, await hand.store(5))
        found = await hub.leaf_sequences(hand.domain, 1)
        again = found[:-5]
        assert found[-5:] == [11, 12, 13, 14, 15]
        assert again == list(range(11 - len(again), 11)), "what comes again is the newest, in its order"


async def test_the_aggregate_is_purged_up_to_what_is_committed_less_a_margin(
    hub: HubHand, hand: LeafHand
) -> None:
    async with hub.registrar() as registrar:
        info = await flowing(hub, hand, 20)
        assert (await hub.committed(Committed(AGGREGATE, info.created, KEEP)))["purged"] == 0
        message = await hub.js.get_message(AGGREGATE, seq=12)
        assert message is not None
        committed = Committed(AGGREGATE, info.created, 12, nanoseconds(message.time) // 1000)
        assert await hub.committed(committed) == {"v": 1, "purged": 12 - KEEP}
        assert (await hub.aggregate()).first == 12 - KEEP + 1
        assert "Spark committed" in registrar.status()["aggregates"][AGGREGATE]["state"]
        await until(
            lambda: hub.counted("petiole_hub_seconds_to_full", stream=AGGREGATE) > 0, "it is seen to fill"
        )


async def test_what_was_held_is_told_after_a_purge_though_the_hub_forgot_it(
    hub: HubHand, hand: LeafHand
) -> None:
    async with hub.registrar(keep=0):
        info = await flowing(hub, hand, 20)
        await hand.pause("2100-01-01T00:00:00Z")
        assert (await hub.committed(Committed(AGGREGATE, info.created, 20)))["purged"] == 20
    await forget(hub)
    async with hub.registrar():
        answer = await hand.announce()
        assert (answer.cursor, answer.message_id) == (20, f"{hand.run}-normal-20")
        assert answer.certain


async def test_a_cursor_is_uncertain_after_a_purge_that_the_registrar_did_not_make(
    hub: HubHand, hand: LeafHand
) -> None:
    async with hub.registrar():
        await hand.announce()
    info = await hub.holds(hand.domain, await hand.store(20))
    await hand.pause("2100-01-01T00:00:00Z")
    await hub.js.purge(AGGREGATE, info.last)
    await forget(hub)
    async with hub.registrar():
        answer = await hand.announce()
        assert (answer.cursor, answer.certain) == (0, False)
        await hand.pause("2000-01-01T00:00:00Z")
        await hub.holds(hand.domain, await hand.store())
        answer = await hand.announce(confirmed=21)
        assert (answer.cursor, answer.certain) == (21, True)


async def forget(hub: HubHand) -> None:
    """Remove all sources and add them again: the hub forgets what it had of those that were purged."""
    config = (await hub.aggregate()).config
    await hub.js.update_stream({key: value for key, value in config.items() if key != "sources"})
    info = await hub.js.update_stream(config)
    assert [one.get("seq", 0) for one in info.sources] == [0]


async def test_nothing_is_purged_that_is_not_known_to_be_committed(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        info = await flowing(hub, hand, 20)
        wrong = {
            "ends at 20, so 21 cannot be committed": Committed(AGGREGATE, info.created, 21),
            "is of a stream that is gone": Committed(AGGREGATE, "2020-01-01T00:00:00Z", 20),
            "came on the subject of": Committed(COMMANDS, info.created, 20),
            "the hub was restored from a copy": Committed(AGGREGATE, info.created, 20, arrived=1),
        }
        for words, record in wrong.items():
            answer = await hub.committed(record)
            assert answer["purged"] == 0
            assert words in answer["refused"]
        assert (await hub.aggregate()).first == 1


async def test_a_registrar_that_starts_again_reads_the_fleet_back(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        await flowing(hub, hand, 3)
        held = await hand.announce(confirmed=3)
    config = (await hub.aggregate()).config
    without_sources = {key: value for key, value in config.items() if key != "sources"}
    await hub.js.update_stream(without_sources)
    async with hub.registrar() as registrar:
        row = registrar.status()["leaves"][hand.domain]
        assert (row["machine"], row["classes"]["normal"]["cursor"]) == (MACHINE, 3)
        await hub.holds(hand.domain, await hand.store())
        other = replace(await hand.announcement(), machine="other")
        assert "belongs to machine" in await hand.refused(other.encode())
        assert (await hand.announce(held.checkpoint, confirmed=3)).agreed is True


async def test_a_registrar_ends_in_order_while_its_server_is_away(servers: ServerPair, hub: HubHand) -> None:
    async with hub.registrar() as registrar:
        await until(lambda: set(registrar.status()["leaves"]) == {"edge-1"}, "the leaf is known")
        await servers.hub.kill()
        assert set(registrar.status()["leaves"]) == {"edge-1"}


async def test_a_purged_checkpoint_is_agreed_if_the_hub_remembers_one_as_new_and_not_otherwise(
    hub: HubHand, hand: LeafHand
) -> None:
    async with hub.registrar():
        await flowing(hub, hand, 3)
        held = (await hand.announce(confirmed=3)).checkpoint
        assert held is not None
        assert (await hand.announce(held)).agreed is True
        await hub.holds(hand.domain, await hand.store(3))
        await hub.js.purge(AGGREGATE, 5)
    async with hub.registrar():
        assert (await hand.announce(held)).agreed is True
        await hub.holds(hand.domain, await hand.store(3))
        await hub.js.purge(AGGREGATE, 9)
        unknown = replace(held, leaf_seq=8, message_id=f"{hand.run}-normal-8", hub_seq=8)
        answer = await hand.announce(unknown)
        assert answer.agreed is False, "a record that does not know of it was restored from before it"
        assert answer.fallback is not None
        assert answer.fallback.leaf_seq == 6


async def test_a_purge_does_not_hide_that_a_stream_was_restored_without_its_records(
    servers: ServerPair, hub: HubHand, tmp_path: Path
) -> None:
    """It is filled beyond what the records name before a registrar or the leaf's agent has looked."""
    leaf, copy = await LeafHand.make(servers.leaf), tmp_path / "copy"
    async with hub.registrar():
        await flowing(hub, leaf, 3)
    store = next(servers.hub.config.store_dir.rglob(f"streams/{AGGREGATE}"))
    await servers.hub.stop()
    shutil.copytree(store, copy)
    await servers.hub.start()
    async with hub.registrar():
        await hub.holds(leaf.domain, await leaf.store(3))
        agreed = (await leaf.announce(confirmed=6)).checkpoint
        assert agreed is not None
        assert (await leaf.announce(agreed)).agreed is True
        await until(leaf.acknowledged, "the leaf knows that the hub holds all")
    await servers.hub.kill()
    shutil.rmtree(store)
    shutil.copytree(copy, store)
    await servers.hub.start()
    await ask_again(hub.nc, servers.leaf)
    info = await hub.holds(leaf.domain, await leaf.store(4))
    assert await hub.leaf_sequences(leaf.domain, 1) == [1, 2, 3, 7, 8, 9, 10], "and every cursor looks well"
    async with hub.registrar(keep=0):
        assert (await hub.committed(Committed(AGGREGATE, info.created, info.last)))["purged"] == info.last
        answer = await leaf.announce(agreed)
        assert (answer.agreed, answer.cursor, answer.fallback) == (False, 0, None)
        await leaf.next_epoch(1)
        await leaf.announce()
        await hub.holds(leaf.domain, 10)
        assert await hub.leaf_sequences(leaf.domain, info.last + 1) == list(range(1, 11))


async def heartbeat(hub: HubHand, domain: str) -> None:
    """Return when the source of a leaf has shown another sign of life."""
    seen = [await active(hub, domain)]

    async def reached() -> bool:
        seen.append(await active(hub, domain))
        return seen[-1] < seen[-2]

    await until(reached, f"a heartbeat of {domain}")


async def heard_again(hub: HubHand, domain: str) -> None:
    """Return when the source of a leaf was added again or has shown a sign of life from now on by itself."""
    began = time.monotonic()

    async def reached() -> bool:
        if hub.counted("petiole_source_readds_total") >= 1:
            return True
        try:
            return 0 <= await active(hub, domain) < (time.monotonic() - began) * 1e9
        except JetStreamError:
            return False

    await until(reached, f"the source of {domain} flows again")


async def active(hub: HubHand, domain: str) -> int:
    """Nanoseconds since the source of a leaf showed a sign of life, -1 if it never did or is being added
    again."""
    name = leaf_stream(domain, "normal")
    sources = (await hub.aggregate()).sources
    return next((int(one["active"]) for one in sources if one["name"] == name), -1)


@pytest.mark.parametrize("contradicted", [False, True], ids=["its newest message", "a place in its record"])
async def test_a_class_that_is_dropped_while_a_purge_looks_at_it_holds_up_no_purge(
    hub: HubHand, hand: LeafHand, contradicted: bool
) -> None:
    async with hub.registrar(keep=0) as registrar:
        await flowing(hub, hand, 3)
        info = await hub.holds(hand.domain, await hand.store(3))
        if contradicted:
            await hand.announce()
            record = registrar._fleet.record(hand.domain, hand.cls)
            assert record is not None
            other = Checkpoint(1, "not there", AGGREGATE, 1)
            registrar._fleet.put(hand.domain, hand.cls, msgspec.structs.replace(record, checkpoint=other))
        ask, looked_at = registrar._streams.home.get_message, "seq" if contradicted else "last_by_subject"
        dropped: list[str | None] = []

        async def late(*args: Any, **how: Any) -> Any:
            if looked_at in how and not dropped:
                announce = replace(await hand.announcement(), classes={}, checkpoint={})
                dropped.append((await hand.say(announce.encode())).refused)
            return await ask(*args, **how)

        registrar._streams.home.get_message = late  # type: ignore[method-assign]
        answer = await hub.committed(Committed(AGGREGATE, info.created, info.last))
        assert dropped == [None]
        assert answer["purged"] == info.last
        assert (await hand.announce()).cursor == 6, "and it is taken in when it comes back"


async def test_a_purge_that_fails_is_answered_and_holds_up_no_later_one(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar(keep=0) as registrar:
        await flowing(hub, hand, 3)
        info = await hub.holds(hand.domain, await hand.store(3))
        ask = registrar._streams.home.get_message

        async def fault(*_: Any, **__: Any) -> Any:
            registrar._streams.home.get_message = ask  # type: ignore[method-assign]
            raise LookupError("a fault of the registrar's own")

        registrar._streams.home.get_message = fault  # type: ignore[method-assign]
        committed = Committed(AGGREGATE, info.created, info.last)
        with structlog.testing.capture_logs() as logs:
            assert "its log says how" in (await hub.committed(committed))["refused"]
        assert [one["event"] for one in logs if one["log_level"] == "error"] == ["purge failed"]
        assert (await hub.committed(committed))["purged"] == info.last
