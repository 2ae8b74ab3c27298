"""What a large fleet must not do to the event loop when it is read back."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from itertools import pairwise

import pytest

from agent.base import wait
from agent.hub.registrar import upkeep
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.records import ClassRecord, LeafRecord
from agent.hub.registrar.upkeep import spare_collections

COUNT = 1_000


def record(domain: str) -> LeafRecord:
    """A leaf of two classes, in one of ten aggregates."""
    stream = f"TELEMETRY_{hash(domain) % 10}"
    classes = {cls: ClassRecord("e", "c", stream, "c") for cls in ("normal", "bulk")}
    return LeafRecord(domain, "m", "run", {}, "before", classes)


async def test_the_loop_has_its_turn_between_two_records_and_never_sees_half_a_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wait, "SPAN", 0.0)  # of any length is a piece too long for one turn
    records = {f"edge-{number}": record(f"edge-{number}") for number in range(COUNT)}
    fleet, begun, known = FleetState(), list[int](), set[int]()

    async def watch() -> None:
        while True:
            begun.append(len(fleet.ownership.heard_at()))
            known.add(len(fleet.leaves))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await fleet.begin(records, {}, {}, 1_000.0)
    await asyncio.sleep(0)
    watching.cancel()
    assert begun[-1] == COUNT
    assert max(after - before for before, after in pairwise(begun)) == 1
    assert known == {0, COUNT}
    streams = [f"TELEMETRY_{number}" for number in range(10)]
    assert sum(len(fleet.sources(stream)) for stream in streams) == 2 * COUNT


async def test_the_loop_has_its_turn_between_two_leaves_of_which_each_may_be_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wait, "SPAN", 0.0)  # of any length is a piece too long for one turn
    fleet = FleetState()
    await fleet.begin({f"edge-{number}": record(f"edge-{number}") for number in range(COUNT)}, {}, {}, 0.0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    fleet.ownership.heard("edge-7", 1_000.0)
    assert await fleet.silent(1_000.0) == fleet.leaves.keys() - {"edge-7"}
    counting.cancel()
    assert turns >= COUNT


class Circle:
    """What only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collected() -> Iterator[None]:
    """All that is there is let alone by the collector, as long as the test lasts."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("collected")
def test_what_has_come_to_stay_is_let_alone_by_the_collector_once_it_is_much() -> None:
    few = [[number] for number in range(1_000)]
    gc.collect()
    before = gc.get_freeze_count()
    spare_collections()
    # of the objects that are let alone already, one may go at any time
    assert gc.get_freeze_count() < before + len(few), "few objects are no trouble"

    many: list[list[object]] = [[number] for number in range(upkeep._YOUNG)]
    circle = Circle()
    gc.collect(0)
    gc.collect(1)
    gone = weakref.ref(circle)
    del circle
    spare_collections()
    assert gone() is None, "garbage does not stay"
    assert gc.get_freeze_count() >= before + len(many)
    assert len(gc.get_objects(generation=2)) < 1_000
