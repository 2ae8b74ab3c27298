"""Files as the file system has them: probed by their content, and read line by line. It blocks, reads, and
never writes."""

from __future__ import annotations

import errno
import os
from types import TracebackType
from typing import Final, Self

from msgspec import Struct

from agent.leaf.inputs.file.listing import Found
from agent.leaf.inputs.file.positions import FINGERPRINT_BYTES, Fingerprint, Generation
from agent.leaf.inputs.formats import ReadLimits, cut_file

_AT_ONCE: Final = ReadLimits().bytes
"""Bytes read at a time, unless a line is longer."""
_ENDS: Final = 2
"""Newlines with which there is a whole line for certain: the first may end one that is passed over."""
_BLOCK: Final = 2**20
_SEARCHED: Final = 64 * 2**20
"""Bytes in which NULs are sought, or passed over at a time."""


class ReplacedError(Exception):
    """Another file is at the path by now: the next look shows more."""


class TailedLines(Struct, frozen=True):
    """Whole lines of one file, the last perhaps without its newline."""

    file: str
    offset: int
    """The byte at which the first line begins."""
    lines: bytes
    end: int
    """The byte behind the lines."""
    fingerprint: Fingerprint
    """The marks of that place."""


class TailRead(Struct, frozen=True):
    """The outcome of one read."""

    piece: TailedLines | None = None
    too_long: str | None = None
    """Where a line is too long, which is skipped."""
    nuls: tuple[int, int] | None = None
    """Where NULs were skipped, and how many."""
    more: bool = False
    """Whether reading again at once is worth it."""
    changed: bool = False
    """Whether the file no longer holds what was read of it."""


def open_to_read(path: str) -> int:
    """Return the descriptor of a file, which its opening can't block on. Raises `OSError`."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def file_state(path: str) -> tuple[int, ...] | None:
    """Return what changes with the file at a path; None where there is none."""
    try:
        info = os.stat(path)  # noqa: PTH116 - four times faster
    except OSError:
        return None
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)


def fingerprint_at(fd: int, offset: int) -> Fingerprint:
    """Return the marks of an offset."""
    length = min(FINGERPRINT_BYTES, offset)
    return Fingerprint(os.pread(fd, length, 0), os.pread(fd, length, offset - length))


class Probe:
    """The content of a file that was found. Entering raises `ReplacedError` when another file is at its path
    by now, and `OSError` when it can't be read."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._fd = -1
        self.size = 0

    def __enter__(self) -> Self:
        try:
            self._fd = open_to_read(self._found.path)
        except (FileNotFoundError, NotADirectoryError):
            raise ReplacedError from None
        info = os.fstat(self._fd)
        if (info.st_dev, info.st_ino) != (self._found.device, self._found.inode):
            os.close(self._fd)
            raise ReplacedError
        self.size = info.st_size
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def at(self, offset: int) -> Fingerprint:
        """Return the marks of an offset."""
        return fingerprint_at(self._fd, offset)

    def holds(self, generation: Generation) -> bool:
        """Whether all that was read of a generation is in this file, as far as its marks tell."""
        return self.size >= generation.offset and generation.holds(self.at(generation.offset))

    def head(self, length: int) -> bytes:
        return os.pread(self._fd, length, 0)

    def begins(self, other: Probe) -> bool:
        """Whether the other file begins with this one: their first and their last common kilobyte agree."""
        return 0 < self.size <= other.size and self.at(self.size) == other.at(self.size)

    def has_line_of(self, marks: Fingerprint) -> bool:
        """Whether this file begins with the first line of these marks, or has the last one anywhere."""
        first = marks.head.partition(b"\n")[0]
        if self.head(len(first)) == first:
            return True
        line, before = marks.tail[marks.tail.rfind(b"\n", 0, -1) + 1 :], b""
        for place in range(0, _SEARCHED, _BLOCK):
            data = before + os.pread(self._fd, _BLOCK, place)
            if line in data:
                return bool(line)
            if len(data) == len(before):
                break
            before = data[-len(line) :]
        return False

    def line_end(self, offset: int) -> int:
        """Return the end of the last whole line up to an offset."""
        low = offset
        while low > 0:
            start = max(0, low - _BLOCK)
            newline = os.pread(self._fd, low - start, start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            low = start
        return 0

    def is_nul(self, place: int) -> bool:
        return os.pread(self._fd, 1, place) == b"\0"

    def nuls_since(self, offset: int) -> int | None:
        """Return where the last NULs behind an offset begin, None where there are none near the end."""
        high = self.size
        while high > max(offset, self.size - _SEARCHED):
            start = max(offset, high - _BLOCK)
            data = os.pread(self._fd, high - start, start)
            if (nul := data.rfind(b"\0")) >= 0:
                kept = len(data[:nul].rstrip(b"\0"))
                while not kept and start > offset:
                    begin = max(offset, start - _BLOCK)
                    data, start = os.pread(self._fd, start - begin, begin), begin
                    kept = len(data.rstrip(b"\0"))
                return start + kept
            high = start
        return None


class OpenFile:
    """A file that is being read, from an offset of it. What is read counts as unread until `move`."""

    def __init__(self, path: str, inode: int, offset: int) -> None:
        """Raises `OSError`, and `ReplacedError` when another file is at the path."""
        try:
            self.fd = open_to_read(path)
        except (FileNotFoundError, NotADirectoryError):
            raise ReplacedError from None
        info = os.fstat(self.fd)
        if info.st_ino != inode or info.st_size < offset:
            os.close(self.fd)
            raise ReplacedError
        self.path, self.device, self.offset = path, info.st_dev, offset
        self.fingerprint = fingerprint_at(self.fd, offset)
        self.size = -1
        self._stamp = 0
        self.since = 0.0
        """When it was seen to change last, in monotonic seconds."""
        self.drained = False
        """Whether it holds no further whole line as it is now."""
        self.deleted = False
        self.nuls = 0
        """The offset behind the NULs that were skipped last."""
        self._skipping = False
        self._without_data = 0

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def move(self, offset: int, fingerprint: Fingerprint, *, skipping: bool = False) -> None:
        """Read on from an offset."""
        self.offset, self.fingerprint, self._skipping = offset, fingerprint, skipping
        self.drained = False

    def move_to_end(self, longest: int) -> None:
        """Read on behind the last whole line; a line has at most `longest` bytes."""
        size = os.fstat(self.fd).st_size
        start = max(0, size - longest)
        offset = start + os.pread(self.fd, size - start, start).rfind(b"\n") + 1
        self.move(offset, fingerprint_at(self.fd, offset), skipping=offset == start > 0)

    def resembles(self, other: Probe) -> bool:
        """Whether this file begins with the other one, or the other way round, as far as this was read."""
        size = min(other.size, self.offset)
        return size > 0 and fingerprint_at(self.fd, size) == other.at(size)

    def is_begin_of(self, other: Probe) -> bool:
        """Whether the other file begins with all of this one."""
        size = os.fstat(self.fd).st_size
        return 0 < size <= other.size and fingerprint_at(self.fd, size) == other.at(size)

    def refresh(self, now: float) -> None:
        """Look whether the file has changed."""
        info = os.fstat(self.fd)
        if (info.st_size, info.st_mtime_ns) != (self.size, self._stamp):
            self.size, self._stamp = info.st_size, info.st_mtime_ns
            self.since, self.drained, self._without_data = now, False, 0
        self.deleted = info.st_nlink == 0

    def read(self, limits: ReadLimits, *, last: bool = False, stop: int | None = None) -> TailRead:
        """Read the next piece. `last` says that nothing will be appended any more: then the end without a
        newline is a line too. With `stop` nothing behind that offset is read."""
        length = limits.line
        if stop is not None:
            length, last = min(length, stop - self.offset), True
        data = os.pread(self.fd, min(length, _AT_ONCE), self.offset)
        if _AT_ONCE <= len(data) < length and data.count(b"\n") < _ENDS:
            data = os.pread(self.fd, length, self.offset)
        if fingerprint_at(self.fd, self.offset) != self.fingerprint:
            return TailRead(changed=True)
        if data.startswith(b"\0"):
            return self._pass_nuls(last=last)
        text = data
        if (nul := data.find(b"\0")) >= 0:
            # NULs part lines: a writer was cut off there, and another began behind them. At the end of a file
            # they may be room that its writer still fills.
            is_end = not last and not data[nul:].lstrip(b"\0") and self._data_from(self.offset + nul) is None
            text = data[:nul] + (b"" if is_end or data[nul - 1 : nul] == b"\n" else b"\n")
        cut = cut_file(text, limits, skipping=self._skipping, last=last)
        end, fingerprint = self.offset + cut.stop, self.fingerprint.after(data, cut.stop)
        if cut.start < cut.stop:
            lines = text[cut.start : cut.stop]
            return TailRead(TailedLines(self.path, self.offset + cut.start, lines, end, fingerprint))
        too_long = f"{self.path}:{self.offset}" if cut.too_long else None
        if cut.stop:
            self.move(end, fingerprint, skipping=cut.skipping)
        else:
            self.drained = True
        return TailRead(too_long=too_long, more=not self.drained)

    def _pass_nuls(self, *, last: bool) -> TailRead:
        start = self.offset
        behind = self._data_from(max(start, self._without_data))
        if behind is None and last:
            behind = os.fstat(self.fd).st_size
        if behind is None:
            self.drained = self._without_data >= self.size
            return TailRead(more=not self.drained)
        self.nuls = behind
        self.move(behind, fingerprint_at(self.fd, behind))
        return TailRead(nuls=(start, behind - start), more=True)

    def _data_from(self, offset: int) -> int | None:
        """Return where the next byte is that is no NUL; None when there is none, or none near."""
        try:
            offset = max(offset, os.lseek(self.fd, offset, os.SEEK_DATA))
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                self._without_data = self.size
                return None
        for start in range(offset, offset + _SEARCHED, _BLOCK):
            data = os.pread(self.fd, _BLOCK, start)
            if rest := data.lstrip(b"\0"):
                return start + len(data) - len(rest)
            self._without_data = start + len(data)
            if len(data) < _BLOCK:
                break
        return None
