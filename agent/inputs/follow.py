"""Following one file through rotations: the part that blocks, to be called in a thread. It reads and never
writes.

What was read stays unread until `Follower.take` says that it is done with, so a caller may fail at any time.
What was read is believed only when what stands before it in the file is still the same afterwards: a file may
be truncated, and filled again, between any two looks.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agent.inputs.lines import Limits, cut
from agent.inputs.rotation import MARK_BYTES, Mark, Position, Seen, candidates, is_rotated, successor

QUIET: Final = 1.0
"""Seconds for which a renamed file must not have grown before it is left: its writer may still be in it."""


class _ShiftingError(Exception):
    """Files were renamed during the look: the next one will show more."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines of one file, the last perhaps without its newline. The first begins at byte `offset`;
    `after` is the position behind them and `mark` what tells it."""

    file: str
    offset: int
    lines: bytes
    after: Position
    mark: Mark


@dataclass(frozen=True, slots=True)
class Look:
    """What a look showed: perhaps a piece; a sentence on what is lost; the place of a line that is too long
    and is passed over. `absent` says that there is no file, `more` that looking again at once is worth it."""

    piece: Piece | None = None
    lost: str | None = None
    too_long: str | None = None
    absent: bool = False
    more: bool = False


_NOTHING: Final = Look()
_MORE: Final = Look(more=True)


@dataclass(slots=True)
class _File:
    """The file being read, up to `offset`. `modified` is when it had been changed (ns since 1970) as it was
    last read, `state` its size and time of change at the last look, `since` when it became so (monotonic
    seconds), `drained` says that it then held no further whole line, `searched` when its successor was."""

    fd: int
    name: str
    inode: int
    offset: int
    mark: Mark
    modified: int
    state: tuple[int, int]
    since: float
    skipping: bool = False
    drained: bool = False
    searched: float = -math.inf


class Follower:
    """Reads `path` on from a position; without one from its beginning or, with `from_end`, behind what it
    holds at the first look. Not for two threads at once."""

    def __init__(self, path: Path, position: Position | None, *, from_end: bool = False) -> None:
        self._path = path
        self._sought = position
        self._from_end = from_end
        self._after: int | None = None
        self._limits = Limits()
        self._file: _File | None = None
        self._now = 0.0

    def look(self, now: float) -> Look:
        """Read on, one piece at most. `now` is monotonic, in seconds. Raises `OSError` where a file can't be
        read; the next look tries again."""
        self._now = now
        try:
            live = self._see()
            if self._file is None:
                return self._begin(live)
            return self._continue(self._file, live)
        except _ShiftingError:
            return _NOTHING

    def take(self, piece: Piece) -> None:
        """The piece is done with: the next look goes on behind it."""
        if self._file is not None:
            self._file.skipping = False
            self._move(self._file, piece.after.offset, piece.mark)

    def halve(self, piece: Piece) -> bool:
        """From now on read pieces of half this size; False when it is a single line."""
        if b"\n" not in piece.lines[:-1]:
            return False
        self._limits = replace(self._limits, bytes=max(1, len(piece.lines) // 2))
        return True

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            os.close(self._file.fd)
            self._file = None

    def _begin(self, live: Seen | None) -> Look:
        """Find the file to read: the one that holds the position, or the first after it."""
        if (sought := self._sought) is not None:
            for seen in candidates(sought, live, self._folder(sought.inode), self._path.name):
                if self._open(seen, sought):
                    self._sought = None
                    return _MORE
            return Look(lost=self._give_up(sought), more=True)
        if live is not None and self._from_end:
            self._open(live)
            self._to_end(live.size)
        else:
            folder = self._folder() if self._after is not None else []
            following = successor(live, folder, self._path.name, self._after, None)
            if following is not None:
                self._open(following)
        self._from_end = False
        return Look(absent=live is None, more=self._file is not None)

    def _continue(self, file: _File, live: Seen | None) -> Look:
        info = os.fstat(file.fd)
        changed = file.state != (info.st_size, info.st_mtime_ns)
        if file.offset == 0 and changed and self._was_truncated(file, info.st_size):
            self.close()
            return _MORE
        if changed:
            file.state, file.since, file.drained = (info.st_size, info.st_mtime_ns), self._now, False
        if not file.drained:
            return self._read(file, info.st_mtime_ns)
        left = live is None or live.inode != file.inode
        if not left or self._now - file.searched < QUIET:
            return _NOTHING
        file.searched = self._now
        following = successor(live, self._folder(), self._path.name, info.st_mtime_ns, file.inode)
        if following is None or (following is live and self._now - file.since < QUIET):
            return _NOTHING
        if file.offset < info.st_size:
            file.searched = -math.inf
            return self._read(file, info.st_mtime_ns, last=True)
        self._after = info.st_mtime_ns
        self._open(following)
        return _MORE

    def _was_truncated(self, file: _File, size: int) -> bool:
        """Whether a file of which nothing was taken, so that no mark tells, was truncated and perhaps filled
        again: it is shorter than before, or a copy that came since holds more than it or something else."""
        if size < file.state[0]:
            return True
        if self._after is None:
            return False
        copy = successor(None, self._folder(), self._path.name, self._after, file.inode)
        if copy is None:
            return False
        try:
            with (self._path.parent / copy.name).open("rb") as opened:
                head = opened.read(MARK_BYTES)
        except FileNotFoundError:
            raise _ShiftingError from None
        length = min(size, len(head))
        return copy.size > size or os.pread(file.fd, length, 0) != head[:length]

    def _read(self, file: _File, modified: int, *, last: bool = False) -> Look:
        data = os.pread(file.fd, self._limits.line, file.offset)
        if _mark(file.fd, file.offset) != file.mark:
            self._sought = self._position(file, file.offset, file.mark)
            self._after = file.modified
            self.close()
            return _MORE
        file.modified = modified
        found = cut(data, self._limits, skipping=file.skipping, last=last)
        end, mark = file.offset + found.stop, file.mark.after(data[: found.stop])
        if found.start < found.stop:
            after = self._position(file, end, mark)
            lines = data[found.start : found.stop]
            return Look(Piece(file.name, file.offset + found.start, lines, after, mark))
        too_long = f"{file.name}:{file.offset}" if found.too_long else None
        file.skipping = found.skipping
        file.drained = found.stop == 0
        if found.stop:
            self._move(file, end, mark)
        return Look(too_long=too_long, more=not file.drained)

    def _position(self, file: _File, offset: int, mark: Mark) -> Position:
        return Position(str(self._path), file.inode, offset, mark.fingerprint(), file.modified, v=1)

    def _move(self, file: _File, offset: int, mark: Mark) -> None:
        file.offset, file.mark, file.drained = offset, mark, False

    def _to_end(self, size: int) -> None:
        """Go behind the last whole line of the file that was just opened."""
        file = self._file
        assert file is not None
        start = max(0, size - self._limits.line)
        data = os.pread(file.fd, size - start, start)
        offset = start + data.rfind(b"\n") + 1
        file.skipping = offset == start > 0
        self._move(file, offset, _mark(file.fd, offset))

    def _give_up(self, sought: Position) -> str:
        """Go on without the place that was sought; says what that means."""
        self._sought = None
        if sought.path != str(self._path) and self._after is None:
            return (
                f"{sought.path} was read to byte {sought.offset} and is not here: {self._path} is begun anew"
            )
        self._after, self._from_end = sought.modified, False
        return (
            f"{self._path} no longer holds what was read of it up to byte {sought.offset}, nor does a rotated"
            " file beside it: lines that came after that byte, if there were any, are lost"
        )

    def _see(self) -> Seen | None:
        """The file at the path, None while there is none."""
        try:
            info = self._path.stat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(self._path))
        return Seen(self._path.name, info.st_ino, info.st_size, info.st_mtime_ns)

    def _folder(self, inode: int | None = None) -> list[Seen]:
        """The rotated files beside the path, and whichever has this inode."""
        found = []
        with os.scandir(self._path.parent) as entries:
            for entry in entries:
                wanted = is_rotated(entry.name, self._path.name) or entry.inode() == inode
                if wanted and entry.name != self._path.name and entry.is_file(follow_symlinks=False):
                    found.append(_stat(entry))
        return found

    def _open(self, seen: Seen, position: Position | None = None) -> bool:
        """Open a file at the position, or at its beginning; False when the position is not in it."""
        path = self._path.parent / seen.name
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise _ShiftingError from None
        offset = position.offset if position else 0
        mark, info = _mark(fd, offset), os.fstat(fd)
        if info.st_ino != seen.inode:
            os.close(fd)
            raise _ShiftingError
        if position is not None and mark.fingerprint() != position.fingerprint:
            os.close(fd)
            return False
        self.close()
        state = (info.st_size, info.st_mtime_ns)
        self._file = _File(fd, str(path), seen.inode, offset, mark, info.st_mtime_ns, state, self._now)
        return True


def _stat(entry: os.DirEntry[str]) -> Seen:
    try:
        info = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        raise _ShiftingError from None
    return Seen(entry.name, info.st_ino, info.st_size, info.st_mtime_ns)


def _mark(fd: int, offset: int) -> Mark:
    """What stands at the beginning of a file and just before an offset."""
    length = min(MARK_BYTES, offset)
    return Mark(os.pread(fd, length, 0), os.pread(fd, length, offset - length))
