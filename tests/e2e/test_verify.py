"""The hub tells which batches it lacks, and never calls lacking what was only purged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from agent.contract import (
    H_MESSAGE_ID,
    Committed,
    VerifiedRun,
    VerifyAnswer,
    VerifyRequest,
    batch_subject,
    parse_verify_answer,
    verify_subject,
)
from agent.hub.registrar import verify
from tests.harness.registrar import KEEP, HubHand, LeafHand, flowing, lose, losing_world
from tests.harness.servers import ServerPair
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until


@pytest_asyncio.fixture
async def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServerPair]:
    """Two leaves and a hub that can lose messages."""
    async with losing_world(tmp_path, monkeypatch, "edge-1", "edge-2") as one:
        yield one


async def asked(leaf: LeafHand, request: VerifyRequest | bytes) -> VerifyAnswer:
    data = request if isinstance(request, bytes) else request.encode()
    return parse_verify_answer((await leaf.nc.request(verify_subject(leaf.domain), data, timeout=30)).data)


async def test_the_batches_that_were_lost_at_the_hub_are_named(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        await flowing(hub, hand, 10)
        request = VerifyRequest("normal", hand.run, 1, 12)
        answer = await asked(hand, request)
        assert (answer.lacking, answer.found.held) == (((11, 12),), ((1, 10),))

        await lose(hub, 3, 4, 10)
        answer = await asked(hand, request)
        assert answer.refused is None
        assert answer.complete
        assert answer.found.held == ((1, 2), (5, 9))
        assert answer.lacking == ((3, 4), (10, 12))
        assert answer.unknown == ()
        assert (answer.stream, answer.end, answer.cursor) == (AGGREGATE, 10, 10)
        assert (await asked(hand, replace(request, last=None))).last == 9


async def test_what_the_hub_lacks_of_a_class_at_rest_is_named(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        await flowing(hub, hand, 10)

        async def rests() -> bool:
            said = await hand.announcement()
            idle = {"normal": replace(said.classes["normal"], idle=True)}
            answer = await hand.say(replace(said, classes=idle).encode())
            return answer.refused is None and answer.classes["normal"].state == "resting"

        async def has_no_source() -> bool:
            return not (await hub.aggregate()).sources

        await until(rests, "the class rests")
        await until(has_no_source, "its source is gone")
        await lose(hub, 3)
        answer = await asked(hand, VerifyRequest("normal", hand.run, 1, 10))
        assert answer.refused is None
        assert (answer.lacking, answer.cursor) == (((3, 3),), 10)


async def test_what_was_purged_is_told_apart_from_what_is_lacking(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        info = await flowing(hub, hand, 20)
        await lose(hub, 18)
        committed = Committed(AGGREGATE, info.created, 15)
        assert (await hub.committed(committed))["purged"] == 15 - KEEP
        answer = await asked(hand, VerifyRequest("normal", hand.run, 1, 20))
        assert (answer.lacking, answer.unknown) == ((), ((1, 10), (18, 18)))
        assert answer.found.edge is not None
        assert (answer.found.edge.run, answer.found.edge.seq) == (hand.run, 11)


async def test_a_batch_in_the_name_of_this_leaf_from_anywhere_else_does_not_count(
    servers: ServerPair, hub: HubHand
) -> None:
    one, other = [await LeafHand.make(leaf) for leaf in servers.leaves.values()]
    async with hub.registrar():
        await one.announce()
        await other.announce()
        other.run = one.run
        await hub.holds(other.domain, await other.store(3))
        await hub.holds(one.domain, await one.store(2))
        assert (await asked(one, VerifyRequest("normal", one.run, 1, 3))).lacking == ((3, 3),)


async def test_a_look_that_takes_too_long_says_how_far_it_came_and_goes_on_from_there(
    hub: HubHand, hand: LeafHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.jetstream.readers._PULL", 4)
    async with hub.registrar():
        await flowing(hub, hand, 10)
        await lose(hub, 6)
        request, pages = VerifyRequest("normal", hand.run, 1, 10), []
        with monkeypatch.context() as slow:
            slow.setattr(verify, "_LOOK_SECONDS", -1.0)
            answer = await asked(hand, request)
            assert (answer.complete, answer.found.next, answer.lacking) == (False, 1, ())
        # A look that has time for one pull: it is asked after each whether it was enough.
        slept = iter([0.0, 0.0, 1.0] * 10)
        with monkeypatch.context() as slow:
            slow.setattr(verify, "_LOOK_SECONDS", 0.5)
            slow.setattr(verify, "loop_time", lambda: next(slept))
            while not answer.complete:
                answer = await asked(hand, replace(request, found=answer.found))
                pages.append(answer.found.next)
        assert pages == [5, 10, 11]
        assert answer.lacking == ((6, 6),)


async def test_a_purge_while_the_hub_looks_makes_it_begin_again(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        info = await flowing(hub, hand, 20)
        looked = VerifiedRun(held=((1, 4),), next=5)
        await hub.committed(Committed(AGGREGATE, info.created, 15))
        answer = await asked(hand, VerifyRequest("normal", hand.run, 1, 20, looked))
        assert answer.complete
        assert (answer.found.held, answer.lacking, answer.unknown) == (((11, 20),), (), ((1, 10),))


async def test_what_cannot_be_answered_is_refused_in_words_and_the_next_is_answered(
    hub: HubHand, hand: LeafHand
) -> None:
    async with hub.registrar():
        request = VerifyRequest("normal", hand.run)
        assert "not taken in yet" in str((await asked(hand, request)).refused)
        await hand.announce()
        assert "not in the hub's configuration" in str((await asked(hand, replace(request, cls="x"))).refused)
        assert "not JSON" in str((await asked(hand, b"{")).refused)
        assert "above the limit" in str((await asked(hand, b" " * (verify.MAX_REQUEST + 1))).refused)
        assert (await asked(hand, request)).refused is None


async def test_the_registrar_leaves_no_consumer_behind(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        await hand.announce()
        await hand.js.publish(batch_subject(hand.domain, "normal", "http"), b"", {H_MESSAGE_ID: "x"})
        await asked(hand, VerifyRequest("normal", hand.run))
        state = (await hub.js.api(f"STREAM.INFO.{AGGREGATE}"))["state"]
        assert state["consumer_count"] == 0
