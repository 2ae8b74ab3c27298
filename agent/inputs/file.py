"""The input `file`: tails one NDJSON file through rotations.

Each batch carries the position behind its lines, so lines and position are stored in one act: an agent that
is killed goes on exactly there. One batch is in flight; what is refused is handed in again, for the file
still has it. Lines that are not readings are counted, reported with their place and kept as dead letters.

Rotation may rename the file or copy and truncate it, also several times while the agent is down: files beside
it with its name and a number or a time are then read first. What can't be recovered: lines in a file that was
compressed or deleted before they were read; lines written to a renamed file a second or more after its
successor was begun; the bytes between copying and truncating, which the rotation itself loses. With `start =
"end"` the end is that at the start of the agent for as long as no line of the file has been stored.

Options (`[[input]]` with `type = "file"`):
- `path`: the file; it need not be there yet.
- `name` ("file"): names the input in batch subjects and metrics; under another name it begins anew.
- `class` ("normal"): the class of its readings.
- `ack` ("stored"): or "hub", then one batch after the other waits until the hub holds it.
- `start` ("beginning"): or "end"; where to begin in a file of which nothing has been stored yet.
- `poll` ("250ms"): how often to look whether the file has grown.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import ClassVar, Final, Literal

import structlog

from agent import contract
from agent.clock import wall_ns
from agent.config import Seconds
from agent.inputs.follow import Follower, Look, Piece
from agent.inputs.options import InputOptions
from agent.inputs.report import Fault, Sparse
from agent.inputs.rotation import parse_position
from agent.inputs.sift import Sifted, sift
from agent.inputs.stopping import unless
from agent.intake import Chunk, Intake, Reason, RefusedError, UnknownOutcomeError
from agent.metrics import Metrics

MIN_POLL: Final = 0.01
MAX_POLL: Final = 3600.0
_MAX_RETRY: Final = 30.0
_RETRY: Final = 1.0


class FileOptions(InputOptions, tag="file", kw_only=True):
    """The options of one `file` input; the module says what each means."""

    name: str = "file"
    path: Path
    pulls: ClassVar[bool] = True
    start: Literal["beginning", "end"] = "beginning"
    poll: Seconds = Seconds(0.25)


class FileInput:
    """Tails one file."""

    def __init__(self, options: FileOptions, metrics: Metrics) -> None:
        self._options = options
        self._path = options.path.absolute()
        self._up = metrics.input_up.labels(options.name)
        self._invalid = metrics.invalid
        self._log = structlog.get_logger("file").bind(input=options.name)
        self._reading = Fault(self._log, f"{self._path} can be read again")
        self._storing = Fault(self._log, "lines are stored again")
        self._sparse = Sparse()
        self._absent = False

    @property
    def name(self) -> str:
        """The name in the configuration and in the batch subject."""
        return self._options.name

    def check(self) -> list[str]:
        """What stands in the way, one sentence a problem. A file that is not there yet does not."""
        problems = []
        if not MIN_POLL <= self._options.poll <= MAX_POLL:
            problems.append(f"input {self.name!r}: poll is {self._options.poll} s; take 10ms to 1h")
        if self._path.exists() and not self._path.is_file():
            problems.append(f"input {self.name!r}: {self._path} is not a regular file; name a file to read")
        return problems

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Tail the file until `stopping` is set. Raises `contract.ContractError` when the stored position
        can't be read: going on without it would lose or repeat lines."""
        place = await unless(stopping, intake.position(self.name))
        if place is None:
            return
        position = None if place.position is None else parse_position(place.position)
        follower = Follower(self._path, position, from_end=self._options.start == "end")
        try:
            while not stopping.is_set():
                if not await self._step(follower, intake, stopping):
                    await unless(stopping, asyncio.sleep(self._options.poll))
        finally:
            follower.close()

    async def _step(self, follower: Follower, intake: Intake, stopping: asyncio.Event) -> bool:
        """Look once and store what was found; False when the next look may wait."""
        try:
            look, sifted = await asyncio.to_thread(_look, follower, intake.domain)
        except OSError as error:
            self._up.set(0)
            self._reading.begin(
                f"{error.filename or self._path}: {error.strerror}; nothing is read until that is over"
            )
            return False
        self._up.set(1)
        self._reading.end()
        self._tell(look)
        if look.piece is None:
            return look.more
        return await self._store(follower, look.piece, sifted, intake, stopping)

    async def _store(
        self, follower: Follower, piece: Piece, sifted: Sifted, intake: Intake, stopping: asyncio.Event
    ) -> bool:
        chunk = Chunk(
            sifted.payload, sifted.count, position=piece.after.encode(), letters=_letters(piece, sifted)
        )
        try:
            if not await self._submit(chunk, intake, stopping):
                return False
        except RefusedError as refusal:
            if follower.halve(piece):
                return True
            self._skip(f"{piece.file}:{piece.offset}", refusal.reason, str(refusal))
        for offset, reason in sifted.bad:
            self._skip(f"{piece.file}:{piece.offset + offset}", "bad_line", reason)
        follower.take(piece)
        return True

    async def _submit(self, chunk: Chunk, intake: Intake, stopping: asyncio.Event) -> bool:
        """Hand a chunk in until it is stored; False when the agent stops before. Raises `RefusedError` for
        one that is too large."""
        while not stopping.is_set():
            try:
                await intake.submit(self.name, self._options.class_, chunk)
                stored = True
            except RefusedError as refusal:
                if refusal.reason is Reason.TOO_LARGE:
                    raise
                self._storing.begin(str(refusal))
                delay = min(refusal.retry_after or _RETRY, _MAX_RETRY)
                await unless(stopping, asyncio.sleep(delay))
                stored = False
            except UnknownOutcomeError as error:
                self._storing.begin(str(error))
                place = await unless(stopping, intake.position(self.name))
                stored = place is not None and place.position == chunk.position
            if stored:
                self._storing.end()
                return True
        return False

    def _tell(self, look: Look) -> None:
        if look.absent and not self._absent:
            self._log.info(f"{self._path} is not there yet; it is read as soon as it is")
        self._absent = look.absent
        if look.lost is not None:
            self._log.warning(look.lost)
        if look.too_long is not None:
            self._skip(look.too_long, "too_long", f"longer than {contract.MAX_BATCH_BYTES} bytes")

    def _skip(self, place: str, reason: str, text: str) -> None:
        self._invalid.labels(self.name, reason).inc()
        held_back = self._sparse.held_back(time.monotonic())
        if held_back is not None:
            self._log.warning("line skipped", at=place, reason=text, not_reported_before=held_back)


def _letters(piece: Piece, sifted: Sifted) -> tuple[contract.Letter, ...]:
    return tuple(
        contract.Letter(
            piece.lines[offset:].partition(b"\n")[0], f"{piece.file}:{piece.offset + offset}", reason
        )
        for offset, reason in sifted.bad
    )


def _look(follower: Follower, domain: str) -> tuple[Look, Sifted]:
    look = follower.look(time.monotonic())
    return look, sift(look.piece.lines if look.piece else b"", domain, wall_ns())
