"""What became of readings that were acknowledged at the edge while something broke."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.peer_sides import Side
from bench.relink_load import Load
from bench.result import Against, Row

_RATE: Final = 100.0
_ATTEMPT_SECONDS: Final = 60.0
"""What is slow to sync is not to be sent again for that: it would never catch up."""
_BEFORE_SECONDS: Final = 3.0
_CUT_SECONDS: Final = 5.0
"""Before what else happens while the link is cut, and after it."""
_AFTER_SECONDS: Final = 5.0
_QUIET_SECONDS: Final = 20.0
_FAULT_SECONDS: Final = 120.0
FAULTS: Final = ("link cut 10 s", "edge SIGKILL", "edge SIGKILL while the link is cut")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One fault: how many readings were acknowledged since it began, and what became of them."""

    acknowledged: int
    lost: int
    doubled: int
    seconds: float


def rows(ours: Sequence[Outcome], peers: Mapping[str, Sequence[Outcome]]) -> list[Row]:
    found = []
    for number, fault in enumerate(FAULTS):
        mine = ours[number]
        others = {name: outcomes[number] for name, outcomes in peers.items()}
        what = f"{fault}, {mine.acknowledged} readings acknowledged"
        after = f"{fault}: after it, until all that was acknowledged in it is at the hub"
        for name, other in others.items():
            against = Against(f"{name} ({other.acknowledged} acknowledged)", other.lost)
            found.append(Row(f"{what}: lost", mine.lost, "readings", None, against, least=True, must=0))
        for name, other in others.items():
            against = Against(f"{name} ({other.acknowledged} acknowledged)", other.doubled)
            found.append(Row(f"{what}: doubled", mine.doubled, "readings", None, against, least=True))
        for name, other in others.items():
            found.append(Row(after, mine.seconds, "s", None, Against(name, other.seconds), least=True))
    return found


async def play(side: Side) -> list[Outcome]:
    """All faults, one after the other, under a load of numbered readings."""
    side.seen.numbered = True
    load, marks, mended = Load(side.send, _RATE, _ATTEMPT_SECONDS), [1], []
    async with asyncio.TaskGroup() as group:
        loading = group.create_task(load.run())
        await asyncio.sleep(_BEFORE_SECONDS)
        for fault in FAULTS:
            print(f"{side.name}: {fault}", flush=True)
            marks.append(load.sent + 1)
            await _make(side, fault)
            mended.append((time.time(), set(load.acknowledged)))
            await asyncio.sleep(_AFTER_SECONDS)
            await _settled(side, load)
        load.stop()
        await asyncio.wait([loading], timeout=_FAULT_SECONDS)
        loading.cancel()
    await _settled(side, load)
    return [
        outcome(side, load, range(first, after), *one)
        for first, after, one in zip(marks[1:], [*marks[2:], load.sent + 1], mended, strict=True)
    ]


async def _make(side: Side, fault: str) -> None:
    if "cut" in fault:
        side.proxy.cut()
        await asyncio.sleep(_CUT_SECONDS)
    if "SIGKILL" in fault:
        await asyncio.to_thread(side.kill)
        await asyncio.to_thread(side.start)
    if "cut" in fault:
        await asyncio.sleep(_CUT_SECONDS)
        side.proxy.restore()


async def _settled(side: Side, load: Load) -> None:
    """Wait until what is acknowledged by now is at the hub, or nothing of it comes any more."""
    wanted = set(load.acknowledged)
    deadline, moved, before = time.monotonic() + _FAULT_SECONDS, time.monotonic(), -1
    while time.monotonic() < deadline and time.monotonic() - moved < _QUIET_SECONDS:
        missing = len(wanted - side.seen.counts.keys())
        if not missing:
            return
        if missing != before:
            moved, before = time.monotonic(), missing
        await asyncio.sleep(0.1)


def outcome(side: Side, load: Load, span: range, mended: float, before: set[int]) -> Outcome:
    """What became of these numbers; `before` are those that were acknowledged when the fault was mended."""
    acknowledged = [number for number in span if number in load.acknowledged]
    counts, first = side.seen.counts, side.seen.first
    lost = sum(not counts[number] for number in acknowledged)
    doubled = sum(counts[number] > 1 for number in span)
    late = [first[number] - mended for number in acknowledged if number in first and number in before]
    return Outcome(len(acknowledged), lost, doubled, max(0.0, max(late, default=0.0)))
