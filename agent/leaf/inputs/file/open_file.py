"""The files of one tailer as the file system has them: listed, opened, and known by their content. It
blocks, reads, and never writes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Set

from msgspec import Struct

from agent.leaf.inputs.file.positions import (
    FINGERPRINT_BYTES,
    FilePosition,
    Fingerprint,
    ListedFile,
    is_rotated,
)


class RotatedDuringScanError(Exception):
    """Files were renamed while they were listed: the next scan shows more."""


class TailedLines(Struct, frozen=True):
    """Whole lines of one file, the last perhaps without its newline."""

    file: str
    offset: int
    """The byte at which the first line begins."""
    lines: bytes
    after: FilePosition
    """The position behind the lines."""
    fingerprint: Fingerprint
    """What tells that position."""


class TailRead(Struct, frozen=True):
    """What reading one file gave."""

    piece: TailedLines | None = None
    lost: str | None = None
    """A sentence on what is lost."""
    too_long: str | None = None
    """Where a line is too long, which is skipped."""
    absent: bool = False
    """Whether there is no file."""
    more: bool = False
    """Whether reading again at once is worth it."""
    ended: bool = False
    """Whether nothing more comes of a file that is read alone."""


class OpenFile(Struct):
    """A file that is being read."""

    fd: int
    name: str
    inode: int
    offset: int
    """The bytes that were read."""
    fingerprint: Fingerprint
    """What tells the offset."""
    modified: int
    """When the file had been changed (ns since 1970) as it was last read."""
    state: tuple[int, int]
    """Its size and time of change as it was last looked at."""
    since: float
    """When it came to this state, in monotonic seconds."""
    skipping: bool = False
    """Whether the offset is inside a line that is too long."""
    drained: bool = False
    """Whether it holds no further whole line in this state."""

    @property
    def position(self) -> FilePosition:
        return self.position_at(self.offset, self.fingerprint)

    def position_at(self, offset: int, fingerprint: Fingerprint) -> FilePosition:
        return FilePosition(self.inode, offset, fingerprint.digest(), self.modified)

    def move(self, offset: int, fingerprint: Fingerprint) -> None:
        """Read on from an offset."""
        self.offset, self.fingerprint, self.drained = offset, fingerprint, False

    def move_to_end(self, size: int, longest: int) -> None:
        """Read on behind the last whole line of the first `size` bytes; a line has at most `longest`."""
        start = max(0, size - longest)
        data = os.pread(self.fd, size - start, start)
        offset = start + data.rfind(b"\n") + 1
        self.skipping = offset == start > 0
        self.move(offset, fingerprint_at(self.fd, offset))

    def begins_like(self, path: str, size: int) -> bool:
        """Whether the first bytes of the file, which has `size`, are those of the one at a path."""
        try:
            with open(path, "rb") as other:  # noqa: PTH123
                head = other.read(FINGERPRINT_BYTES)
        except FileNotFoundError:
            raise RotatedDuringScanError from None
        length = min(size, len(head))
        return os.pread(self.fd, length, 0) == head[:length]


def open_to_read(path: str) -> int:
    """The descriptor of a file, which its opening can't block on."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def fingerprint_at(fd: int, offset: int) -> Fingerprint:
    """What is at the beginning of a file and just before an offset."""
    length = min(FINGERPRINT_BYTES, offset)
    return Fingerprint(os.pread(fd, length, 0), os.pread(fd, length, offset - length))


def holds(path: str, position: FilePosition) -> bool:
    """Whether the file at a path is that of a position, by its inode and by what was read of it; False where
    it can't be read."""
    try:
        fd = open_to_read(path)
    except OSError:
        return False
    try:
        same = os.fstat(fd).st_ino == position.inode
        return same and fingerprint_at(fd, position.offset).digest() == position.fingerprint
    finally:
        os.close(fd)


def list_file(path: str) -> ListedFile | None:
    """The file at a path, None where there is none. Raises `OSError` for what is no regular file."""
    try:
        info = os.stat(path)  # noqa: PTH116 - each look takes one, and this is four times faster
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    return ListedFile(os.path.basename(path), info.st_ino, info.st_size, info.st_mtime_ns)  # noqa: PTH119


def list_rotated(path: str, others: Set[str], inode: int | None = None) -> list[ListedFile]:
    """The rotated files of the one at a path, and any file beside it with this inode, but for `others`; empty
    where there is no folder."""
    directory, name = os.path.split(path)
    rotated = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name == name or entry.path in others:
                    continue
                if not is_rotated(entry.name, name) and entry.inode() != inode:
                    continue
                if entry.is_file(follow_symlinks=False):
                    rotated.append(_list_entry(entry))
    except FileNotFoundError:
        return []
    return rotated


def _list_entry(entry: os.DirEntry[str]) -> ListedFile:
    try:
        info = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        raise RotatedDuringScanError from None
    return ListedFile(entry.name, info.st_ino, info.st_size, info.st_mtime_ns)
