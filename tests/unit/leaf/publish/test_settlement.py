"""The outcome of a chunk, and those who wait for it: tasks, and senders that hand in without one."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from agent.base.clock import Instant
from agent.base.metrics import Metrics
from agent.contract import Clock, make_request
from agent.leaf.acks import HubAckWaiters
from agent.leaf.intake import Chunk, Level, RefusalReason, RefusedError, UnknownOutcomeError
from agent.leaf.ledger import ClassLedger
from agent.leaf.publish.accumulator import BatchLimits
from agent.leaf.publish.publisher import PATIENCE, Publisher
from agent.leaf.publish.settlement import Answers, Deadlines, PendingAnswer, Settlement

ONE = Chunk(b"{}\n", 1)


async def test_all_that_wait_hear_the_outcome_and_one_that_gave_up_takes_nothing_from_the_others() -> None:
    settlement, loop = Settlement(), asyncio.get_running_loop()
    first, second = settlement.wait(loop), settlement.wait(loop)
    first.cancel()
    refusal = ValueError("full")
    settlement.set_result(refusal)
    assert await second is refusal
    assert settlement.done()
    assert settlement.result() is refusal


async def test_a_wait_ends_at_its_deadline_and_not_before() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    early, late = Settlement().wait(loop), Settlement().wait(loop)
    deadlines.add(10.0, early)
    deadlines.add(11.0, late)
    deadlines.sweep(9.9)
    assert not early.done()
    deadlines.sweep(10.0)
    with pytest.raises(TimeoutError):
        await early
    assert not late.done()


async def test_a_wait_ends_at_its_deadline_though_it_began_behind_a_later_one() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    waits = {deadline: Settlement().wait(loop) for deadline in (12.0, 15.0, 10.0)}
    for deadline, wait in waits.items():
        deadlines.add(deadline, wait)
    for now in (10.0, 12.0, 15.0):
        deadlines.sweep(now)
        assert [deadline for deadline, wait in sorted(waits.items()) if not wait.done()] == [
            later for later in (12.0, 15.0) if later > now
        ]
    for wait in waits.values():
        with pytest.raises(TimeoutError):
            await wait


async def test_waits_that_have_ended_take_no_memory() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    for _ in range(1_000):
        settlement = Settlement()
        deadlines.add(10.0, settlement.wait(loop))
        settlement.set_result(None)
    deadlines.sweep(0.0)
    assert not deadlines._waits


def publisher(levels: dict[str, Level] | None = None, in_flight: int = 2**20) -> Publisher:
    """One whose batches a test takes from its queue, as a sender does."""
    made = Publisher(
        BatchLimits(2**20, 1000),
        in_flight,
        Metrics(),
        lambda _: None,
        ledgers={"normal": ClassLedger("edge-1", "normal", "run")},
        levels=levels or {},
        clock=lambda: Instant(10**18, Clock(True, "boot", 10**9)),
        hub=HubAckWaiters(lambda _: ""),
    )
    made.admission.server_back(2**20)
    return made


async def store_next(of: Publisher) -> None:
    """Settle the batch that is sealed next as stored."""
    while not len(of.queue):
        await of.queue.changed()
    for entry in of.queue.take().draft.send():
        of.stored(("http", "normal"), entry, 1)


async def test_a_sender_that_hands_in_hears_once_that_its_chunk_is_stored() -> None:
    storing, heard = publisher(), list[Exception | None]()
    assert storing.hand_in("http", "normal", ONE, heard.append)
    await store_next(storing)
    assert heard == [], "only after the whole batch is settled"
    await asyncio.sleep(0)
    storing._deadlines.sweep(float("inf"))
    await asyncio.sleep(0)
    assert heard == [None]


async def test_a_sender_may_hand_in_more_when_it_hears_and_an_error_of_it_keeps_nothing_from_others() -> None:
    storing, heard = publisher(), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda *_: heard.append("reported"))

    def more(_: Exception | None) -> None:
        assert storing.hand_in("http", "normal", ONE, lambda _: heard.append("second"))
        raise ValueError("a fault of the sender")

    assert storing.hand_in("http", "normal", ONE, more)
    assert storing.hand_in("http", "normal", ONE, lambda _: heard.append("first"))
    await store_next(storing)
    await store_next(storing)
    await asyncio.sleep(0)
    assert heard == ["reported", "first", "second"]


async def test_what_was_not_sent_in_time_is_refused_and_what_was_sent_has_an_unknown_outcome() -> None:
    storing, heard = publisher(), list[Exception | None]()
    assert storing.hand_in("http", "normal", ONE, heard.append)
    while not len(storing.queue):
        await storing.queue.changed()
    storing.queue.take().draft.send()
    assert storing.hand_in("http", "normal", ONE, heard.append)
    storing._deadlines.sweep(asyncio.get_running_loop().time() + PATIENCE + 1)
    await asyncio.sleep(0)
    sent, unsent = heard
    assert isinstance(sent, UnknownOutcomeError)
    assert isinstance(unsent, RefusedError)


@pytest.mark.parametrize(
    ("levels", "in_flight", "chunk"),
    [
        ({"http": "hub"}, 2**20, ONE),
        ({"http": "accepted"}, 2**20, ONE),
        ({}, 2**20, Chunk(b"{}\n", 1, make_request("key", "scope", b"{}\n"))),
        ({}, 4, ONE),
    ],
    ids=["level hub", "level accepted", "a key", "no room in memory"],
)
async def test_what_has_to_wait_for_more_than_the_store_is_not_handed_in(
    levels: dict[str, Level], in_flight: int, chunk: Chunk
) -> None:
    storing = publisher(levels, in_flight)
    storing.hand_in("other", "normal", ONE, lambda _: None)
    used = storing._budget.used
    assert not storing.hand_in("http", "normal", chunk, lambda _: None)
    assert storing._budget.used == used


async def test_a_refusal_takes_no_room_and_says_that_nothing_is_stored() -> None:
    storing, settled = publisher(), list[int | None]()
    storing.stop()
    with pytest.raises(RefusedError) as refusal:
        storing.hand_in("http", "normal", Chunk(b"{}\n", 1, on_settled=settled.append), lambda _: None)
    assert refusal.value.reason is RefusalReason.STOPPING
    assert settled == [None]
    assert storing._budget.used == 0


async def test_an_answer_that_was_given_holds_nothing_of_its_sender() -> None:
    class Sender:
        def settled(self, outcome: Exception | None) -> None:
            """Hear."""

        def give_up(self) -> None:
            """Leave."""

    sender = Sender()
    gone = weakref.ref(sender)
    answer = PendingAnswer(Answers(), sender.settled, sender.give_up)
    answer.set_result(None)
    del sender
    await asyncio.sleep(0)
    assert answer.done()
    assert gone() is None
