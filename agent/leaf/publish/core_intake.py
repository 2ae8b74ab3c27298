"""Provides the `Intake` of the publish path for inputs and rules."""

from __future__ import annotations

from collections.abc import Sequence

from agent.contract import Letter, Request
from agent.leaf.intake import Chunk, Notes, QuickIntake, ResumePoint, Settled
from agent.leaf.publish.dead_letters import DeadLetterWriter
from agent.leaf.publish.publisher import Publisher
from agent.leaf.publish.pull_chunks import Fragment, PullChunkStore, whole


class CoreIntake:
    """The `Intake` of one agent."""

    def __init__(
        self,
        domain: str,
        publisher: Publisher,
        pieces: PullChunkStore,
        dead_letters: DeadLetterWriter,
        notes: Notes,
    ) -> None:
        self._domain, self._publisher = domain, publisher
        self._pieces, self._dead_letters = pieces, dead_letters
        self.notes = notes

    @property
    def domain(self) -> str:
        return self._domain

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        if chunk.position is None:
            await self._publisher.submit(input_name, cls, chunk)
            return
        stored = await self.stored_of(input_name, chunk)
        parts = [] if stored is None else [whole(cls, chunk.payload, chunk.count, stored)]
        await self.submit_piece(input_name, cls, chunk, parts)

    def hand_in(self, input_name: str, cls: str, chunk: Chunk, settled: Settled) -> bool:
        return chunk.position is None and self._publisher.hand_in(input_name, cls, chunk, settled)

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        await self._dead_letters.dead_letter(input_name, cls, letters)

    async def position(self, input_name: str) -> ResumePoint:
        return await self._pieces.place(input_name)

    @property
    def stores_lost(self) -> int:
        """Number of losses and restores of local stores."""
        return self._publisher.stores_lost

    async def knows(self, request: Request) -> bool:
        return await self._publisher.knows(request)

    async def stored_of(self, input_name: str, piece: Chunk) -> int | None:
        """Return a bitmap of a piece's stored lines, None for all."""
        return await self._pieces.stored(input_name, piece)

    async def piece(self, input_name: str, piece: Chunk) -> tuple[int, str | None]:
        """Return a piece's number and the position before it."""
        return await self._pieces.piece(input_name, piece)

    def go_on(self, input_name: str, cls: str, number: int, position: str) -> None:
        """Advance an input past a piece that ends at `position`."""
        self._pieces.go_on(input_name, cls, number, position)

    async def submit_piece(self, input_name: str, cls: str, chunk: Chunk, parts: Sequence[Fragment]) -> None:
        """Store a piece's readings in these parts; others are not stored."""
        await self._pieces.store(input_name, cls, chunk, parts)


class SwappableIntake:
    """The `Intake` of inputs, which forwards to the replaceable `behind`."""

    def __init__(self, behind: QuickIntake) -> None:
        self.behind = behind

    @property
    def domain(self) -> str:
        return self.behind.domain

    @property
    def notes(self) -> Notes:
        return self.behind.notes

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        await self.behind.submit(input_name, cls, chunk)

    def hand_in(self, input_name: str, cls: str, chunk: Chunk, settled: Settled) -> bool:
        return self.behind.hand_in(input_name, cls, chunk, settled)

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        await self.behind.dead_letter(input_name, cls, letters)

    async def position(self, input_name: str) -> ResumePoint:
        return await self.behind.position(input_name)
