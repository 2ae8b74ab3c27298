"""The rules before a core whose answers a test decides: what a deadband knows of what is under way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from agent.base.metrics import Metrics
from agent.config import Rule
from agent.contract import Request
from agent.leaf.intake import Chunk, RefusalReason, RefusedError, ResumePoint, Settled, UnknownOutcomeError
from agent.leaf.publish.pull_chunks import Fragment
from agent.leaf.rules.intake import RulesIntake
from tests.harness.intakes import NoLetters

FULL = RefusedError(RefusalReason.FULL, "the stream is full", 1.0)


class Core(NoLetters):
    """A core that keeps what it is given until a test says what becomes of it."""

    domain = "edge-1"
    stores_lost = 0

    def __init__(self) -> None:
        self.under_way: list[tuple[Chunk | Fragment, asyncio.Future[None]]] = []
        self.stored: list[object] = []

    def hand_in(self, input_name: str, cls: str, chunk: Chunk, settled: Settled) -> bool:
        return False

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        await self._take(chunk)

    async def submit_piece(self, input_name: str, cls: str, chunk: Chunk, parts: Sequence[Fragment]) -> None:
        for part in parts:
            await self._take(part)

    async def stored_of(self, input_name: str, piece: Chunk) -> int | None:
        return 0

    async def knows(self, request: Request) -> bool:
        raise AssertionError("nothing is aggregated")

    async def piece(self, input_name: str, piece: Chunk) -> tuple[int, str | None]:
        return 1, None

    def go_on(self, input_name: str, cls: str, number: int, position: str) -> None:
        raise AssertionError("nothing is aggregated")

    async def position(self, input_name: str) -> ResumePoint:
        return ResumePoint()

    async def _take(self, what: Chunk | Fragment) -> None:
        self.under_way.append((what, asyncio.get_running_loop().create_future()))
        await self.under_way[-1][1]

    def store(self) -> None:
        """The oldest is stored."""
        what, answer = self.under_way.pop(0)
        self.stored += [json.loads(row)["value"] for row in what.payload.splitlines()]
        self.settle(what, len(self.stored))
        answer.set_result(None)

    def fail(self, error: Exception, *, settled: bool = True) -> None:
        """The oldest is not stored; whether its chunk is told so as well."""
        what, answer = self.under_way.pop(0)
        if settled:
            self.settle(what, None)
        answer.set_exception(error)

    def settle(self, what: Chunk | Fragment, seq: int | None) -> None:
        assert what.on_settled is not None
        what.on_settled(seq)


class Sending:
    """Rules with one deadband, and what is handed in to them."""

    def __init__(self) -> None:
        self.core = Core()
        self.intake = RulesIntake(self.core, [Rule(deadband=0.5)], Metrics())
        self._pieces = 0

    async def send(self, value: float, *, pull: bool = False) -> asyncio.Task[None]:
        """Hand a reading in; returns once the core has it, or it was held back."""
        line = json.dumps({"ts": 1, "device": "d", "metric": "m", "value": value}).encode() + b"\n"
        self._pieces += 1
        chunk = Chunk(line, 1, position=str(self._pieces) if pull else None)
        before = len(self.core.under_way)
        task = asyncio.create_task(self.intake.submit("x", "normal", chunk))
        while not task.done() and len(self.core.under_way) == before:  # noqa: ASYNC110 - nothing is waited for
            await asyncio.sleep(0)
        return task


@pytest.fixture
async def one() -> Sending:
    """Rules of which the value 0 is stored."""
    sending = Sending()
    first = await sending.send(0)
    sending.core.store()
    await first
    return sending


async def test_the_way_back_of_a_value_is_sent_while_the_move_is_under_way(one: Sending) -> None:
    tasks = [await one.send(value) for value in (1, 0)]
    while one.core.under_way:
        one.core.store()
    await asyncio.gather(*tasks)
    assert one.core.stored == [0, 1, 0]
    assert (await one.send(0.4)).done()


async def test_the_way_back_is_sent_after_a_refusal_for_the_input_may_hand_the_move_in_again(
    one: Sending,
) -> None:
    moved = await one.send(1)
    one.core.fail(FULL)
    with pytest.raises(RefusedError):
        await moved
    back = await one.send(0)
    assert not back.done()
    one.core.store()
    await back
    assert (await one.send(0)).done()


async def test_a_piece_whose_outcome_is_not_known_holds_nothing_back_after_it(one: Sending) -> None:
    moved = await one.send(1, pull=True)
    one.core.fail(UnknownOutcomeError("nobody knows"), settled=False)  # it is stored, as the input learns
    with pytest.raises(UnknownOutcomeError):
        await moved
    back = await one.send(0, pull=True)
    assert not back.done()
    one.core.store()
    await back
    assert (await one.send(0, pull=True)).done()


async def test_a_part_that_is_stored_in_smaller_ones_holds_nothing_back_after_it(one: Sending) -> None:
    moved = await one.send(1, pull=True)
    part, answer = one.core.under_way.pop()
    one.core.settle(part, None)  # too large; its halves are stored
    during = await one.send(0)
    assert not during.done(), "the halves are under way"
    answer.set_result(None)
    await moved
    one.core.store()
    await during
    back = await one.send(0, pull=True)
    assert not back.done()
    one.core.store()
    await back


async def test_after_a_store_was_lost_nothing_is_held_back_for_what_was_in_it(one: Sending) -> None:
    assert (await one.send(0)).done()
    one.core.stores_lost += 1
    assert not (await one.send(0)).done()
    one.core.store()
