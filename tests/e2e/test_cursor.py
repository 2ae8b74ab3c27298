"""The registrar tells a leaf which of its messages the hub holds, as often as senders wait for that."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agent.contract import (
    CursorAnswer,
    CursorRequest,
    cursor_subject,
    direct_subject,
    new_epoch,
    new_run,
    parse_cursor_answer,
)
from agent.hub.registrar.held_messages import LOOK_SECONDS, HeldMessages
from tests.harness.registrar import MACHINE, HubHand, LeafHand, flowing
from tests.harness.wait import until


async def asked(leaf: LeafHand, data: bytes) -> CursorAnswer:
    """The answer to whatever is asked."""
    return parse_cursor_answer((await leaf.nc.request(cursor_subject(leaf.domain), data, timeout=30)).data)


async def told(leaf: LeafHand, question: CursorRequest, last: int) -> None:
    """Return when the answer is the batch at a sequence of the leaf's."""

    async def reached() -> bool:
        place = (await asked(leaf, question.encode())).held.get("normal")
        if place is None or place.leaf_seq < last:
            return False
        return (place.leaf_seq, place.message_id) == (last, f"{leaf.run}-normal-{leaf.sent}")

    await until(reached, f"the hub says that it holds {last}")


async def test_the_newest_batch_that_the_hub_holds_is_told(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        question = CursorRequest(MACHINE, hand.run, {"normal": hand.epoch})
        assert (await asked(hand, question.encode())).refused == "'edge-1' has not been taken in"
        await hand.announce()
        assert (await asked(hand, question.encode())).held == {}
        for _ in range(3):
            last = await hand.store(5)
            await told(hand, question, last)
        direct = await hand.js.publish(direct_subject("edge-1", "normal", "pump", "bar"), b"1")
        await hub.holds(hand.domain, direct)
        await asyncio.sleep(2 * LOOK_SECONDS)  # the look before is shared for so long
        assert (await asked(hand, question.encode())).held["normal"].leaf_seq == last, "one without an id"


async def test_a_question_that_is_not_of_the_present_link_is_not_answered(
    hub: HubHand, hand: LeafHand
) -> None:
    async with hub.registrar():
        await flowing(hub, hand, 5)
        question = CursorRequest(MACHINE, hand.run, {"normal": hand.epoch})
        assert (await asked(hand, question.encode())).held
        for other in (replace(question, run=new_run()), replace(question, machine="0123456789abcdef")):
            assert "has to announce itself first" in str((await asked(hand, other.encode())).refused)
        for epochs in ({"normal": new_epoch()}, {"other": hand.epoch}):
            assert (await asked(hand, replace(question, epochs=epochs).encode())).held == {}
        assert "not JSON" in str((await asked(hand, b"{")).refused)
        assert "above the limit" in str((await asked(hand, b" " * 5000)).refused)
        assert (await asked(hand, question.encode())).held, "and it goes on answering"


async def test_a_question_on_which_the_registrar_fails_does_not_end_it(
    hub: HubHand, hand: LeafHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hub.registrar():
        await flowing(hub, hand, 5)
        question = CursorRequest(MACHINE, hand.run, {"normal": hand.epoch})

        async def fail(*_: object) -> None:
            raise KeyError("lost during the look")

        with monkeypatch.context() as patch:
            patch.setattr(HeldMessages, "newest", fail)
            assert "failed on this question" in str((await asked(hand, question.encode())).refused)
        assert (await asked(hand, question.encode())).held, "it goes on answering"
