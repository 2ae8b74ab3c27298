"""Stores pull inputs' chunks ("pieces") so that each line is stored once, even across several messages.

A piece's messages (fragments) are stored in turn. Each has in `Petiole-Position`: `<piece> - <position>` when
the piece is settled, else `<piece> <lines> <size> <before><position>`. `<lines>` is a base64 bitmap of stored
lines, lowest bit first; `<size>` is the length of the position before (`-`: none). So the newest fragment of
all streams has the full state.

An input continues before a partly stored piece, which must end at the same place. Its stored lines are left
out before the rules, which may have changed since, see them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

import structlog
from msgspec import Struct

from agent.contract import Letter, Request
from agent.leaf.intake import (
    MAX_POSITION,
    Chunk,
    RefusalReason,
    RefusedError,
    ResumePoint,
    UnknownOutcomeError,
)
from agent.leaf.publish.dead_letters import DeadLetterWriter
from agent.leaf.publish.pull_progress import MAX_LINES, Progress, Shape, bits

log = structlog.get_logger("pieces")


def warn_renumbered(input_name: str) -> None:
    """Log that a partly stored piece was read differently."""
    log.warning(
        "the lines that were being stored when the agent ended cannot be read again as they were: "
        "some of them may be stored twice",
        input=input_name,
    )


class _PartialChunk(Struct):
    """A piece being stored: number, positions, and stored `lines` with letters after readings; `settled` when
    done.
    """

    input: str
    number: int
    before: str | None
    position: str
    lines: int
    shape: Shape
    request: Request | None = None
    settled: bool = False

    def with_(self, numbers: Sequence[int], *, last: bool) -> Progress:
        """Return the progress after these lines are stored."""
        if last:
            return Progress(self.number, self.position)
        return Progress(self.number, self.position, self.lines | bits(numbers), self.before, self.shape)


async def _no_wait(_input_name: str) -> None:
    """Do nothing: stored data is at its level."""


class PullChunkStore:
    """Stores pieces through `submit`.

    `recall` reads an input's progress without batches in flight; `remember` saves a settled piece without
    message; `is_lost` tells of a lost position; `reach` waits for the level.
    """

    def __init__(
        self,
        submit: Callable[[str, str, Chunk], Awaitable[None]],
        dead_letters: DeadLetterWriter,
        recall: Callable[[str], Awaitable[Progress | None]],
        remember: Callable[[str, str, str], None],
        is_lost: Callable[[str], bool] = lambda _: False,
        reach: Callable[[str], Awaitable[None]] = _no_wait,
    ) -> None:
        self._submit, self._dead_letters = submit, dead_letters
        self._recall, self._remember, self._is_lost = recall, remember, is_lost
        self._reach = reach
        self._known: dict[str, Progress | None] = {}

    async def place(self, input_name: str) -> ResumePoint:
        self._known.pop(input_name, None)
        progress = self._known[input_name] = await self._recall(input_name)
        return ResumePoint(lost=self._is_lost(input_name)) if progress is None else progress.place()

    async def stored(self, input_name: str, chunk: Chunk) -> int | None:
        """Return a bitmap of a piece's stored lines, None for all."""
        if input_name not in self._known:
            await self.place(input_name)
        known = self._known[input_name]
        return 0 if known is None or not known.is_of(chunk) else known.lines

    async def piece(self, input_name: str, chunk: Chunk) -> tuple[int, str | None]:
        """Return a piece's number, which grows per input, and the position before it."""
        if input_name not in self._known:
            await self.place(input_name)
        known = self._known[input_name]
        if known is None:
            return 1, None
        if known.is_of(chunk):
            return known.piece, known.before
        return known.piece + 1, known.before if known.lines is not None else known.position

    def go_on(self, input_name: str, cls: str, number: int, position: str) -> None:
        """Advance an input past a piece; the last pieces stored no message."""
        progress = self._known[input_name] = Progress(number, position)
        self._remember(input_name, cls, progress.encode())

    async def store(self, input_name: str, cls: str, chunk: Chunk, parts: Sequence[Fragment]) -> None:
        """Store the rest of a piece: letters in class `cls`, then parts. Raises `RefusedError` or
        `UnknownOutcomeError`.

        A repeat continues or waits for the level.
        """
        position = chunk.position
        assert position is not None
        if len(position) > MAX_POSITION or chunk.count + len(chunk.letters) > MAX_LINES:
            raise ValueError(f"a piece has a position of up to {MAX_POSITION} and up to {MAX_LINES} lines")
        stored = await self.stored(input_name, chunk)
        if stored is None:
            await self._reach(input_name)
            return
        number, before = await self.piece(input_name, chunk)
        piece = _PartialChunk(input_name, number, before, position, stored, Shape.of(chunk))
        known = self._known[input_name]
        if known is not None and known.lines is not None and not known.is_of(chunk):
            warn_renumbered(input_name)
        piece.request = chunk.request
        try:
            await self._store(piece, cls, chunk, [part for part in parts if part.count])
        except RefusedError:
            raise
        except BaseException:
            # What was sent and not answered may be stored: the stream knows.
            self._known.pop(input_name, None)
            raise

    async def _store(self, piece: _PartialChunk, cls: str, chunk: Chunk, parts: Sequence[Fragment]) -> None:
        numbered = enumerate(chunk.letters, chunk.count)
        letters = [(number, letter) for number, letter in numbered if not piece.lines >> number & 1]
        await self._dead_letter(piece, cls, letters, last=not parts)
        for part in parts:
            await self._send(piece, part, last=part is parts[-1])
        if not piece.settled:
            settled = self._known[piece.input] = Progress(piece.number, piece.position)
            self._remember(piece.input, cls, settled.encode())

    async def _send(self, piece: _PartialChunk, part: Fragment, *, last: bool) -> None:
        progress = piece.with_(part.numbers, last=last)
        chunk = Chunk(part.payload, part.count, piece.request, progress.encode(), on_settled=part.on_settled)
        try:
            await self._submit(piece.input, part.cls, chunk)
        except RefusedError as refusal:
            if refusal.reason is not RefusalReason.TOO_LARGE:
                raise
            await self._send_less(piece, part, str(refusal), last=last)
        else:
            self._note(piece, progress)

    async def _send_less(self, piece: _PartialChunk, part: Fragment, why: str, *, last: bool) -> None:
        """Split a part too large for one message."""
        if part.count > 1:
            first, second = part.halves()
            await self._send(piece, first, last=False)
            await self._send(piece, second, last=last)
            return
        (number,) = part.numbers
        letter = Letter(part.payload, f"reading {number + 1} before {piece.position}", why)
        await self._dead_letter(piece, part.cls, [(number, letter)], last=last)

    async def _dead_letter(
        self, piece: _PartialChunk, cls: str, letters: Sequence[tuple[int, Letter]], *, last: bool
    ) -> None:
        """Store or count letters; `last` if nothing follows."""
        while letters:
            kept = self._dead_letters.keep(piece.input, cls, [letter for _, letter in letters])
            taken, letters = letters[: kept.count + kept.omitted], letters[kept.count + kept.omitted :]
            progress = piece.with_([number for number, _ in taken], last=last and not letters)
            if not kept.count:
                # No message says so, and handed in again after a refusal they must not be counted again.
                self._note(piece, piece.with_([number for number, _ in taken], last=False))
                self._dead_letters.done(piece.input, cls, kept)
                continue
            chunk = Chunk(kept.payload, kept.count, position=progress.encode(), dead=True)
            try:
                await self._submit(piece.input, cls, chunk)
            except UnknownOutcomeError:
                self._dead_letters.done(piece.input, cls, kept)
                raise
            except BaseException:
                self._dead_letters.give_back(piece.input, cls, kept)
                raise
            self._dead_letters.done(piece.input, cls, kept)
            self._note(piece, progress)

    def _note(self, piece: _PartialChunk, progress: Progress) -> None:
        self._known[piece.input] = progress
        piece.lines |= progress.lines or 0
        piece.settled = progress.lines is None


class Fragment(Struct, frozen=True):
    """Readings of a piece for one class: NDJSON of `count` lines and their numbers.

    `on_settled` is called as a chunk's, unless the fragment is split.
    """

    cls: str
    payload: bytes
    count: int
    numbers: Sequence[int]
    on_settled: Callable[[int | None], None] | None = None

    def halves(self) -> Iterator[Fragment]:
        """Split in two; needs at least two lines."""
        rows, middle = self.payload.splitlines(keepends=True), self.count // 2
        for where in (slice(None, middle), slice(middle, None)):
            yield Fragment(self.cls, b"".join(rows[where]), len(rows[where]), self.numbers[where])


def whole(cls: str, payload: bytes, count: int, left_out: int = 0) -> Fragment:
    """Return all of a piece's readings except the bitmap `left_out`."""
    if not left_out:
        return Fragment(cls, payload, count, range(count))
    numbers = [number for number in range(count) if not left_out >> number & 1]
    rows = payload.split(b"\n")
    return Fragment(cls, b"".join(rows[number] + b"\n" for number in numbers), len(numbers), numbers)
