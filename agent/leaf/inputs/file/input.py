"""Tails files of NDJSON or Influx line protocol through rotations: the input `file`.

A batch carries its lines' position in all files, so a killed agent continues exactly there. One batch is in
flight, and refused ones are repeated. The catalogue is saved before lines of a file that it lacks are stored.
Invalid lines become dead letters; doubtful lines are named in the ledger. docs/inputs.md describes the
guarantees.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent import contract
from agent.base.clock import wall_ns
from agent.base.files import UnseenError, mode_at
from agent.base.logs import LogEdge, listed
from agent.base.metrics import Metrics
from agent.base.wait import event_within, unless
from agent.leaf.inputs.file import FileOptions
from agent.leaf.inputs.file.catalogue import Doubt
from agent.leaf.inputs.file.listing import is_wild
from agent.leaf.inputs.file.open_file import TailedLines
from agent.leaf.inputs.file.positions import MAX_FILES
from agent.leaf.inputs.file.tail_group import ReadResult, TailGroup
from agent.leaf.inputs.formats import MAX_LINE, LineParser, Parsed, join_parsed
from agent.leaf.inputs.shared import NO_SERVER, LocalServer
from agent.leaf.inputs.shared.positioned_input import PositionedInput
from agent.leaf.intake import Chunk, Intake

MIN_POLL: Final = 0.01
MAX_POLL: Final = 3600.0
_SHOWN: Final = 3


class FileInput(PositionedInput[FileOptions]):
    _stored = "lines are stored again"

    def __init__(self, options: FileOptions, metrics: Metrics, server: LocalServer = NO_SERVER) -> None:
        super().__init__(options, metrics, server)
        paths = [options.path] if isinstance(options.path, str) else options.path
        self._paths = list(dict.fromkeys(str(Path(path).absolute()) for path in paths))
        self._reading = LogEdge(self._log, "all files can be read again")
        self._keeping = LogEdge(self._log, "catalogue kept again", error=True)
        self._absent: set[str] = set()

    def _mistakes(self) -> Iterator[str]:
        named = [path for path in self._paths if not is_wild(path)]
        for path in self._paths:
            if "\0" in path:
                yield f"{path!r:.200} holds a NUL; leave it out"
        yield from self._options.line_problems()
        if not MIN_POLL <= self._options.poll <= MAX_POLL:
            yield f"poll is {self._options.poll} s; take 10ms to 1h"
        if not contract.MAX_BATCH_BYTES <= self._options.line <= MAX_LINE:
            yield f"line is {self._options.line} bytes; take 256KiB to 4MiB"
        if not self._paths:
            yield "path names no file; give one at least"
        if len(named) > MAX_FILES:
            yield f"path names {len(named)} files; at most {MAX_FILES} fit into one input"
        for path in self._paths:
            if "**" in path:
                yield f"{path} has the wildcard **, which is unsupported; name each folder, or use * for one"
        yield from _same([path for path in named if "\0" not in path])

    def _obstacles(self) -> Iterator[str]:
        # A file that does not exist yet is none.
        for path in self._paths:
            if is_wild(path):
                continue
            try:
                mode = mode_at(path)
            except UnseenError as why:
                yield f"{path} cannot be looked at ({why}); let the agent's user read it"
                continue
            if mode is not None and not stat.S_ISREG(mode):
                yield f"{path} is not a regular file; name a file to read"

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Tail until `stopping`. Raises `contract.ContractError` for a lost or unreadable position, to avoid
        loss and repeats.
        """
        self._intake, self._stopping = intake, stopping
        resume = await unless(stopping, intake.position(self.name))
        if resume is None:
            return
        options = self._options
        if resume.lost and options.start is None:
            raise contract.ContractError(
                f"where input {self.name!r} was is lost with the state file: from their beginning its files "
                'might be stored twice; set start = "end" or start = "beginning" to say where it goes on'
            )
        following = TailGroup(
            self._paths,
            resume.position,
            None if resume.lost else await self._catalogue(intake),
            until=resume.until,
            from_end=options.start == "end",
            poll=options.poll,
            line=options.line,
            descriptors=_descriptors(),
        )
        if intake.notes.take_stale(self.name) or following.is_from_older_state:
            reason = "are read from a position of an older copy of the agent's state, which was restored"
            await self._doubt(Doubt("twice", "all files", reason))
        parser = options.parser(intake.domain)
        try:
            while not stopping.is_set():
                if not await self._step(following, parser):
                    await event_within(stopping, options.poll)
        finally:
            following.close()

    async def _step(self, following: TailGroup, parser: LineParser) -> bool:
        """Look and store once; False when the next look may wait."""
        gathered, parsed = await asyncio.to_thread(_look, following, parser)
        self._tell(gathered)
        for doubt in gathered.doubts:
            await self._doubt(doubt)
        await self._keep(following)
        position = following.position() if gathered.pieces else None
        if position is None:
            return gathered.more and not gathered.pieces
        return await self._store(following, position, gathered, parsed)

    async def _catalogue(self, intake: Intake) -> str | None:
        """Return the saved catalogue, None if unreadable."""
        try:
            return await intake.notes.kept(self.name)
        except OSError as error:
            self._log.error("catalogue unreadable", error=str(error))
            return None

    async def _keep(self, following: TailGroup) -> None:
        """Save a changed catalogue; otherwise the position holds the difference while it fits."""
        if (text := following.unkept()) is None:
            return
        try:
            await self._intake.notes.keep(self.name, text)
        except OSError as error:
            self._keeping.begin("catalogue not kept", error=str(error))
        else:
            self._keeping.end()
            following.keep()

    async def _doubt(self, doubt: Doubt) -> None:
        may = "may be twice" if doubt.kind == "twice" else "may lack"
        self._log.warning(f"lines {may}", file=doubt.where, reason=doubt.reason)
        named = contract.Doubt(doubt.kind, self.name, doubt.where, doubt.reason, time.time_ns())
        await self._intake.notes.doubt(self._options.class_, named)

    async def _store(
        self, following: TailGroup, position: str, gathered: ReadResult, parsed: list[Parsed]
    ) -> bool:
        chunk = Chunk(
            b"".join(part.payload for part in parsed),
            sum(part.count for part in parsed),
            position=position,
            letters=tuple(itertools.chain.from_iterable(map(_letters, gathered.pieces, parsed))),
        )
        if not await self._submit(chunk):
            return False
        if no_value := sum(part.no_value for part in parsed):
            self._metrics.missing_values.labels(self.name).inc(no_value)
        for letter in chunk.letters:
            self._skip(letter.at, "bad_line", letter.reason)
        following.take()
        return True

    def _count_unstorable(self, reason: str) -> None:
        self._skip("a reading", "too_large", reason)

    def _tell(self, gathered: ReadResult) -> None:
        problems = gathered.problems
        self._up.set(0 if problems else 1)
        if problems:
            text = listed(problems, _SHOWN, by="; ")
            self._reading.begin(f"{text}; nothing is read there until that is over")
        else:
            self._reading.end()
        for path in gathered.absent:
            if path not in self._absent:
                self._log.info(f"{path} is not there yet; it is read as soon as it is")
        self._absent.update(gathered.absent)
        for text in gathered.warnings:
            self._log.warning(text)
        for path, offset, count in gathered.nuls:
            self._invalid.labels(self.name, "nul").inc(count)
            self._sparse.report(self._log.warning, "NULs skipped", at=f"{path}:{offset}", bytes=count)
        for location in gathered.too_long:
            self._skip(location, "too_long", f"longer than {self._options.line} bytes (option line)")

    def _skip(self, location: str, reason: str, text: str) -> None:
        self._invalid.labels(self.name, reason).inc()
        self._sparse.report(self._log.warning, "line skipped", at=location, reason=text)


def _descriptors() -> int:
    """Return how many files may be open: a quarter of the process's limit."""
    return max(4, min(2 * MAX_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))


def _letters(piece: TailedLines, parsed: Parsed) -> tuple[contract.Letter, ...]:
    return tuple(
        contract.Letter(
            piece.lines[offset:].partition(b"\n")[0], f"{piece.file}:{piece.offset + offset}", reason
        )
        for offset, reason in parsed.bad
    )


def _look(following: TailGroup, parser: LineParser) -> tuple[ReadResult, list[Parsed]]:
    while True:
        gathered = following.gather(time.monotonic())
        parsed = [_parse(parser, piece.lines) for piece in gathered.pieces]
        if sum(part.count + len(part.bad) for part in parsed) <= contract.MAX_BATCH_READINGS:
            return gathered, parsed
        if not following.narrow():
            return gathered, [_bounded(part) for part in parsed]


def _parse(parser: LineParser, lines: bytes) -> Parsed:
    if not lines.endswith(b"\n") and not parser.is_whole(lines):
        return Parsed(b"", 0, ((0, "the last line of the file has no newline, so it may have been cut off"),))
    return join_parsed(list(parser.parts(lines, wall_ns())))


def _bounded(parsed: Parsed) -> Parsed:
    """Refuse a line with more readings than a batch."""
    if parsed.count <= contract.MAX_BATCH_READINGS:
        return parsed
    return Parsed(b"", 0, ((0, f"this line has {parsed.count} fields, above {contract.MAX_BATCH_READINGS}"),))


def _same(named: list[str]) -> Iterator[str]:
    """Yield named paths of one file."""
    by_target: dict[str, str] = {}
    for path in named:
        first = by_target.setdefault(os.path.realpath(path), path)
        if first != path:
            yield f"{path} and {first} are one file; name it once"
