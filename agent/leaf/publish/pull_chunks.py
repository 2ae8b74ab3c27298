"""Stores the chunks of pull inputs ("pieces"), so that each line is stored once although a piece may go into
several messages: readings of several classes, and dead letters.

The messages of a piece, its fragments, are stored one after the other. Each says in `Petiole-Position` where
the input is: `<piece> - <position>` once all of a piece is settled, and before that
`<piece> <lines> <size> <before><position>`: which lines are stored (base64 of a bitmap, the first line is the
lowest bit), the positions before and behind the piece, and the length of the first (`-`: there is none). So
the newest of all fragments, in whatever stream, says everything, and a lost one is of an older piece.

An input goes on before a piece of which fragments are stored, and must end it where it ended; the lines that
are stored are then left out, whatever the rules say of them by now. How far each input is, is kept in memory
and read from the streams where it cannot be known."""

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
    """Log that a piece is not read again as it was when lines of it were stored."""
    log.warning(
        "the lines that were being stored when the agent ended cannot be read again as they were: "
        "some of them may be stored twice",
        input=input_name,
    )


class _PartialChunk(Struct):
    """A piece that is being stored: its number, the positions `before` and behind it, and the `lines` of it
    that are stored, letters counted behind the readings; `settled` once nothing of it is left."""

    input: str
    number: int
    before: str | None
    position: str
    lines: int
    shape: Shape
    request: Request | None = None
    settled: bool = False

    def with_(self, numbers: Sequence[int], *, last: bool) -> Progress:
        """How far the input is once these lines are stored too."""
        if last:
            return Progress(self.number, self.position)
        return Progress(self.number, self.position, self.lines | bits(numbers), self.before, self.shape)


async def _no_wait(_input_name: str) -> None:
    """Every level is that of what is stored."""


class PullChunkStore:
    """Stores pieces through `submit`. `recall` reads how far an input is, once nothing of it is in flight;
    `remember` notes that a piece is settled of which no message can say so; `is_lost` says whether that of an
    input was known and is not any more; `reach` returns once what is stored of an input has its level."""

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
        """Where an input goes on."""
        self._known.pop(input_name, None)
        progress = self._known[input_name] = await self._recall(input_name)
        return ResumePoint(lost=self._is_lost(input_name)) if progress is None else progress.place()

    async def stored(self, input_name: str, chunk: Chunk) -> int | None:
        """Which lines of a piece are stored, as a bitmap; None for all of them."""
        if input_name not in self._known:
            await self.place(input_name)
        known = self._known[input_name]
        return 0 if known is None or not known.is_of(chunk) else known.lines

    async def piece(self, input_name: str, chunk: Chunk) -> tuple[int, str | None]:
        """The number that a piece has or will have, and the position before it. Numbers of an input grow."""
        if input_name not in self._known:
            await self.place(input_name)
        known = self._known[input_name]
        if known is None:
            return 1, None
        if known.is_of(chunk):
            return known.piece, known.before
        return known.piece + 1, known.before if known.lines is not None else known.position

    def go_on(self, input_name: str, cls: str, number: int, position: str) -> None:
        """An input is behind the piece of this number, which ends at `position`: of some of the last ones
        nothing was stored, so that no message says it."""
        progress = self._known[input_name] = Progress(number, position)
        self._remember(input_name, cls, progress.encode())

    async def store(self, input_name: str, cls: str, chunk: Chunk, parts: Sequence[Fragment]) -> None:
        """Store what is left of a piece: its letters, for class `cls`, then the parts. Raises `RefusedError`
        or `UnknownOutcomeError`; handed in again it is gone on with, or its level is waited for."""
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
        """A part that the server does not take as one message."""
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
        """Store letters, or count them where too many come; `last` when nothing is stored after them."""
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
    """Some readings of a piece, for one class: NDJSON of `count` lines, and which of the piece's lines they
    are; `on_settled` is called as that of a chunk, unless the part is stored in several."""

    cls: str
    payload: bytes
    count: int
    numbers: Sequence[int]
    on_settled: Callable[[int | None], None] | None = None

    def halves(self) -> Iterator[Fragment]:
        """The same as two parts; there must be two lines at least."""
        rows, middle = self.payload.splitlines(keepends=True), self.count // 2
        for where in (slice(None, middle), slice(middle, None)):
            yield Fragment(self.cls, b"".join(rows[where]), len(rows[where]), self.numbers[where])


def whole(cls: str, payload: bytes, count: int, left_out: int = 0) -> Fragment:
    """All readings of a piece for one class, but for the lines of the bitmap `left_out`."""
    if not left_out:
        return Fragment(cls, payload, count, range(count))
    numbers = [number for number in range(count) if not left_out >> number & 1]
    rows = payload.split(b"\n")
    return Fragment(cls, b"".join(rows[number] + b"\n" for number in numbers), len(numbers), numbers)
