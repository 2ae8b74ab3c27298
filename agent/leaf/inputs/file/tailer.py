"""Tails one file through rotations. It blocks, so it is called in a thread; it reads and never writes.

What was read counts as unread until `Tailer.take`, so a caller may fail at any time. It is believed only when
the bytes before it are still the same afterwards: a file may be truncated and filled again between any two
reads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Set
from typing import Final

from agent.leaf.inputs.file.open_file import (
    OpenFile,
    RotatedDuringScanError,
    TailedLines,
    TailRead,
    fingerprint_at,
    holds,
    list_file,
    list_rotated,
    open_to_read,
)
from agent.leaf.inputs.file.positions import (
    FilePosition,
    Fingerprint,
    ListedFile,
    candidates,
    changed_after,
    successor,
)
from agent.leaf.inputs.formats import ReadLimits, cut_file

QUIET: Final = 1.0
"""Seconds for which a renamed file must not have grown before it is left: its writer may still be in it."""
REST: Final = 10.0
"""Seconds after which a deleted file that was read to its end and does not grow is closed: it takes room on
disk."""

_AT_ONCE: Final = ReadLimits().bytes
"""Bytes read at a time, unless a line is longer."""
_ENDS: Final = 2
"""Newlines with which there is a whole line for certain: the first may end one that is passed over."""

_NOTHING: Final = TailRead()
_MORE: Final = TailRead(more=True)


class Tailer:
    """Reads the file at `path`, an absolute one, on from a position; without one from its beginning or, with
    `from_end`, behind what it holds at the first look. Not for two threads at once."""

    def __init__(
        self, path: str, position: FilePosition | None = None, *, from_end: bool = False, alone: bool = False
    ) -> None:
        self.path = path
        self.others: Set[str] = frozenset()
        """Paths that are followed on their own: none of them is a rotated file of this one."""
        self.alone = alone
        """Whether nothing goes on from this file: what comes after it is another's."""
        self.permit: int | None = None
        """The inode that must be at the path before another file is begun, 0 for no file; None permits any. A
        reader of many files checks first that it is not one of the others."""
        self._directory, self._name = os.path.split(path)
        self._after: int | None = None
        self._from_end = from_end
        self._sought: FilePosition | None = None
        self._taken = position
        if position is not None:
            self._seek(position)
        self._rested = False
        self._file: OpenFile | None = None
        self._now = 0.0
        self._searched = -math.inf
        self._limits = ReadLimits()
        self._stop: int | None = None

    @property
    def position(self) -> FilePosition | None:
        """The position behind what was taken last: the beginning of a file of which nothing was, or, while
        none is open, before the first file that is to be read next; None before the first look."""
        if self._taken is not None or self._file is not None:
            return self._taken or self.position_in_file
        if self._sought is not None or self._after is None:
            return self._sought
        return changed_after(self._after)

    @property
    def position_in_file(self) -> FilePosition | None:
        """The position in the file that is being read, or was before it was let go: its beginning while
        nothing of it was taken, though something of the file before it was."""
        file, taken = self._file, self._taken
        if file is None or (file.offset and taken is not None and taken.inode == file.inode):
            return taken
        return FilePosition(file.inode, 0, Fingerprint().digest(), file.modified)

    @property
    def inode(self) -> int | None:
        """The file that is being read, or was before it was let go."""
        if self._file is not None:
            return self._file.inode
        return None if self._taken is None else self._taken.inode

    @property
    def opened(self) -> bool:
        """Whether a file is open; its inode is not reused meanwhile."""
        return self._file is not None

    def is_in(self, path: str) -> bool:
        """Whether the file at a path is the one that is being read, or was before it was let go, and still
        holds what was read of it."""
        position = self.position_in_file
        return position is not None and holds(path, position)

    def look(self, now: float, limits: ReadLimits) -> TailRead:
        """Read on, one piece at most. `now` is monotonic, in seconds. Raises `OSError` where a file can't be
        read; the next call retries."""
        self._now, self._limits = now, limits
        try:
            live = list_file(self.path)
            if self._file is None:
                return self._begin(live)
            return self._continue(self._file, live)
        except RotatedDuringScanError:
            return _NOTHING

    def take(self, piece: TailedLines) -> None:
        """The piece is done with: the next look goes on behind it."""
        self._taken = piece.after
        if self._file is not None:
            self._file.skipping = False
            self._file.move(piece.after.offset, piece.fingerprint)

    def rewind(self, before: Iterable[FilePosition], own: FilePosition | None) -> bool:
        """Read again what is before the position, and nothing behind it: from the last of these positions
        that is in the file, or from its beginning. `own` may be in a copy of its file, which has another
        inode; other files' positions may not, for files may begin alike. False while the position is not
        cut."""
        file, taken = self._file, self._taken
        if file is None or taken is None or self._sought is not None:
            return False
        starts = [
            position.offset
            for position in before
            if (position.inode == taken.inode or position == own) and position.offset <= taken.offset
            if fingerprint_at(file.fd, position.offset).digest() == position.fingerprint
        ]
        start, self._stop = max(starts, default=0), taken.offset
        file.move(start, fingerprint_at(file.fd, start))
        return True

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file.fd)
            self._file = None

    def _seek(self, position: FilePosition) -> None:
        """Find this position first. One at the beginning of a file tells nothing: all that was changed since
        is read then."""
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
            assert self._file is not None
            self._file.move_to_end(live.size, self._limits.line)
            self._taken = self._file.position
        elif not self.alone:
            folder = self._rotated() if self._after is not None else []
            following = successor(live, folder, self._name, self._after, None)
            if following is not None:
                self._open(following)
            elif self._after is None:
                self._await()
        self._from_end = False
        return TailRead(absent=live is None, more=self._file is not None, ended=self.alone)

    def _await(self) -> None:
        """Nothing is there to read: whatever is changed later than the rotated files that are there by now
        is read, whatever its name is by then."""
        self._after = max((file.modified for file in self._rotated()), default=0)

    def _find(self, sought: FilePosition, live: ListedFile | None) -> TailRead:
        """Go on at the place that is sought. While there is no file at the path, a place that is not found
        may come back with it, as when a disk is mounted late."""
        if live is None and (self._rested or self._now - self._searched < QUIET):
            return TailRead(absent=True)
        self._searched = self._now
        for candidate in candidates(sought, live, self._rotated(sought.inode), self._name):
            if self._open(candidate, sought):
                self._sought, self._rested = None, False
                return _MORE
        if self.alone:
            return TailRead(ended=True)
        if live is None or not self._permits(live):
            return TailRead(absent=live is None)
        rested, self._rested = self._rested, False
        self._sought, self._after, self._from_end = None, sought.modified, False
        text = (
            f"{self.path} no longer holds what was read of it up to byte {sought.offset}, nor does a rotated"
            " file beside it: lines that came after that byte, if there were any, are lost"
        )
        return TailRead(lost=None if rested else text, more=True)

    def _permits(self, live: ListedFile | None) -> bool:
        return self.permit is None or self.permit == (0 if live is None else live.inode)

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
            following = successor(live, self._rotated(), self._name, info.st_mtime_ns, file.inode)
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
        self._seek(file.position)
        self._rested = whole
        self._after = file.modified
        self.close()

    def _was_truncated(self, file: OpenFile, size: int) -> bool:
        """Whether a file of which nothing was taken, so that no fingerprint tells, was truncated and perhaps
        filled again: it is shorter than before, or a newer copy holds more than it or something else."""
        if size < file.state[0]:
            return True
        after = self._after
        copy = None if after is None else successor(None, self._rotated(), self._name, after, file.inode)
        if copy is None:
            return False
        path = os.path.join(self._directory, copy.name)  # noqa: PTH118
        return not file.begins_like(path, size) or copy.size > size

    def _read(self, file: OpenFile, modified: int, *, last: bool = False) -> TailRead:
        length = self._limits.line
        if self._stop is not None:
            length, last = min(length, self._stop - file.offset), True
        data = os.pread(file.fd, min(length, _AT_ONCE), file.offset)
        if _AT_ONCE <= len(data) < length and data.count(b"\n") < _ENDS:
            data = os.pread(file.fd, length, file.offset)
        if fingerprint_at(file.fd, file.offset) != file.fingerprint:
            self._seek(file.position)
            self._after = file.modified
            self.close()
            return _MORE
        file.modified = modified
        cut = cut_file(data, self._limits, skipping=file.skipping, last=last)
        end, fingerprint = file.offset + cut.stop, file.fingerprint.after(data, cut.stop)
        if cut.start < cut.stop:
            after = file.position_at(end, fingerprint)
            lines = data[cut.start : cut.stop]
            return TailRead(TailedLines(file.name, file.offset + cut.start, lines, after, fingerprint))
        too_long = f"{file.name}:{file.offset}" if cut.too_long else None
        file.skipping = cut.skipping
        file.drained = cut.stop == 0
        if cut.stop:
            file.move(end, fingerprint)
        return TailRead(too_long=too_long, more=not file.drained)

    def _rotated(self, inode: int | None = None) -> list[ListedFile]:
        return list_rotated(self.path, self.others, inode)

    def _open(self, listed: ListedFile, position: FilePosition | None = None) -> bool:
        """Open a file at the position, or at its beginning; False when the position is not in it."""
        path = os.path.join(self._directory, listed.name)  # noqa: PTH118
        try:
            fd = open_to_read(path)
        except FileNotFoundError:
            raise RotatedDuringScanError from None
        offset = position.offset if position else 0
        fingerprint, info = fingerprint_at(fd, offset), os.fstat(fd)
        if info.st_ino != listed.inode:
            os.close(fd)
            raise RotatedDuringScanError
        if position is not None and fingerprint.digest() != position.fingerprint:
            os.close(fd)
            return False
        self.close()
        state = (info.st_size, info.st_mtime_ns)
        self._file = OpenFile(fd, path, listed.inode, offset, fingerprint, info.st_mtime_ns, state, self._now)
        self._searched = -math.inf
        if self._after is None:
            self._after = info.st_mtime_ns - 1  # should it be truncated before anything of it is taken
        return True
