"""Probes files by content and reads their lines. Blocks; read-only."""

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
"""Bytes per read unless a line is longer."""
_ENDS: Final = 2
"""Newlines that guarantee a whole line; the first may end a skipped one."""
_BLOCK: Final = 2**20
_SEARCHED: Final = 64 * 2**20
"""Bytes searched for NULs at once."""


class ReplacedError(Exception):
    """Another file is at the path now."""


class TailedLines(Struct, frozen=True):
    """Whole lines of a file, the last maybe unterminated."""

    file: str
    offset: int
    """Start of the first line."""
    lines: bytes
    end: int
    """End of the lines."""
    fingerprint: Fingerprint
    """Marks of that place."""


class TailRead(Struct, frozen=True):
    """The result of a read."""

    piece: TailedLines | None = None
    too_long: str | None = None
    """Places of skipped overlong lines."""
    nuls: tuple[int, int] | None = None
    """Places and numbers of skipped NULs."""
    more: bool = False
    """Whether to read again at once."""
    changed: bool = False
    """Whether read content is gone."""


def open_to_read(path: str) -> int:
    """Open a file without blocking. Raises `OSError`."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def file_state(path: str) -> tuple[int, ...] | None:
    """Return a value that changes with the file, None if missing."""
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
    """Reads a found file's content. Entering raises `ReplacedError` and `OSError`."""

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
        return fingerprint_at(self._fd, offset)

    def holds(self, generation: Generation) -> bool:
        """Tell by marks whether the file has all read content of a generation."""
        return self.size >= generation.offset and generation.holds(self.at(generation.offset))

    def head(self, length: int) -> bytes:
        return os.pread(self._fd, length, 0)

    def begins(self, other: Probe) -> bool:
        """Tell whether the other file begins with this one, by first and last common kilobyte."""
        return 0 < self.size <= other.size and self.at(self.size) == other.at(self.size)

    def has_line_of(self, file: OpenFile) -> bool:
        """Tell whether this one begins with the first line of a file, or has its last or last read one."""
        first = file.fingerprint.head.partition(b"\n")[0]
        if self.head(len(first)) == first:
            return True
        ends = (file.fingerprint, fingerprint_at(file.fd, os.fstat(file.fd).st_size))
        lines = [line for marks in ends if (line := marks.last_line())]
        before = b""
        for place in range(0, _SEARCHED, _BLOCK):
            data = before + os.pread(self._fd, _BLOCK, place)
            if any(line in data for line in lines):
                return True
            if len(data) == len(before):
                break
            before = data[-FINGERPRINT_BYTES:]
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
        """Return the start of the last NULs after an offset, None if none near the end."""
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
    """A file being read from an offset; content counts as unread until `move`."""

    def __init__(self, path: str, inode: int, offset: int) -> None:
        """Raises `OSError`, and `ReplacedError` for another file."""
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
        """Last seen change in monotonic seconds."""
        self.drained = False
        """Whether no further whole line exists now."""
        self.deleted = False
        self.nuls = 0
        """End of the last skipped NULs."""
        self._skipping = False
        self._without_data = 0

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def move(self, offset: int, fingerprint: Fingerprint, *, skipping: bool = False) -> None:
        """Continue from an offset."""
        self.offset, self.fingerprint, self._skipping = offset, fingerprint, skipping
        self.drained = False

    def move_to_end(self, longest: int) -> None:
        """Continue after the last whole line of at most `longest` bytes."""
        size = os.fstat(self.fd).st_size
        start = max(0, size - longest)
        offset = start + os.pread(self.fd, size - start, start).rfind(b"\n") + 1
        self.move(offset, fingerprint_at(self.fd, offset), skipping=offset == start > 0)

    def resembles(self, other: Probe) -> bool:
        """Tell whether either file begins the other, as far as read."""
        size = min(other.size, self.offset)
        return size > 0 and fingerprint_at(self.fd, size) == other.at(size)

    def is_begin_of(self, other: Probe) -> bool:
        """Tell whether the other file begins with this one."""
        size = os.fstat(self.fd).st_size
        return 0 < size <= other.size and fingerprint_at(self.fd, size) == other.at(size)

    def refresh(self, now: float) -> None:
        """Check for changes."""
        info = os.fstat(self.fd)
        if (info.st_size, info.st_mtime_ns) != (self.size, self._stamp):
            self.size, self._stamp = info.st_size, info.st_mtime_ns
            self.since, self.drained, self._without_data = now, False, 0
        self.deleted = self.is_deleted()

    def is_deleted(self) -> bool:
        return os.fstat(self.fd).st_nlink == 0

    def read(self, limits: ReadLimits, *, last: bool = False, stop: int | None = None) -> TailRead:
        """Read the next piece up to `stop`; `last` accepts an unterminated line."""
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
        """Return the next byte that is no NUL, None if none is near."""
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
