"""The rules as an `Intake` around the core's: inputs hand in to it and do not know.

A chunk whose readings go to several classes is answered when all of them reached the level of the input. When
only some did, its outcome is unknown, and a request repeated under its key stores what is missing: keys are
known by class.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from agent.base.metrics import Metrics
from agent.base.wait import loop_time
from agent.config import Rule
from agent.contract import Letter
from agent.leaf.intake import Chunk, Intake, NotAtHubError, RefusedError, ResumePoint, UnknownOutcomeError
from agent.leaf.publish.pull_chunks import Fragment
from agent.leaf.rules import Rulebook
from agent.leaf.rules.deadbands import Deadbands, Flight
from agent.leaf.rules.split import Routed, Split, Splitter


class Core(Intake, Protocol):
    """What the rules need of the core in addition to what inputs need."""

    @property
    def stores_lost(self) -> int:
        """How often a local store was lost or restored from a backup: what it held is unknown."""

    async def stored_of(self, input_name: str, position: str) -> int | None:
        """Which lines of the piece that ends at `position` are stored, as a bitmap; None for all of them."""

    async def submit_piece(self, input_name: str, cls: str, chunk: Chunk, parts: Sequence[Fragment]) -> None:
        """Store a piece whose readings are in these parts, or are not to be stored at all."""


class RulesIntake:
    """Applies the rules to what inputs hand in."""

    def __init__(self, core: Core, rules: Sequence[Rule], metrics: Metrics) -> None:
        self._core, self._rules, self._metrics = core, rules, metrics
        self._deadbands = Deadbands()
        self._stores_lost = core.stores_lost
        self._unsettled: dict[str, list[Flight]] = {}
        """What an input was storing when that failed, until it goes on."""
        self._splitters: dict[str, Splitter | None] = {}

    @property
    def domain(self) -> str:
        """The domain of this machine."""
        return self._core.domain

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        """Keep what could not be taken; no rule is for that."""
        await self._core.dead_letter(input_name, cls, letters)

    async def position(self, input_name: str) -> ResumePoint:
        """Where an input goes on."""
        return await self._core.position(input_name)

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        """Take a chunk in, as `Intake.submit` says. Raises `UnknownOutcomeError` also when a part of it is
        stored and the rest was refused."""
        splitter = self._splitter(input_name)
        if self._stores_lost != self._core.stores_lost:
            self._stores_lost = self._core.stores_lost
            self._deadbands.forget()
        if splitter is None:
            await self._core.submit(input_name, cls, chunk)
        elif chunk.position is None:
            await self._push(input_name, chunk, splitter.split(chunk.payload, cls, loop_time()))
        else:
            await self._pull(input_name, cls, chunk, splitter)

    def _splitter(self, input_name: str) -> Splitter | None:
        if input_name not in self._splitters:
            book = Rulebook(self._rules, input_name)
            self._splitters[input_name] = None if book.empty else Splitter(book, self._deadbands)
        return self._splitters[input_name]

    async def _push(self, input_name: str, chunk: Chunk, split: Split) -> None:
        if split.as_it_is is not None:
            await self._core.submit(input_name, split.as_it_is, chunk)
            return
        parts = [(part.cls, self._chunk(chunk, part)) for part in split.routed]
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
        stored = await self._core.stored_of(input_name, chunk.position)
        for flight in self._unsettled.pop(input_name, ()):
            self._deadbands.settle(flight, None)
        if stored is None:
            return
        split = splitter.split(chunk.payload, cls, loop_time(), stored)
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

    def _chunk(self, whole: Chunk, routed: Routed) -> Chunk:
        settle = partial(self._deadbands.settle, self._deadbands.begin(routed.moves))
        return Chunk(
            routed.payload, len(routed.rows), whole.request, on_settled=settle if routed.moves else None
        )

    def _count(self, input_name: str, split: Split) -> None:
        for (rule, reason), count in split.dropped.items():
            self._metrics.ruled_out.labels(input_name, rule, reason).inc(count)


def _tell(outcomes: Sequence[BaseException | None]) -> None:
    """Raise what the parts of a chunk came to, unless all reached their level."""
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
