"""How much of a bad line is used: Petiole as installed, and with relays at both ends, beside a raw source of
nats-server (two servers, and the consumer that the hub's makes), rsync in a loop, and a bridge of mosquitto
with QoS 1. Each alone on a line of its own, over which the kernel's TCP runs (`tests/faults/tools/line.py`;
congestion control is cubic).

A cell is a rate each way, a round trip, windows after which every connection is reset and for a second
refused, and loss each way by chance. Before the run a backlog of pieces of random bytes is stored at the
leaf, more than the line carries. *Goodput* counts the distinct pieces at the hub that equal a sent piece,
in payload bytes a second, when the line is cut at the end of the run or when all has come. The yardstick is
plain TCP over the same line, which dials again at once and goes on where the hub is. *Crossed* are the bytes
that reached the hub's end meanwhile, without segments that TCP itself repeated, beside the payload that the
hub holds. Then the line is cleared. Pieces that are lost, or doubled in the hub's stream before a job has
dropped repeats, are counted.

A piece is what the line carries in 50 ms, 500 bytes at least and 16 kB at most; a request to Petiole holds
about a second of them; the others send a message a piece. No side encrypts or compresses on the line.
mosquitto and rsync do not sync what the hub holds; Petiole does.

The kept result has twelve cells (`CHOSEN`). `CELLS=all make bench NAME=lines` plays all 225 (many hours),
`CELLS='100 kB/s, 300 ms*'` those of a name; `SIDES=Petiole,rsync` plays only these beside the yardstick,
`SIDES=none` the yardstick alone. Needs root, `ip`, `/dev/net/tun`, and the programs of the sides; a missing
program is left out and reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

from bench import line_others, line_sides
from bench.line_sides import Opened, Side, Way
from bench.result import Against, Result, Row, measuring
from tests.faults.tools.line import Line, Quality, Windows, line, missing
from tests.harness.wait import until

RATES: Final = (2_400.0, 9_600.0, 100e3, 1e6, 100e6)
ROUND_TRIPS: Final = (0.02, 0.3, 0.8)
WINDOWS: Final = (0.0, 5.0, 7.0, 14.0, 60.0)
LOSSES: Final = (0.0, 1.0, 5.0)
PLAIN: Final = "Petiole"
RELAYED: Final = "relayed Petiole"
OURS: Final = (PLAIN, RELAYED)
YARDSTICK: Final = "plain TCP that goes on where it was"
SIDES: Final[Mapping[str, Opened]] = {
    PLAIN: line_sides.petiole,
    RELAYED: partial(line_sides.petiole, relayed=True),
    "raw source": line_sides.raw,
    "rsync": line_others.rsync,
    "MQTT bridge": line_others.bridge,
}
_GOAL_LINE, _GOAL_OTHERS, _GOAL_CROSSED = 0.8, 1.0, 1.1
_DOWN_SECONDS: Final = 1.0
_RUN_SECONDS: Final = 45.0
_SLOW_RUN_SECONDS: Final = 120.0
_SLOW: Final = 20e3
_QUICK: Final = 10e6
"""Cells of a higher rate are played alone, for they need the cores."""
_AT_ONCE: Final = 10
_MOST_BYTES: Final = 300e6
_MORE: Final = 1.25
"""The backlog, as a share of what plain TCP brought over."""
_LEAST: Final = 8
_SETTLE_SECONDS: Final = 1.0
_REST_SECONDS: Final = 180.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One line; the window is how many seconds it is up, 0 for always."""

    rate: float
    round_trip: float
    window: float
    loss: float

    @property
    def name(self) -> str:
        """As `CELLS` chooses it."""
        rate = f"{self.rate / 1e6:g} MB/s" if self.rate >= 1e6 else f"{self.rate / 1e3:g} kB/s"
        window = f"windows of {self.window:g} s" if self.window else "no windows"
        return f"{rate}, {self.round_trip * 1e3:g} ms, {window}, {self.loss:g} % lost"

    @property
    def quality(self) -> Quality:
        """It as a line."""
        windows = Windows(self.window, _DOWN_SECONDS) if self.window else None
        return Quality(self.rate, self.round_trip, self.loss, windows=windows)

    @property
    def piece(self) -> int:
        """Bytes of a piece."""
        return int(min(max(self.rate / 20, 500), 16_000))

    @property
    def share_up(self) -> float:
        """Of the time, how much the line is up."""
        return self.window / (self.window + _DOWN_SECONDS) if self.window else 1.0

    @property
    def seconds(self) -> float:
        """How long a run lasts: whole windows, two at least."""
        least = _SLOW_RUN_SECONDS if self.rate < _SLOW else _RUN_SECONDS
        if not self.window:
            return least
        cycle = self.window + _DOWN_SECONDS
        return cycle * max(2, math.ceil(least / cycle))


ALL: Final = tuple(Cell(*figures) for figures in product(RATES, ROUND_TRIPS, WINDOWS, LOSSES))
CHOSEN: Final = (
    Cell(2_400.0, 0.8, 0.0, 0.0),
    Cell(2_400.0, 0.8, 14.0, 0.0),
    Cell(9_600.0, 0.8, 7.0, 0.0),
    Cell(9_600.0, 0.3, 60.0, 1.0),
    Cell(100e3, 0.02, 7.0, 0.0),
    Cell(100e3, 0.3, 7.0, 0.0),
    Cell(100e3, 0.8, 5.0, 1.0),
    Cell(100e3, 0.3, 0.0, 5.0),
    Cell(1e6, 0.02, 5.0, 0.0),
    Cell(1e6, 0.3, 14.0, 1.0),
    Cell(100e6, 0.02, 0.0, 0.0),
    Cell(100e6, 0.3, 60.0, 0.0),
)
"""The cells of the kept result: each rate, round trip, window and loss, and common combinations."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one side brought over: payload bytes in so many seconds, TCP's bytes that crossed meanwhile, and,
    over a clear line in the end, how many of the `count` pieces are lost or doubled."""

    stored: int
    seconds: float
    crossed: int
    count: int
    lost: int
    doubled: int

    @property
    def goodput(self) -> float:
        """Payload bytes a second."""
        return self.stored / self.seconds


def run() -> Result:
    if (why := missing()) is not None:
        raise RuntimeError(why)
    cells = _cells(os.environ.get("CELLS", ""))
    wanted = os.environ.get("SIDES", ",".join(SIDES)).split(",")
    with measuring("lines", {"cells": str(len(cells))}) as result:
        asyncio.run(_play_all(result, cells, [name for name in SIDES if name in wanted]))
    return result


def _cells(asked: str) -> Sequence[Cell]:
    """The cells that are asked for by their names. Raises `ValueError` where there is none."""
    if not asked:
        return CHOSEN
    found = [cell for cell in ALL if asked == "all" or fnmatchcase(cell.name, asked)]
    if not found:
        raise ValueError(f"CELLS={asked!r}: no cell has such a name, as {CHOSEN[0].name!r}")
    return found


async def _play_all(result: Result, cells: Sequence[Cell], sides: Sequence[str]) -> None:
    """Slow cells together, quick ones alone; rows in the order of the cells."""
    found: dict[Cell, dict[str, Outcome]] = {cell: {} for cell in cells}
    places = asyncio.Semaphore(_AT_ONCE)

    async def play(cell: Cell) -> None:
        async with places:
            await _play_cell(result, cell, sides, found[cell])

    async with asyncio.TaskGroup() as group:
        for cell in cells:
            if cell.rate < _QUICK:
                group.create_task(play(cell))
    for cell in cells:
        if cell.rate >= _QUICK:
            await play(cell)
    for cell in cells:
        result.rows += rows(cell, found[cell])


async def _play_cell(result: Result, cell: Cell, sides: Sequence[str], found: dict[str, Outcome]) -> None:
    """The yardstick first, for the backlog follows from it."""
    count = int(_MOST_BYTES / cell.piece)
    for name, opened in {YARDSTICK: line_others.tcp, **{name: SIDES[name] for name in sides}}.items():
        with result.part(f"{cell.name}: {name}"):
            outcome = found[name] = await play(cell, opened, count)
            print(f"{cell.name}: {name}: {outcome.goodput / 1e3:.4g} kB/s, {outcome}", flush=True)
            if name == YARDSTICK:
                count = min(count, max(_LEAST, math.ceil(outcome.stored * _MORE / cell.piece)))


async def play(cell: Cell, opened: Opened, count: int) -> Outcome:
    """One side on one line."""
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory, line(cell.quality) as one:
        one.set(Quality())
        way = Way(one, cell.rate, cell.round_trip, cell.piece)
        async with opened(Path(directory), way) as side:
            return await _played(cell, one, side, count)


async def _played(cell: Cell, one: Line, side: Side, count: int) -> Outcome:
    one.cut()
    await side.store(count)
    before = _crossed(one)
    one.set(cell.quality)
    began = time.monotonic()
    await _arrives(side, count, cell.seconds)
    seconds = time.monotonic() - began
    one.cut()
    crossed = _crossed(one) - before
    await asyncio.sleep(_SETTLE_SECONDS)
    held = await side.pieces()
    one.restore()
    # What does not come in this time is counted as lost, whatever it waits for.
    await _arrives(side, count, _REST_SECONDS)
    there = await side.pieces()
    lost = count - len(there)
    return Outcome(len(held) * cell.piece, seconds, crossed, count, lost, there.total() - len(there))


def _crossed(one: Line) -> int:
    up, _ = one.passed()
    return up.payload - up.repeated


async def _arrives(side: Side, count: int, seconds: float) -> None:
    """Return when the hub holds all pieces, or after so many seconds."""
    with contextlib.suppress(AssertionError):
        await until(lambda: side.arrived() >= count, seconds=seconds)


def rows(cell_: Cell, found: Mapping[str, Outcome]) -> list[Row]:
    """The yardstick beside the rate; Petiole's goodput beside the yardstick's and each alternative's;
    crossed bytes; lost and doubled pieces."""
    cell, yardstick = cell_.name, found.get(YARDSTICK)
    made = []
    for name, outcome in found.items():
        goodput, own = outcome.goodput / 1e3, name in OURS
        if name == YARDSTICK:
            nominal = Against("the rate, while it is up", cell_.rate * cell_.share_up / 1e3)
            made.append(Row(f"{cell}: {YARDSTICK}", goodput, "kB/s", against=nominal))
            continue
        if yardstick is not None:
            against = Against(YARDSTICK, yardstick.goodput / 1e3)
            made.append(Row(f"{cell}: {name}", goodput, "kB/s", _GOAL_LINE if own else None, against))
        for ours in () if own else OURS:
            if ours in found:
                against, share = Against(name, goodput), found[ours].goodput / 1e3
                made.append(Row(f"{cell}: {ours}", share, "kB/s", _GOAL_OTHERS, against))
        stored = Against("payload that the hub holds", max(1, outcome.stored) / 1e3)
        goal, must = (_GOAL_CROSSED, 0) if own else (None, None)
        made.append(Row(f"{cell}: {name}, crossed", outcome.crossed / 1e3, "kB", goal, stored, least=True))
        made.append(Row(f"{cell}: {name}, lost", outcome.lost, "pieces", must=must, least=True))
        made.append(Row(f"{cell}: {name}, doubled", outcome.doubled, "pieces", must=must, least=True))
    return made
