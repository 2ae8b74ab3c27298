"""Reads all files of an input in turn; blocks, so call it in a thread.

Lines stay unread until `TailGroup.take`. The position travels with the lines; the catalogue is saved before
lines of a file that it lacks are stored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from agent import contract
from agent.leaf.inputs.file.catalogue import Catalogue, Doubt, Tracked
from agent.leaf.inputs.file.open_file import OpenFile, ReplacedError, TailedLines, file_state
from agent.leaf.inputs.file.positions import (
    MAX_FILES,
    Generation,
    Position,
    Status,
    encode,
    encode_kept,
    key_of,
    merged,
    parse_kept,
    parse_position,
)
from agent.leaf.inputs.formats import ReadLimits
from agent.leaf.intake import MAX_POSITION

SCAN: Final = 1.0
"""Seconds between looks at all paths."""
QUIET: Final = 1.0
"""Seconds without growth before a renamed file is left, as its writer may still use it."""
REST: Final = 10.0
"""Seconds before a read, deleted file is closed to free its disk space."""
_TRIES: Final = 10
_MANY_TRIES: Final = 1000
"""While a place is unreadable."""
_LEAST: Final = 1024
"""Least remaining bytes to read a further file."""


class ReadResult(Struct):
    """Lines and findings of all files."""

    pieces: list[TailedLines] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    """Possibly doubled or missing lines."""
    warnings: list[str] = field(default_factory=list)
    """Possible mistakes, in sentences."""
    too_long: list[str] = field(default_factory=list)
    """Places of skipped lines."""
    nuls: list[tuple[str, int, int]] = field(default_factory=list)
    """File, byte and number of skipped NULs."""
    absent: list[str] = field(default_factory=list)
    """Paths without file."""
    problems: list[str] = field(default_factory=list)
    """Unreadable places, in sentences."""
    more: bool = False
    """Whether to read on at once."""


class TailGroup:
    """Reads files of absolute `paths` from a position and a catalogue. Not for two threads. Raises
    `ContractError`.

    `from_end` as in `Catalogue`; `poll` is the pause of a finished file in seconds; the first gathering ends
    at `until`, as before a kill; `line` bounds lines in bytes; `descriptors` bounds open files.
    """

    def __init__(
        self,
        paths: Sequence[str],
        position: str | None,
        kept: str | None,
        *,
        from_end: bool = False,
        poll: float = 0.0,
        until: str | None = None,
        line: int = contract.MAX_BATCH_BYTES,
        descriptors: int = MAX_FILES,
    ) -> None:
        self._paths, self._from_end = paths, from_end
        self._poll, self._descriptors = poll, descriptors
        self._scanned = -math.inf
        self._limits = ReadLimits(line)
        self._before = None if position is None else parse_position(position)
        self._kept = None if kept is None else parse_kept(kept)
        self._until = until
        newest = self._before if until is None else parse_position(until)
        self._catalogue = self._restore(newest)
        self._number = 0 if self._kept is None else self._kept.c
        """Of the saved catalogue."""
        self._saved = {} if self._kept is None else self._kept.generations()
        self._saved_looked = set() if self._kept is None else set(self._catalogue.looked)
        read = {one.id: one for one in self._saved.values() if one.status in (Status.OPEN, Status.DONE)}
        self.is_from_older_state = newest is None and any(one.offset for one in read.values())
        """Whether more may be stored of a file than the catalogue knows, which alone tells its place."""
        if newest is not None and self._number < newest.c:
            self._number = newest.c
            self.is_from_older_state = not read.keys() <= newest.generations().keys()
        self._told = set(self._catalogue.tracked)
        """Generations in the catalogue that is kept, or in the position that is stored."""
        self._tries = 0
        self._turn = 0
        self._round: list[tuple[Tracked, TailedLines]] = []

    def _restore(self, header: Position | None) -> Catalogue:
        kept = self._kept
        is_older = header is not None and (0 if kept is None else kept.c) < header.c
        looked: Iterable[bytes] = kept.keys() if kept is not None else ()
        if is_older:
            looked = map(key_of, self._paths)
        known = merged(header, kept)
        is_first = header is None and kept is None
        return Catalogue(
            self._paths,
            known,
            following=1 if kept is None else kept.next,
            looked=looked,
            from_end=self._from_end and is_first,
            is_older=is_older,
        )

    def gather(self, now: float) -> ReadResult:
        """Read a batch's pieces, and again the pieces that were not stored. `now` in monotonic seconds."""
        gathered = ReadResult()
        if now - self._scanned >= SCAN:
            self._scanned = now
            self._catalogue.scan(now)
            gathered.warnings, gathered.doubts = self._catalogue.warnings, self._catalogue.doubts
            gathered.absent = self._catalogue.absent
        if self._until is not None:
            self._read_again(self._until, now, gathered)
        else:
            self._read(now, gathered)
            # By the same order the same lines are read again, should the agent be killed meanwhile.
            self._round.sort(key=lambda entry: entry[0].known.id)
        gathered.pieces = [piece for _, piece in self._round]
        unreadable = [one.unreadable for one in self._tracked() if one.unreadable is not None]
        gathered.problems = [*self._catalogue.problems.values(), *unreadable]
        return gathered

    def unkept(self) -> str | None:
        """Return the catalogue if it must be saved before storing."""
        if self._until is not None:
            return None
        known = {number: one.known for number, one in self._catalogue.tracked.items()}
        is_same = self._catalogue.looked == self._saved_looked and known.keys() == self._saved.keys()
        is_same = is_same and all(_same_but_read(one, self._saved[number]) for number, one in known.items())
        if is_same and self.position() is not None:
            return None
        return encode_kept(
            self._number + 1, self._catalogue.following, self._catalogue.looked, known.values()
        )

    def keep(self) -> None:
        """Note the catalogue as saved."""
        self._number += 1
        self._saved = {number: one.known for number, one in self._catalogue.tracked.items()}
        self._saved_looked = set(self._catalogue.looked)
        self._told = set(self._saved)

    def position(self) -> str | None:
        """Return the position of the last gathering, None if the catalogue must be saved first."""
        if self._until is not None:
            return self._until
        changed = self._changed()
        live = {number: one.known for number, one in self._catalogue.tracked.items() if one.live and one.open}
        tracked = self._catalogue.tracked.items()
        begun = [one.known for number, one in tracked if one.known.offset and number not in self._told]
        for known in ({**live, **changed}, changed):
            text = encode(self._number, known.values(), begun)
            if len(text) <= MAX_POSITION:
                return text
        return None

    def _changed(self) -> dict[int, Generation]:
        """Return changes since the saved catalogue."""
        behind = {one.known.id: _behind(one, piece) for one, piece in self._round}
        tracked = self._catalogue.tracked.items()
        now = {number: behind.get(number, one.known) for number, one in tracked}
        changed = {number: known for number, known in now.items() if known != self._saved.get(number)}
        dropped = self._saved.keys() - now.keys()
        return changed | {number: self._saved[number].dropped() for number in dropped}

    def take(self) -> None:
        """Accept the last gathering."""
        if self._until is None:
            for one, piece in self._round:
                one.known = _behind(one, piece)
                if one.reader is not None:
                    one.reader.move(piece.end, piece.fingerprint)
            self._told = set(self._catalogue.tracked)
        self._round = []
        self._until = None

    def narrow(self) -> bool:
        """Halve the read size; False for a single line."""
        pieces = [piece.lines for _, piece in self._round]
        if len(pieces) == 1 and b"\n" not in pieces[0][:-1]:
            return False
        if self._until is not None:  # by another parser it has more readings than when it was begun
            self._give_up()
            return True
        self._limits = replace(self._limits, bytes=max(1, sum(map(len, pieces)) // 2))
        return True

    @property
    def is_reading_again(self) -> bool:
        """Tell whether the gathering repeats one before a kill."""
        return self._until is not None

    def close(self) -> None:
        self._catalogue.close()

    def _tracked(self) -> list[Tracked]:
        return [one for one in self._catalogue.tracked.values() if one.open]

    def _read_again(self, until: str, now: float, gathered: ReadResult) -> None:
        self._round = []
        header, where = parse_position(until), "a file"
        before = header.starts() | merged(self._before, self._kept)
        for number, end in sorted(header.generations().items()):
            start = before[number].offset if number in before else 0
            if end.offset <= start or end.status is not Status.OPEN:
                continue  # none of its lines were in the batch
            one = self._catalogue.tracked.get(number)
            piece = None if one is None or one.found is None else self._last_piece(one, start, end)
            if one is None or piece is None:
                self._round = []
                where = one.path if one is not None and one.path else where
                break
            self._round.append((one, piece))
        gathered.more = bool(self._round)
        if self._round:
            return
        self._tries += 1
        if self._tries >= (_MANY_TRIES if self._catalogue.problems else _TRIES):
            self._give_up()
            reason = "no longer has the lines that were stored in part when the agent ended"
            gathered.doubts += [Doubt("twice", where, reason), Doubt("lacks", where, reason)]

    def _give_up(self) -> None:
        self._until = None
        self._catalogue.close()
        self._catalogue = self._restore(self._before)
        self._told = set(self._catalogue.tracked)
        self._scanned = -math.inf

    def _last_piece(self, one: Tracked, start: int, end: Generation) -> TailedLines | None:
        try:
            file = OpenFile(one.path, one.known.inode, start)
        except (ReplacedError, OSError):
            return None
        try:
            limits = ReadLimits(self._limits.line, lines=contract.MAX_BATCH_BYTES)
            while file.offset < end.offset:
                read = file.read(limits, stop=end.offset)
                if read.piece is not None:
                    return read.piece if end.holds(read.piece.fingerprint) else None
                if not read.more:
                    return None
        except OSError:
            return None
        finally:
            file.close()
        return None

    def _read(self, now: float, gathered: ReadResult) -> None:
        self._round = []
        files = self._tracked()
        begin = self._turn % max(1, len(files))
        room = self._limits
        for one in itertools.chain(files[begin:], files[:begin]):
            if one.idle_until <= now:
                piece = self._look(one, now, room, gathered)
                if piece is not None:
                    gathered.more = True
                    if self._round and len(piece.lines) > room.bytes:
                        return  # a line that has no room here, and will have beside less
                    self._round.append((one, piece))
                    room = replace(room, bytes=room.bytes - len(piece.lines))
                    if room.bytes >= _LEAST:  # else there is no need to count lines, which takes time
                        room = replace(room, lines=room.lines - piece.lines.count(b"\n"))
            self._turn += 1
            if room.bytes < _LEAST or room.lines <= 0 or len(self._round) >= MAX_FILES // 2:
                return

    def _look(self, one: Tracked, now: float, room: ReadLimits, gathered: ReadResult) -> TailedLines | None:
        one.unreadable = None
        try:
            # A file that is held is open already, for it may be deleted before its turn.
            if not self._opened(one) or self._catalogue.is_held(one):
                one.idle_until = now + self._poll
                return None
            reader = one.reader
            assert reader is not None
            reader.refresh(now)
            last = reader.drained and self._is_left(one, reader, now)
            if reader.drained and not last:
                self._rest(one, now)
                return None
            read = reader.read(room, last=last)
        except OSError as error:
            one.unreadable = f"{error.filename or one.path}: {error.strerror}"
            one.idle_until = now + self._poll
            return None
        if read.too_long is not None:
            gathered.too_long.append(read.too_long)
        if read.nuls is not None:
            gathered.nuls.append((one.path, *read.nuls))
        if read.piece is None and not read.more:
            one.idle_until = now + self._poll
            if not read.changed and not reader.drained:
                return None
            if last and not read.changed:
                self._catalogue.finish(one)
                gathered.more = True  # what comes after it may be read
            elif not read.changed:
                gathered.more |= self._is_left(one, reader, now)
        gathered.more |= read.more
        return read.piece

    def _opened(self, one: Tracked) -> bool:
        if one.reader is not None:
            return True
        if one.found is None or (one.live and one.rested is not None and file_state(one.path) == one.rested):
            return False
        if one.live and self._held() >= self._descriptors:
            return False
        try:
            reader = OpenFile(one.path, one.known.inode, one.known.offset)
        except ReplacedError:
            return False
        if not one.known.holds(reader.fingerprint):
            reader.close()
            return False
        one.reader, one.rested = reader, None
        return True

    def _held(self) -> int:
        return sum(one.live and one.reader is not None for one in self._catalogue.tracked.values())

    def _is_left(self, one: Tracked, reader: OpenFile, now: float) -> bool:
        """Tell whether a read file is done: replaced at its path or deleted."""
        if one.live or now - reader.since < QUIET:
            return False
        if self._catalogue.has_successor(one):
            return True
        is_whole = reader.offset >= reader.size
        if one.found is not None:
            return is_whole
        return (is_whole or reader.deleted) and now - reader.since >= REST

    def _rest(self, one: Tracked, now: float) -> None:
        one.idle_until = now + self._poll
        reader = one.reader
        if reader is None or not one.live:
            return
        if self._held() >= self._descriptors and reader.offset == one.known.offset:
            one.rested = file_state(one.path)
            one.close()


def _behind(one: Tracked, piece: TailedLines) -> Generation:
    nuls = one.known.of if one.reader is None else max(one.known.of, one.reader.nuls)
    return one.known.at(piece.end, piece.fingerprint)._replace(of=nuls)


def _same_but_read(one: Generation, other: Generation) -> bool:
    """Tell whether records differ only in progress."""
    if one.status is Status.OPEN is other.status:
        return (one.home, one.inode) == (other.home, other.inode)
    return one == other
