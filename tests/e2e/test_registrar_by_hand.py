"""What somebody changes on the hub by hand is put right, and what it cost is told to the leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog

from agent.contract import Committed, leaf_stream
from agent.hub.registrar.aggregate import source
from agent.hub.registrar.announcements import Announcements
from agent.hub.registrar.purging import Purging
from agent.server import permissions
from tests.harness.registrar import KEEP, HubHand, LeafHand, flowing, hub_of
from tests.harness.servers import ServerPair, api, open_server_pair
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until


@pytest_asyncio.fixture
async def open_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServerPair]:
    """Servers of which the registrar's key may delete streams, as a person's may."""
    monkeypatch.setattr(permissions, "_STREAM_VERBS", (*permissions._STREAM_VERBS, "DELETE"))
    async with open_server_pair(tmp_path, "edge-1") as one:
        yield one


async def said(logs: list[Any], words: str) -> None:
    """Return when something was said, and fail the test if it was said more than once."""

    def found() -> list[Any]:
        return [one for one in logs if words in one["event"]]

    await until(lambda: bool(found()), f"it is said: {words}")
    assert len(found()) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config: {**config, "sources": []}, "TEL_edge-1_normal had been removed by hand"),
        (
            lambda config: {**config, "sources": [source("edge-1", "normal", "0000000000000")]},
            "TEL_edge-1_normal had been changed by hand",
        ),
        (
            lambda config: {**config, "sources": [*config["sources"], source("edge-9", "normal", "0" * 13)]},
            "TEL_edge-9_normal had been added by hand",
        ),
        (lambda config: {**config, "max_bytes": 1000_000}, "its max_bytes differed from"),
        (lambda config: {**config, "max_age": 3600 * 10**9}, "its max_age was not 0"),
    ],
    ids=["a source removed", "a source changed", "a source added", "another size", "an age"],
)
async def test_what_is_changed_by_hand_is_put_right_and_said_once(
    hub: HubHand, hand: LeafHand, change: Callable[[dict[str, Any]], dict[str, Any]], words: str
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with hub.registrar():
            await flowing(hub, hand, 3)
            config = (await hub.aggregate()).config
            await hub.js.update_stream(change(config))
            await said(logs, words)

            async def right() -> bool:
                return (await hub.aggregate()).config == config

            await until(right, "the configuration is as it was")
            await hub.holds(hand.domain, await hand.store(3))
    assert await hub.leaf_sequences(hand.domain, 1) == [1, 2, 3, 4, 5, 6]


async def test_an_aggregate_that_is_deleted_is_made_anew_and_its_leaf_is_told_to_begin_a_new_epoch(
    open_hub: ServerPair,
) -> None:
    hub, leaf = await hub_of(open_hub), await LeafHand.make(open_hub.leaf)
    with structlog.testing.capture_logs() as logs:
        async with hub.registrar():
            await flowing(hub, leaf, 3)
            held = await leaf.announce(confirmed=3)
            assert held.checkpoint is not None
            await api(hub.nc, f"STREAM.DELETE.{AGGREGATE}")
            await said(logs, f"{AGGREGATE} had been deleted by hand")
            await hub.holds(leaf.domain, await leaf.store(3))
            answer = await leaf.announce(held.checkpoint, confirmed=3)
            assert (answer.cursor, answer.agreed, answer.certain) == (0, False, True)
            assert (await leaf.announce()).agreed is False
            await leaf.next_epoch(start=1)
            assert (await leaf.announce()).agreed is None
            await hub.holds(leaf.domain, 6)
            answer = await leaf.announce(confirmed=6)
            assert (answer.cursor, answer.agreed, answer.certain) == (6, None, True)
    assert set(await hub.leaf_sequences(leaf.domain, 1)) == {1, 2, 3, 4, 5, 6}


async def test_an_aggregate_that_was_deleted_while_the_registrar_was_away_costs_a_new_epoch_too(
    open_hub: ServerPair,
) -> None:
    hub, leaf = await hub_of(open_hub), await LeafHand.make(open_hub.leaf)
    async with hub.registrar():
        await flowing(hub, leaf, 3)
        await leaf.announce(confirmed=3)
    await api(hub.nc, f"STREAM.DELETE.{AGGREGATE}")
    async with hub.registrar():
        answer = await leaf.announce(confirmed=3)
        assert (answer.cursor, answer.agreed) == (0, False)

        async def taken_in() -> bool:
            names = [one["name"] for one in (await hub.aggregate()).sources]
            return leaf_stream(leaf.domain, "normal") in names

        await until(taken_in, "the leaf is taken in again")


async def test_an_aggregate_that_is_deleted_between_two_looks_at_it_holds_nothing_of_the_epoch(
    open_hub: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leaf is taken in by what was seen a moment ago, and the answer tells of the new aggregate, into
    which data has flowed on."""
    hub, leaf = await hub_of(open_hub), await LeafHand.make(open_hub.leaf)
    look = Announcements._observe

    async def late(self: Announcements, *args: Any) -> Any:
        monkeypatch.setattr(Announcements, "_observe", look)
        last = await leaf.store(3)
        await api(hub.nc, f"STREAM.DELETE.{AGGREGATE}")
        await hub.holds(leaf.domain, last)
        return await look(self, *args)

    async with hub.registrar():
        await flowing(hub, leaf, 3)
        await leaf.announce()
        monkeypatch.setattr(Announcements, "_observe", late)
        answer = await leaf.announce()
        assert Announcements._observe is look
        assert (answer.cursor, answer.agreed) == (0, False)
        assert (await leaf.announce()).agreed is False, "and it stays so"


async def test_what_was_committed_of_an_aggregate_is_not_purged_of_the_one_that_took_its_place(
    open_hub: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is deleted between the look by which the purge was decided and the purge, and the new one holds what
    is in no table yet."""
    hub, leaf = await hub_of(open_hub), await LeafHand.make(open_hub.leaf)
    remember = Purging._remember

    async def late(self: Purging, *args: Any) -> None:
        await remember(self, *args)
        monkeypatch.setattr(Purging, "_remember", remember)
        await api(hub.nc, f"STREAM.DELETE.{AGGREGATE}")
        await hub.holds(leaf.domain, await leaf.store(2))

    async with hub.registrar():
        info = await flowing(hub, leaf, KEEP + 10)
        monkeypatch.setattr(Purging, "_remember", late)
        answer = await hub.committed(Committed(AGGREGATE, info.created, info.last))
        assert Purging._remember is remember
        assert "what was committed is of a stream that is gone" in answer["refused"]
    assert (await hub.leaf_sequences(leaf.domain, 1))[-2:] == [KEEP + 11, KEEP + 12]
