"""Following one file through rotations: the part that blocks, to be called in a thread. It reads and never
writes.

What was read stays unread until `Tailer.take` says that it is done with, so a caller may fail at any time.
What was read is believed only when what stands before it in the file is still the same afterwards: a file may
be truncated, and filled again, between any two looks.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from typing import Final

from agent import contract
from agent.leaf.inputs.file.rotation import (
    MARK_BYTES,
    FilePosition,
    Fingerprint,
    ListedFile,
    OpenFile,
    RotatedDuringScanError,
    candidates,
    holds,
    is_rotated,
    mark_at,
    open_to_read,
    seen_at,
    successor,
)
from agent.leaf.inputs.formats.line_cutter import ReadLimits, cut_file

QUIET: Final = 1.0
"""Seconds for which a renamed file must not have grown before it is left: its writer may still be in it."""
REST: Final = 10.0
"""Seconds after which a deleted file that was read to its end and does not grow is held open no more: it
takes room on the disk for as long as it is."""


@dataclass(frozen=True, slots=True)
class TailedLines:
    """Whole lines of one file, the last perhaps without its newline. The first begins at byte `offset`;
    `after` is the position behind them and `mark` what tells it."""

    file: str
    offset: int
    lines: bytes
    after: FilePosition
    mark: Fingerprint


@dataclass(frozen=True, slots=True)
class TailRead:
    """What a look showed: perhaps a piece; a sentence on what is lost; the place of a line that is too long
    and is passed over. `absent` says that there is no file, `more` that looking again at once is worth it,
    `ended` that nothing more will come of a file that is read alone."""

    piece: TailedLines | None = None
    lost: str | None = None
    too_long: str | None = None
    absent: bool = False
    more: bool = False
    ended: bool = False


_NOTHING: Final = TailRead()
_MORE: Final = TailRead(more=True)


class Tailer:
    """Reads the file at `path`, an absolute one, on from a position; without one from its beginning or, with
    `from_end`, behind what it holds at the first look. Not for two threads at once."""

    def __init__(
        self,
        path: str,
        position: FilePosition | None = None,
        *,
        from_end: bool = False,
        alone: bool = False,
    ) -> None:
        self.path = path
        self.others: Set[str] = frozenset()
        """Paths that are followed on their own: none of them is a rotated file of this one."""
        self.alone = alone
        """Whether nothing goes on from this file: what comes after it is another's."""
        self.permit: int | None = None
        """The inode that must be at the path before another file is begun, 0 for no file there; None permits
        any. Whoever follows many files finds out first whether it is not one of the others."""
        self._directory, self._name = os.path.split(path)
        self._after: int | None = None
        self._from_end = from_end
        self._sought: FilePosition | None = None
        self._place = position
        if position is not None:
            self._seek(position)
        self._rested = False
        self._file: OpenFile | None = None
        self._now = 0.0
        self._searched = -math.inf
        self._limits = ReadLimits()
        self._stop: int | None = None

    @property
    def place(self) -> FilePosition | None:
        """The position behind what was taken last: the beginning of a file of which nothing was; None before
        there was one."""
        if self._place is None and self._file is not None:
            return FilePosition(self._file.inode, 0, Fingerprint().fingerprint(), self._file.modified)
        return self._place

    @property
    def inode(self) -> int | None:
        """The file that is being read, or was before it was let go."""
        if self._file is not None:
            return self._file.inode
        return None if self._place is None else self._place.inode

    @property
    def opened(self) -> bool:
        """Whether a file is held open; its inode is not given to another one for so long."""
        return self._file is not None

    def is_in(self, path: str) -> bool:
        """Whether the file at a path is the one that is being read, or was before it was let go, and still
        holds what was read of it."""
        place = self.place
        return place is not None and place.inode == self.inode and holds(path, place)

    def look(self, now: float, limits: ReadLimits) -> TailRead:
        """Read on, one piece at most. `now` is monotonic, in seconds. Raises `OSError` where a file can't be
        read; the next look tries again."""
        self._now, self._limits = now, limits
        try:
            live = self._see()
            if self._file is None:
                return self._begin(live)
            return self._continue(self._file, live)
        except RotatedDuringScanError:
            return _NOTHING

    def take(self, piece: TailedLines) -> None:
        """The piece is done with: the next look goes on behind it."""
        self._place = piece.after
        if self._file is not None:
            self._file.skipping = False
            self._move(self._file, piece.after.offset, piece.mark)

    def rewind(self, before: Iterable[FilePosition], own: FilePosition | None) -> bool:
        """Read again what stands before the place, and nothing behind it: from the last of these positions
        that is in the file, or from its beginning. `own` may be in a copy of its file, which has another
        inode; of other files' positions that would be believed too easily, where files begin alike. False
        while the place is not found."""
        file, place = self._file, self._place
        if file is None or place is None or self._sought is not None:
            return False
        starts = [
            one.offset
            for one in before
            if (one.inode == place.inode or one == own) and one.offset <= place.offset
            if mark_at(file.fd, one.offset).fingerprint() == one.fingerprint
        ]
        start, self._stop = max(starts, default=0), place.offset
        self._move(file, start, mark_at(file.fd, start))
        return True

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            os.close(self._file.fd)
            self._file = None

    def _seek(self, position: FilePosition) -> None:
        """Find this place first. One at the beginning of a file is no place that could be told from others:
        then all that was changed since is read."""
        if position.offset or self.alone:
            self._sought = position
        else:
            self._after = position.modified - 1

    def _begin(self, live: ListedFile | None) -> TailRead:
        """Find the file to read: the one that holds the position, or the first after it."""
        if (sought := self._sought) is not None:
            return self._find(sought, live)
        if not self._permits(live):
            return TailRead(absent=live is None)
        if live is not None and self._from_end:
            self._open(live)
            self._to_end(live.size)
        else:
            folder = self._folder() if self._after is not None else []
            following = None if self.alone else successor(live, folder, self._name, self._after, None)
            if following is not None:
                self._open(following)
        self._from_end = False
        return TailRead(absent=live is None, more=self._file is not None, ended=self.alone)

    def _find(self, sought: FilePosition, live: ListedFile | None) -> TailRead:
        """Go on at the place that is sought. While there is no file at the path, a place that is not found
        may come back with it, as when a disk is mounted late."""
        if live is None and (self._rested or self._now - self._searched < QUIET):
            return TailRead(absent=True)
        self._searched = self._now
        for seen in candidates(sought, live, self._folder(sought.inode), self._name):
            if self._open(seen, sought):
                self._sought, self._rested = None, False
                return _MORE
        if self.alone:
            return TailRead(ended=True)
        if live is None or not self._permits(live):
            return TailRead(absent=live is None)
        rested, self._rested = self._rested, False
        self._sought, self._after, self._from_end = None, sought.modified, False
        return TailRead(lost=None if rested else self._lost(sought), more=True)

    def _permits(self, live: ListedFile | None) -> bool:
        return self.permit is None or self.permit == (0 if live is None else live.inode)

    def _lost(self, sought: FilePosition) -> str:
        return (
            f"{self.path} no longer holds what was read of it up to byte {sought.offset}, nor does a rotated"
            " file beside it: lines that came after that byte, if there were any, are lost"
        )

    def _continue(self, file: OpenFile, live: ListedFile | None) -> TailRead:
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
        if not left or not self._permits(live) or self._now - self._searched < QUIET:
            return _NOTHING
        self._searched = self._now
        return self._leave(file, live, info)

    def _leave(self, file: OpenFile, live: ListedFile | None, info: os.stat_result) -> TailRead:
        """Go on from a file that was read to its end and is at its path no more."""
        quiet = self._now - file.since
        following = None
        if not self.alone:
            following = successor(live, self._folder(), self._name, info.st_mtime_ns, file.inode)
            if following is None and info.st_nlink == 0 and quiet >= REST:
                self._rest(file, whole=file.offset == info.st_size)
            if following is None or (following is live and quiet < QUIET):
                return _NOTHING
        elif quiet < QUIET:
            return _NOTHING
        if file.offset < info.st_size:
            self._searched = -math.inf
            return self._read(file, info.st_mtime_ns, last=True)
        if following is None:
            return TailRead(ended=True)
        self._after = info.st_mtime_ns
        self._open(following)
        return _MORE

    def _rest(self, file: OpenFile, *, whole: bool) -> None:
        """Let a file go that is gone. It is known again should it come back."""
        self._seek(self._position(file, file.offset, file.mark))
        self._rested = whole
        self._after = file.modified
        self.close()

    def _was_truncated(self, file: OpenFile, size: int) -> bool:
        """Whether a file of which nothing was taken, so that no mark tells, was truncated and perhaps filled
        again: it is shorter than before, or a copy that came since holds more than it or something else."""
        if size < file.state[0]:
            return True
        if self._after is None:
            return False
        copy = successor(None, self._folder(), self._name, self._after, file.inode)
        if copy is None:
            return False
        try:
            with open(os.path.join(self._directory, copy.name), "rb") as opened:  # noqa: PTH118, PTH123
                head = opened.read(MARK_BYTES)
        except FileNotFoundError:
            raise RotatedDuringScanError from None
        length = min(size, len(head))
        return copy.size > size or os.pread(file.fd, length, 0) != head[:length]

    def _read(self, file: OpenFile, modified: int, *, last: bool = False) -> TailRead:
        length = self._limits.line
        if self._stop is not None:
            length, last = min(length, self._stop - file.offset), True
        data = os.pread(file.fd, length, file.offset)
        if mark_at(file.fd, file.offset) != file.mark:
            self._seek(self._position(file, file.offset, file.mark))
            self._after = file.modified
            self.close()
            return _MORE
        file.modified = modified
        found = cut_file(data, self._limits, skipping=file.skipping, last=last)
        end, mark = file.offset + found.stop, file.mark.after(data, found.stop)
        if found.start < found.stop:
            after = self._position(file, end, mark)
            lines = data[found.start : found.stop]
            return TailRead(TailedLines(file.name, file.offset + found.start, lines, after, mark))
        too_long = f"{file.name}:{file.offset}" if found.too_long else None
        file.skipping = found.skipping
        file.drained = found.stop == 0
        if found.stop:
            self._move(file, end, mark)
        return TailRead(too_long=too_long, more=not file.drained)

    def _position(self, file: OpenFile, offset: int, mark: Fingerprint) -> FilePosition:
        return FilePosition(file.inode, offset, mark.fingerprint(), file.modified)

    def _move(self, file: OpenFile, offset: int, mark: Fingerprint) -> None:
        file.offset, file.mark, file.drained = offset, mark, False

    def _to_end(self, size: int) -> None:
        """Go behind the last whole line of the file that was just opened."""
        file = self._file
        assert file is not None
        start = max(0, size - self._limits.line)
        data = os.pread(file.fd, size - start, start)
        offset = start + data.rfind(b"\n") + 1
        file.skipping = offset == start > 0
        self._move(file, offset, mark_at(file.fd, offset))
        self._place = self._position(file, offset, file.mark)

    def _see(self) -> ListedFile | None:
        """The file at the path, None while there is none."""
        try:
            info = os.stat(self.path)  # noqa: PTH116 - each look takes one, and this is four times faster
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", self.path)
        return ListedFile(self._name, info.st_ino, info.st_size, info.st_mtime_ns)

    def _folder(self, inode: int | None = None) -> list[ListedFile]:
        """The rotated files beside the path, and whichever has this inode; none while there is no folder."""
        found = []
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    wanted = is_rotated(entry.name, self._name) or entry.inode() == inode
                    if not wanted or entry.name == self._name or entry.path in self.others:
                        continue
                    if entry.is_file(follow_symlinks=False):
                        found.append(seen_at(entry))
        except FileNotFoundError:
            return []
        return found

    def _open(self, seen: ListedFile, position: FilePosition | None = None) -> bool:
        """Open a file at the position, or at its beginning; False when the position is not in it."""
        path = os.path.join(self._directory, seen.name)  # noqa: PTH118
        try:
            fd = open_to_read(path)
        except FileNotFoundError:
            raise RotatedDuringScanError from None
        offset = position.offset if position else 0
        mark, info = mark_at(fd, offset), os.fstat(fd)
        if info.st_ino != seen.inode:
            os.close(fd)
            raise RotatedDuringScanError
        if position is not None and mark.fingerprint() != position.fingerprint:
            os.close(fd)
            return False
        self.close()
        state = (info.st_size, info.st_mtime_ns)
        self._file = OpenFile(fd, path, seen.inode, offset, mark, info.st_mtime_ns, state, self._now)
        self._searched = -math.inf
        if self._after is None:
            self._after = info.st_mtime_ns - 1  # should it be truncated before anything of it is taken
        return True


def read_again(
    path: str, end: FilePosition, before: Iterable[FilePosition], own: FilePosition | None, now: float
) -> TailedLines | None:
    """The piece that ended at a position, in the file at a path or a rotated one beside it: it began at one
    of the positions before, of which `own` is that of the same path, or at the beginning of its file. None
    where that is not found."""
    follower = Tailer(path, end, alone=True)
    limits = ReadLimits(lines=contract.MAX_BATCH_BYTES)
    try:
        if not (follower.look(now, limits).more and follower.rewind(before, own)):
            return None
        while True:
            look = follower.look(now, limits)
            if look.piece is not None:
                return replace(look.piece, after=end) if look.piece.after.offset == end.offset else None
            if not look.more:
                return None
    except OSError:
        return None
    finally:
        follower.close()
