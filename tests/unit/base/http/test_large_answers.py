"""Answers that are shared by those who ask."""

from __future__ import annotations

import asyncio

import pytest

from agent.base.http import large_answers
from agent.base.http.large_answers import Shared
from tests.harness.wait import until


class Maker:
    """Makes numbers, one after the other; the first `failing` attempts fail."""

    def __init__(self, failing: int = 0) -> None:
        self.made, self._failing = 0, failing
        self.shared = Shared(self.make)

    async def make(self) -> int:
        self.made += 1
        await asyncio.sleep(0)
        if self.made <= self._failing:
            raise LookupError
        return self.made


async def test_what_is_cheap_is_made_for_each_who_asks() -> None:
    maker = Maker()
    assert await asyncio.gather(*(maker.shared.get() for _ in range(3))) == [1, 2, 3]


async def test_what_is_expensive_is_made_once_and_again_after_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large_answers, "_CHEAP", 0.0)
    monkeypatch.setattr(large_answers, "_TIMES", 1e9)
    maker = Maker()
    assert await asyncio.gather(*(maker.shared.get() for _ in range(3))) == [1, 1, 1]
    monkeypatch.setattr(large_answers, "_TIMES", 1.0)
    maker = Maker()

    async def again() -> bool:
        return await maker.shared.get() > 1

    await until(again, "it is made again")


async def test_a_failure_is_of_the_one_who_asked_and_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_answers, "_CHEAP", 0.0)
    maker = Maker(failing=1)
    first, second = await asyncio.gather(*(maker.shared.get() for _ in range(2)), return_exceptions=True)
    assert isinstance(first, LookupError)
    assert second == 2
