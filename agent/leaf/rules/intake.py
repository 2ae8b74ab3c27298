"""Wraps the core's `Intake` with rules, unseen by inputs.

A chunk for several classes is answered when all reached the input's level; if only some did, the outcome is
unknown, and a repeat under its key stores the rest unless classes changed. A request partly known to the core
adds nothing to windows. Aggregated lines with key or piece are logged first; for others the core goes first,
and gets everything if the log fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from agent.base.metrics import Metrics
from agent.base.wait import loop_time
from agent.config import Rule
from agent.contract import Letter, Request
from agent.leaf.intake import (
    Chunk,
    NotAtHubError,
    Notes,
    QuickIntake,
    RefusalReason,
    RefusedError,
    ResumePoint,
    Settled,
    UnknownOutcomeError,
)
from agent.leaf.publish.pull_chunks import Fragment, warn_renumbered
from agent.leaf.publish.pull_progress import Shape, unmarked
from agent.leaf.rules import Rulebook
from agent.leaf.rules.aggregates import PieceStore, RuleAggregates
from agent.leaf.rules.deadbands import Deadbands, Flight
from agent.leaf.rules.record_log import Place
from agent.leaf.rules.split import Gathered, Routed, Split, Splitter


class Core(QuickIntake, PieceStore, Protocol):
    """The core's additional interface for rules."""

    @property
    def stores_lost(self) -> int:
        """Number of losses and restores of local stores."""

    async def knows(self, request: Request) -> bool:
        """Tell whether part of a request is in flight or stored. Raises `UnknownOutcomeError`."""

    async def piece(self, input_name: str, piece: Chunk) -> tuple[int, str | None]:
        """Return a piece's number and the position before it."""

    def go_on(self, input_name: str, cls: str, number: int, position: str) -> None:
        """Advance an input past a piece that ends at `position`."""


class RulesIntake:
    """Applies rules to submitted chunks. Without `aggregates` no reading is aggregated."""

    def __init__(
        self, core: Core, rules: Sequence[Rule], metrics: Metrics, aggregates: RuleAggregates | None = None
    ) -> None:
        self._core, self._rules, self._metrics = core, rules, metrics
        self._aggregates = aggregates
        self._deadbands = Deadbands()
        self._stores_lost = core.stores_lost
        self._unsettled: dict[str, list[Flight]] = {}
        """A failed chunk per input until it continues."""
        self._splitters: dict[str, Splitter | None] = {}

    @property
    def domain(self) -> str:
        return self._core.domain

    @property
    def notes(self) -> Notes:
        return self._core.notes

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        """Store invalid data; no rule applies."""
        await self._core.dead_letter(input_name, cls, letters)

    async def position(self, input_name: str) -> ResumePoint:
        """Return where an input continues, by core and log."""
        place = await self._core.position(input_name)
        last = None if self._aggregates is None else self._aggregates.place(input_name)
        if last is None or place.lost or last.position in (place.position, place.until):
            return place
        number, _ = await self._core.piece(input_name, Chunk(b"", 0, position=last.position))
        if number > last.number:
            return place
        if last.before is not None:
            self._core.go_on(input_name, last.cls, last.number - 1, last.before)
        return ResumePoint(last.before, last.position)

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        """Store a chunk. Raises `UnknownOutcomeError` also when only a part was refused."""
        splitter = self._splitter(input_name)
        if self._stores_lost != self._core.stores_lost:
            self._stores_lost = self._core.stores_lost
            self._deadbands.forget()
        if chunk.position is not None and (splitter is not None or self._placed(input_name)):
            splitter = splitter or Splitter(Rulebook([], input_name), self._deadbands)
            await self._pull(input_name, cls, chunk, splitter)
        elif chunk.request is not None and (self._knows_requests() or (splitter and splitter.aggregates)):
            splitter = splitter or Splitter(Rulebook([], input_name), self._deadbands)
            await self._push_keyed(input_name, cls, chunk, splitter)
        elif splitter is None:
            await self._core.submit(input_name, cls, chunk)
        else:
            await self._push(input_name, chunk, splitter.split(chunk.payload, cls, loop_time()))

    def hand_in(self, input_name: str, cls: str, chunk: Chunk, settled: Settled) -> bool:
        """Store without a task if no rule applies to the input."""
        plain = chunk.position is None and chunk.request is None and self._splitter(input_name) is None
        return plain and self._core.hand_in(input_name, cls, chunk, settled)

    def _splitter(self, input_name: str) -> Splitter | None:
        if input_name not in self._splitters:
            book = Rulebook(self._rules, input_name)
            windows = None if self._aggregates is None else self._aggregates.windows
            self._splitters[input_name] = None if book.empty else Splitter(book, self._deadbands, windows)
        return self._splitters[input_name]

    def _placed(self, input_name: str) -> bool:
        return self._aggregates is not None and self._aggregates.place(input_name) is not None

    def _knows_requests(self) -> bool:
        return self._aggregates is not None and self._aggregates.knows_requests

    async def _push(self, input_name: str, chunk: Chunk, split: Split) -> None:
        await self._send(input_name, chunk, split)
        if not split.gathered.numbers:
            return
        try:
            await self._take(input_name, split.gathered)
        except RefusedError as refusal:
            if not split.routed:
                raise
            # The rest is stored, so a refusal would be taken for one of all of it.
            sent = [Routed(cls, rows) for cls, rows in split.gathered.rows.items()]
            try:
                await self._send(input_name, chunk, Split(routed=sent))
            except RefusedError:
                raise _partly(refusal) from None

    async def _push_keyed(self, input_name: str, cls: str, chunk: Chunk, splitter: Splitter) -> None:
        """Store a keyed request; its aggregated lines stay fixed for repeats."""
        assert self._aggregates is not None
        assert chunk.request is not None
        # This may wait, so it comes first: what `lines_of` returns is old once another attempt has run.
        known = splitter.aggregates and await self._core.knows(chunk.request)
        taken = await self._aggregates.lines_of(chunk.request)
        if taken is None and not known:
            split = splitter.split(chunk.payload, cls, loop_time())
            if split.gathered.wanted:
                await self._take(input_name, split.gathered, chunk.request)
                taken = split.gathered.bitmap
        else:
            split = splitter.split(chunk.payload, cls, loop_time(), taken or 0, gathers=False)
        try:
            await self._send(input_name, chunk, split)
        except RefusedError as refusal:
            if taken and refusal.reason is not RefusalReason.KEY_INCOMPLETE:
                raise _partly(refusal) from None
            raise

    async def _take(
        self, input_name: str, gathered: Gathered, request: Request | None = None, place: Place | None = None
    ) -> None:
        assert self._aggregates is not None
        try:
            await self._aggregates.take(gathered, request, place)
        except RefusedError as refusal:
            for cls, rows in gathered.rows.items():
                self._metrics.refused.labels(input_name, cls, refusal.reason).inc(len(rows))
            raise
        for rule, count in gathered.counts.items():
            self._metrics.ruled_out.labels(input_name, rule, "aggregate").inc(count)

    async def _send(self, input_name: str, chunk: Chunk, split: Split) -> None:
        if split.as_it_is is not None:
            await self._core.submit(input_name, split.as_it_is, chunk)
            return
        parts = [(part.cls, self._chunk(chunk, part, split.part)) for part in split.routed]
        outcomes: list[BaseException | None] = []
        if len(parts) == 1:
            await self._core.submit(input_name, *parts[0])
        elif parts:
            outcomes = await asyncio.gather(
                *(self._core.submit(input_name, cls, part) for cls, part in parts), return_exceptions=True
            )
        _tell(outcomes)
        self._count(input_name, split)

    async def _pull(self, input_name: str, cls: str, chunk: Chunk, splitter: Splitter) -> None:
        assert chunk.position is not None
        stored = await self._core.stored_of(input_name, chunk)
        for flight in self._unsettled.pop(input_name, ()):
            self._deadbands.settle(flight, None)
        if stored is None:
            await self._core.submit_piece(input_name, cls, chunk, [])
            return
        number, before = await self._core.piece(input_name, chunk)
        last = None if self._aggregates is None else self._aggregates.place(input_name)
        again, taken = False, 0
        if last is not None and (last.number, last.position) == (number, chunk.position):
            taken, shape = unmarked(int(last.lines, 16)) or (0, None)
            again = shape == Shape.of(chunk)
            if not again:
                taken = 0
                warn_renumbered(input_name)
        split = splitter.split(chunk.payload, cls, loop_time(), stored | taken)
        if split.gathered.numbers or (last is not None and not again and number <= last.number):
            lines = f"{Shape.of(chunk).mark(taken | split.gathered.bitmap):x}"
            place = Place(input_name, cls, number, before, chunk.position, lines)
            await self._take(input_name, split.gathered, place=place)
        flights = [self._deadbands.begin(part.moves) for part in split.routed]
        if split.as_it_is is not None:
            parts = [Fragment(split.as_it_is, chunk.payload, chunk.count, range(chunk.count))]
        else:
            parts = [
                Fragment(part.cls, part.payload, len(part.rows), part.numbers, partial(self._stored, flight))
                for part, flight in zip(split.routed, flights, strict=True)
            ]
        try:
            await self._core.submit_piece(input_name, cls, chunk, parts)
        except BaseException:
            # A batch that was sent may still be stored, and some lines of a part may be without the others.
            self._unsettled[input_name] = flights
            raise
        for flight in flights:
            self._deadbands.settle(flight, None)  # of a part that was stored in several
        self._count(input_name, split)

    def _stored(self, flight: Flight, seq: int | None) -> None:
        # A part that is refused as too large is stored in smaller ones.
        if seq is not None:
            self._deadbands.settle(flight, seq)

    def _chunk(self, whole: Chunk, routed: Routed, part: bytes) -> Chunk:
        request = whole.request and replace(whole.request, part=part)
        settle = partial(self._deadbands.settle, self._deadbands.begin(routed.moves))
        return Chunk(routed.payload, len(routed.rows), request, on_settled=settle if routed.moves else None)

    def _count(self, input_name: str, split: Split) -> None:
        for (rule, reason), count in split.dropped.items():
            self._metrics.ruled_out.labels(input_name, rule, reason).inc(count)


def _partly(refusal: RefusedError) -> UnknownOutcomeError:
    return UnknownOutcomeError(f"some readings are aggregated or stored, others were refused ({refusal})")


def _tell(outcomes: Sequence[BaseException | None]) -> None:
    """Raise the combined outcome of a chunk's parts, unless all succeeded."""
    failed = [error for error in outcomes if error is not None]
    if not failed:
        return
    for error in failed:
        if not isinstance(error, RefusedError | UnknownOutcomeError):
            raise error
    refused = [error for error in failed if isinstance(error, RefusedError)]
    if len(refused) == len(outcomes):
        raise max(refused, key=lambda error: (error.retry_after is None, error.retry_after or 0.0))
    if not refused:
        raise next((error for error in failed if not isinstance(error, NotAtHubError)), failed[0])
    raise UnknownOutcomeError(
        f"the readings go to several classes: some are stored, others were refused ({refused[0]})"
    )
