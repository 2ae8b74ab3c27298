"""Gathers lines of connections, datagrams and programs into chunks.

Each source holds at most its share of the input's buffer, and reads no more until some is stored, so the
kernel slows its sender.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from agent import contract
from agent.base.clock import wall_ns
from agent.base.wait import Pacer
from agent.contract import Letter
from agent.leaf.inputs.formats import LineParser, parse_lines
from agent.leaf.inputs.shared.submitter import RetryingSubmitter, letter

GATHER: Final = 0.005
"""Seconds that lines wait for more."""
BLOCK: Final = 128 * 1024
"""Bytes of lines stored without wait."""
MAX_SHARE: Final = 2**20
"""Most bytes per source."""
_LETTERS: Final = 100
"""Dead letters submitted at once."""
_LETTER: Final = 1024
"""Assumed bytes of a letter beside its content."""
_BAD_LINE: Final = 128
"""Assumed bytes of a bad line's place and reason."""
_MAX_BAD: Final = 1_000
"""Consecutive bad lines that show another protocol."""


class Buffer:
    """Bytes for all sources of an input, in equal shares of at most `share`; `group` owns the
    storing tasks.
    """

    def __init__(self, limit: int, group: asyncio.TaskGroup, share: int = MAX_SHARE) -> None:
        self._limit = limit
        self._share = share
        self._sources: set[GatheredSource] = set()
        self.group = group
        self.held = 0

    def join(self, source: GatheredSource) -> None:
        self._sources.add(source)

    def leave(self, source: GatheredSource) -> None:
        self._sources.discard(source)
        self.resume()

    def room(self, held: int) -> int:
        """Return how many more bytes a source may read, within its share and the total."""
        share = min(self._share, self._limit // max(1, len(self._sources)))
        return min(share - held, self._limit - self.held)

    def resume(self) -> None:
        """Resume sources that have room."""
        for source in self._sources:
            if source.paused and source.room > 0:
                source.go_on()


class GatheredSource:
    """A source's unsettled bytes; `pause` and `resume` control its reading."""

    def __init__(self, buffer: Buffer, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self.buffer = buffer
        self._pause, self._resume = pause, resume
        self.held = 0
        self.paused = False

    @property
    def room(self) -> int:
        """Bytes that may still be read."""
        return self.buffer.room(self.held)

    def hold(self, size: int) -> None:
        """Hold `size` more (or fewer) bytes, and pause or resume."""
        self.held += size
        self.buffer.held += size
        if size < 0:
            self.buffer.resume()
        if not self.paused and self.room <= 0:
            self.paused = True
            self._pause()

    def go_on(self) -> None:
        self.paused = False
        self._resume()


class Gatherer(GatheredSource):
    """Gathers lines of an unanswered source; counts bad ones, and calls `garbage` after many."""

    def __init__(
        self,
        buffer: Buffer,
        parser: LineParser,
        submitter: RetryingSubmitter,
        pause: Callable[[], None],
        resume: Callable[[], None],
        garbage: Callable[[], None],
    ) -> None:
        super().__init__(buffer, pause, resume)
        self._parser, self._submitter, self._garbage = parser, submitter, garbage
        self._bad = 0
        self._timer: asyncio.TimerHandle | None = None
        self._handed_in = asyncio.Event()
        """Set once the newest block is submitted."""
        self._handed_in.set()
        self._empty()

    def _empty(self) -> None:
        self._lines: list[bytes] = []
        self._size = 0
        self._origins: list[str] = []
        self._begins: list[int] = []

    def add(self, lines: bytes, origin: str) -> None:
        """Add whole lines from `origin`."""
        if not self._origins or origin is not self._origins[-1]:
            self._origins.append(origin)
            self._begins.append(self._size)
        self._lines.append(lines)
        self._size += len(lines)
        self.hold(len(lines))
        if self._size >= BLOCK:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER, self.flush)

    def dead_letter(self, reason: str, letters: Sequence[Letter]) -> None:
        """Keep invalid data under `reason`; the source holds it until stored."""
        size = sum(len(each.received) + _LETTER for each in letters)
        self.hold(size)
        self.buffer.group.create_task(self._dead_letter(reason, letters, size))

    def line_at(self, block: bytes, offset: int) -> bytes:
        """Return the received line at an offset."""
        end = block.find(b"\n", offset)
        return block[offset : len(block) if end < 0 else end]

    def flush(self) -> None:
        """Store the gathered lines."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lines:
            before, self._handed_in = self._handed_in, asyncio.Event()
            block = b"".join(self._lines)
            self.buffer.group.create_task(
                self._store(block, self._begins, self._origins, before, self._handed_in)
            )
            self._empty()

    async def _store(
        self,
        block: bytes,
        begins: list[int],
        origins: list[str],
        before: asyncio.Event,
        handed_in: asyncio.Event,
    ) -> None:
        """Store a block after `before`. Sets `handed_in` with its last chunk, so that no other block comes
        between.
        """
        held = len(block)
        try:
            parsed = await parse_lines(self._parser, block, wall_ns())
            self._submitter.miss(parsed.no_value)
            rest = len(block) + _BAD_LINE * len(parsed.bad) if parsed.bad else 0
            self.hold(len(parsed.payload) + rest - held)
            held = len(parsed.payload) + rest
            self._bad = 0 if parsed.count or parsed.no_value else self._bad + len(parsed.bad)
            if self._bad > _MAX_BAD:
                self._garbage()
            await before.wait()
            *chunks, last = _batches(parsed.payload, parsed.count) or [(b"", 0)]
            for payload, count in chunks:
                await self._submitter.store(payload, count)
            handed_in.set()
            if last[1]:
                await self._submitter.store(*last)
            if parsed.bad:
                await self._dead_letter_bad(block, parsed.bad, begins, origins)
        finally:
            handed_in.set()
            self.hold(-held)

    async def _dead_letter(self, reason: str, letters: Sequence[Letter], size: int) -> None:
        try:
            await self._submitter.dead_letter(reason, letters)
        finally:
            self.hold(-size)

    async def _dead_letter_bad(
        self, block: bytes, bad: Sequence[tuple[int, str]], begins: list[int], origins: list[str]
    ) -> None:
        """Keep a block's bad lines in groups; there may be one per two bytes."""
        pacer = Pacer()
        for first in range(0, len(bad), _LETTERS):
            letters = [
                letter(self.line_at(block, offset), origins[bisect_right(begins, offset) - 1], reason)
                for offset, reason in bad[first : first + _LETTERS]
            ]
            await self._submitter.dead_letter("bad_line", letters)
            await pacer.give_way()


def _batches(payload: bytes, count: int) -> list[tuple[bytes, int]]:
    """Split readings into chunks that fit a batch."""
    limit = contract.MAX_BATCH_READINGS
    if count <= limit:
        return [(payload, count)] if count else []
    rows = payload.splitlines(keepends=True)
    return [
        (b"".join(rows[first : first + limit]), len(rows[first : first + limit]))
        for first in range(0, count, limit)
    ]
