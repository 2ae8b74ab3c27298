"""What inputs and rules hold of the publish path: the `Intake` for readings, pieces and dead letters."""

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
        """The domain of this machine."""
        return self._domain

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        """Store a chunk, as `Intake.submit` says."""
        if chunk.position is None:
            await self._publisher.submit(input_name, cls, chunk)
            return
        stored = await self.stored_of(input_name, chunk)
        parts = [] if stored is None else [whole(cls, chunk.payload, chunk.count, stored)]
        await self.submit_piece(input_name, cls, chunk, parts)

    def hand_in(self, input_name: str, cls: str, chunk: Chunk, settled: Settled) -> bool:
        """Store a chunk without a task, as `QuickIntake.hand_in` says."""
        return chunk.position is None and self._publisher.hand_in(input_name, cls, chunk, settled)

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        """Keep what could not be taken, as `Intake.dead_letter` says."""
        await self._dead_letters.dead_letter(input_name, cls, letters)

    async def position(self, input_name: str) -> ResumePoint:
        """Where an input goes on, as `Intake.position` says."""
        return await self._pieces.place(input_name)

    @property
    def stores_lost(self) -> int:
        """How often a local store was lost or restored from a backup."""
        return self._publisher.stores_lost

    async def knows(self, request: Request) -> bool:
        """Whether a part of a request is in flight or stored, as `Publisher.knows` says."""
        return await self._publisher.knows(request)

    async def stored_of(self, input_name: str, piece: Chunk) -> int | None:
        """Which lines of a piece are stored, as a bitmap; None for all of them."""
        return await self._pieces.stored(input_name, piece)

    async def piece(self, input_name: str, piece: Chunk) -> tuple[int, str | None]:
        """The number of a piece, and the position before it."""
        return await self._pieces.piece(input_name, piece)

    def go_on(self, input_name: str, cls: str, number: int, position: str) -> None:
        """An input is behind the piece of this number, which ends at `position`."""
        self._pieces.go_on(input_name, cls, number, position)

    async def submit_piece(self, input_name: str, cls: str, chunk: Chunk, parts: Sequence[Fragment]) -> None:
        """Store a piece whose readings are in these parts, or are not to be stored at all."""
        await self._pieces.store(input_name, cls, chunk, parts)


class SwappableIntake:
    """The `Intake` that inputs hold: what it hands on to, `behind`, may be another one from one moment to the
    next."""

    def __init__(self, behind: QuickIntake) -> None:
        self.behind = behind

    @property
    def domain(self) -> str:
        """The domain of this machine."""
        return self.behind.domain

    @property
    def notes(self) -> Notes:
        """What is kept for pull inputs."""
        return self.behind.notes

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        """Store a chunk, as `Intake.submit` says."""
        await self.behind.submit(input_name, cls, chunk)

    def hand_in(self, input_name: str, cls: str, chunk: Chunk, settled: Settled) -> bool:
        """Store a chunk without a task, as `QuickIntake.hand_in` says."""
        return self.behind.hand_in(input_name, cls, chunk, settled)

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        """Keep what could not be taken, as `Intake.dead_letter` says."""
        await self.behind.dead_letter(input_name, cls, letters)

    async def position(self, input_name: str) -> ResumePoint:
        """Where an input goes on, as `Intake.position` says."""
        return await self.behind.position(input_name)
