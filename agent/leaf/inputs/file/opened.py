"""Files as they are opened and told apart. It reads and never writes."""

from __future__ import annotations

import os
from dataclasses import dataclass

from agent.leaf.inputs.file.rotation import MARK_BYTES, FilePosition, Fingerprint, ListedFile


class RotatedDuringScanError(Exception):
    """Files were renamed during the look: the next one will show more."""


@dataclass(slots=True)
class OpenFile:
    """A file being read, up to `offset`. `modified` is when it had been changed (ns since 1970) as it was
    last read, `state` its size and time of change at the last look, `since` when it became so (monotonic
    seconds), `drained` says that it then held no further whole line."""

    fd: int
    name: str
    inode: int
    offset: int
    mark: Fingerprint
    modified: int
    state: tuple[int, int]
    since: float
    skipping: bool = False
    drained: bool = False


def holds(path: str, position: FilePosition) -> bool:
    """Whether the file at a path is the one of a position, by its inode and by what was read of it. One that
    can't be read is not."""
    try:
        fd = open_to_read(path)
    except OSError:
        return False
    try:
        same = os.fstat(fd).st_ino == position.inode
        return same and mark_at(fd, position.offset).fingerprint() == position.fingerprint
    finally:
        os.close(fd)


def open_to_read(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def seen_at(entry: os.DirEntry[str]) -> ListedFile:
    try:
        info = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        raise RotatedDuringScanError from None
    return ListedFile(entry.name, info.st_ino, info.st_size, info.st_mtime_ns)


def mark_at(fd: int, offset: int) -> Fingerprint:
    """What stands at the beginning of a file and just before an offset."""
    length = min(MARK_BYTES, offset)
    return Fingerprint(os.pread(fd, length, 0), os.pread(fd, length, offset - length))
