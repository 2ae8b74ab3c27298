"""Reading all files that an input follows: the part that blocks, to be called in a thread.

What is read at a time comes from several files, in turn, so that none waits for another that has more. Where
all of them are goes along with it as one text. What was read stays unread until `TailGroup.take`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from agent import contract
from agent.leaf.inputs.file.file_set import FileSet, TrackedFile
from agent.leaf.inputs.file.open_file import TailedLines, TailRead
from agent.leaf.inputs.file.positions import FilePosition, encode, parse_positions
from agent.leaf.inputs.file.tailer import Tailer
from agent.leaf.inputs.formats import ReadLimits

SCAN: Final = 1.0
"""Seconds from one look at all paths to the next."""
_TRIES: Final = 10
_LEAST: Final = 1024
"""Bytes of room for which no further file is looked at."""


class ReadResult(Struct):
    """What was read of all files."""

    pieces: list[TailedLines] = field(default_factory=list)
    position: str = ""
    """The position behind all pieces."""
    lost: list[str] = field(default_factory=list)
    """Sentences on what is lost."""
    warnings: list[str] = field(default_factory=list)
    """Sentences on what may be a mistake."""
    too_long: list[str] = field(default_factory=list)
    """Where lines are that were skipped."""
    absent: list[str] = field(default_factory=list)
    """Paths at which there is no file."""
    problems: list[str] = field(default_factory=list)
    """Sentences on what cannot be read."""
    more: bool = False
    """Whether reading on at once is worth it."""


class TailGroup:
    """Reads the files that `paths`, absolute ones, mean on from `positions`; `from_end` as for the `FileSet`.
    `poll` is how long a file that has no more is left alone, in seconds. `until` is a position at which what
    is gathered first has to end, as it did before the agent was killed. `line` is the longest line in bytes.
    Not for two threads at once."""

    def __init__(
        self,
        paths: Sequence[str],
        positions: Mapping[bytes, FilePosition],
        *,
        from_end: bool = False,
        poll: float = 0.0,
        until: str | None = None,
        line: int = contract.MAX_BATCH_BYTES,
    ) -> None:
        self._files = FileSet(paths, positions, from_end=from_end)
        self._poll = poll
        self._scanned = -math.inf
        self._limits = ReadLimits(line)
        self._before = positions
        self._remembered = frozenset(positions)
        """The files of the last position that is kept, by the key of their path."""
        self._until = until
        self._tries = 0
        self._turn = 0
        self._round: list[tuple[TrackedFile, TailedLines]] = []
        self._unreadable: dict[TrackedFile, str] = {}

    def gather(self, now: float) -> ReadResult:
        """Read on, some pieces within the limits of a batch. `now` is monotonic, in seconds. What was
        gathered before and not taken is read again."""
        gathered = ReadResult()
        if now - self._scanned >= SCAN:
            self._scanned = now
            self._files.scan(now)
            gathered.warnings = self._files.warnings
        if self._until is not None:
            self._read_again(self._until, now, gathered)
        else:
            self._read(now, gathered)
            # By the same order the same lines are read again, should the agent be killed meanwhile.
            self._round.sort(key=lambda entry: entry[0].key)
            gathered.position = self._position(self._round) if self._round else ""
        gathered.pieces = [piece for _, piece in self._round]
        gathered.problems = [*self._files.problems.values(), *self._unreadable.values()]
        return gathered

    def begun(self) -> str | None:
        """The position before what was gathered last, if it has a file that the last kept position does not
        have: kept before anything of that file is stored, it finds the file under another name too."""
        if self._until is not None or self._placed() <= self._remembered:
            return None
        return self._position([])

    def keep(self) -> None:
        """The position of all files, before or behind what was gathered last, is kept."""
        self._remembered = self._placed()

    def take(self) -> None:
        """What was gathered last is done with, and its position is kept."""
        for file, piece in self._round:
            if self._until is None:
                file.tailer.take(piece)
            else:
                self._files.go_on(file, piece.after)
        if self._until is None:
            self.keep()
        self._round = []
        self._until = None

    def narrow(self) -> bool:
        """From now on read half as much at a time; False where that cannot be: what was gathered last is a
        single line."""
        pieces = [piece.lines for _, piece in self._round]
        if len(pieces) == 1 and b"\n" not in pieces[0][:-1]:
            return False
        if self._until is not None:  # by another parser it has more readings than when it was begun
            self._until = None
            return True
        self._limits = replace(self._limits, bytes=max(1, sum(map(len, pieces)) // 2))
        return True

    def close(self) -> None:
        self._files.close()

    def _read_again(self, until: str, now: float, gathered: ReadResult) -> None:
        """Read what was read before up to a position. Where that cannot be done, it is not insisted on: the
        core finds another position, and says what that means."""
        self._round = []
        before = set(self._before.values())
        for key, end in sorted(parse_positions(until).items()):
            if end in before or not end.offset or _is_in_copy(end, self._before.get(key)):
                continue
            piece = self._find(key, end, now)
            if piece is None:
                self._round = []
                self._tries += 1
                if self._tries >= _TRIES:
                    self._until = None
                return
            self._round.append(piece)
        gathered.position, gathered.more = until, True

    def _find(self, key: bytes, end: FilePosition, now: float) -> tuple[TrackedFile, TailedLines] | None:
        """The piece that ends at a position, and the file that goes on there."""
        files = sorted(self._files.files(), key=lambda file: file.key != key)
        for file in files:
            piece = read_again(
                file.tailer.path, end, self._before.values(), self._before.get(key), now, self._limits.line
            )
            if piece is not None:
                # By now the file may be followed at another path than the one at which it was read; and the
                # position of a file that was copied and truncated has the inode of one that is read
                # from its beginning, perhaps at a path that is not beside the copy.
                at_path = [other for other in files if other.tailer.path == piece.file]
                own = [file] if file.key == key else []
                same = [other for other in files if other.tailer.inode == end.inode]
                return next(iter([*at_path, *own, *same]), file), piece
        return None

    def _read(self, now: float, gathered: ReadResult) -> None:
        """Look at each file in turn until the limits are reached; the next time begins where this ends."""
        self._round = []
        files = self._files.files()
        self._unreadable = {file: text for file, text in self._unreadable.items() if file in files}
        begin = self._turn % max(1, len(files))
        room = self._limits
        for file in itertools.chain(files[begin:], files[:begin]):
            if file.idle_until <= now:
                piece = self._look(file, now, room, gathered)
                if piece is not None:
                    gathered.more = True
                    if self._round and len(piece.lines) > room.bytes:
                        return  # a line that has no room here, and will have beside less
                    self._round.append((file, piece))
                    room = replace(room, bytes=room.bytes - len(piece.lines))
                    if room.bytes >= _LEAST:  # else there is no need to count lines, which takes time
                        room = replace(room, lines=room.lines - piece.lines.count(b"\n"))
            self._turn += 1
            if room.bytes < _LEAST or room.lines <= 0:
                return

    def _look(
        self, file: TrackedFile, now: float, room: ReadLimits, gathered: ReadResult
    ) -> TailedLines | None:
        try:
            look = file.tailer.look(now, room)
        except OSError as error:
            self._unreadable[file] = f"{error.filename or file.tailer.path}: {error.strerror}"
            file.idle_until = now + self._poll
            return None
        self._unreadable.pop(file, None)
        _note(look, file, gathered)
        if look.ended:
            self._files.drop(file)
        if look.piece is None and not look.more:
            file.idle_until = now + self._poll
        gathered.more |= look.more
        return look.piece

    def _placed(self) -> frozenset[bytes]:
        """The files that a position names, but for those that are not there."""
        return frozenset(file.key for file in self._files.files() if file.tailer.position is not None)

    def _position(self, read: Sequence[tuple[TrackedFile, TailedLines]]) -> str:
        behind = {id(file): piece.after for file, piece in read}
        records = []
        for file in self._files.files():
            position = behind.get(id(file)) or file.tailer.position
            if position is not None:
                records.append(file.record(position))
        return encode(itertools.chain(records, self._files.unclaimed()))


def _is_in_copy(end: FilePosition, before: FilePosition | None) -> bool:
    """Whether nothing was read between two positions at one path, of which the later is in a copy."""
    return before is not None and (end.offset, end.fingerprint) == (before.offset, before.fingerprint)


def _note(look: TailRead, file: TrackedFile, gathered: ReadResult) -> None:
    if look.lost is not None:
        gathered.lost.append(look.lost)
    if look.too_long is not None:
        gathered.too_long.append(look.too_long)
    if look.absent and file.named:
        gathered.absent.append(file.tailer.path)


def read_again(
    path: str,
    end: FilePosition,
    before: Iterable[FilePosition],
    own: FilePosition | None,
    now: float,
    line: int,
) -> TailedLines | None:
    """The piece that ended at a position, in the file at a path or a rotated one beside it: it began at one
    of the positions before, of which `own` is that of the same path, or at the beginning of its file. None
    where that is not found."""
    tailer = Tailer(path, end, alone=True)
    limits = ReadLimits(line, lines=contract.MAX_BATCH_BYTES)
    try:
        if not (tailer.look(now, limits).more and tailer.rewind(before, own)):
            return None
        while True:
            look = tailer.look(now, limits)
            if look.piece is not None:
                return replace(look.piece, after=end) if look.piece.after.offset == end.offset else None
            if not look.more:
                return None
    except OSError:
        return None
    finally:
        tailer.close()
