"""Files that are written whole or not at all, most of them for their owner only, and the room that their
disk has left."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

_RESERVE: Final = 64 * 2**20
_SHARE: Final = 20


class UnseenError(Exception):
    """A path cannot be read, so it is unknown whether it exists; the text says why."""


def mode_at(path: Path | str) -> int | None:
    """Type and mode of the file at a path, None if there is none. Unlike `Path.exists`, raises `UnseenError`
    where this user may not look, as in a directory without permission."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - a text may hold what a Path does not take
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UnseenError((isinstance(error, OSError) and error.strerror) or str(error)) from None


def is_there(path: Path | str) -> bool:
    """Whether a file is at a path, as far as this user may see."""
    try:
        return mode_at(path) is not None
    except UnseenError:
        return False


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read it. Raises `OSError`, also for a named pipe: opening one would wait for a
    writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def private_directory(path: Path) -> Path:
    """Make a directory and its missing parents with mode 0700; an existing one keeps its mode."""
    for missing in reversed([path, *path.parents]):
        if not missing.exists():
            missing.mkdir(mode=0o700, exist_ok=True)
    return path


def write_private(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Put a file of this mode with this content in place, so that a crash leaves the old or the new one,
    whole; one writer at a time. Raises `OSError`."""
    aside = path.with_name(f".{path.name}.new")
    aside.unlink(missing_ok=True)
    try:
        _write(aside, data, os.O_EXCL, mode)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def create_private(path: Path, data: bytes) -> None:
    """Like `write_private`, but never replaces: raises `FileExistsError`, also when several write at once."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write(aside, data, os.O_EXCL)
        path.hardlink_to(aside)
    finally:
        aside.unlink(missing_ok=True)
    _sync_directory(path.parent)


@dataclass(frozen=True, slots=True)
class Room:
    """The room on a disk, in bytes. A nats-server whose disk becomes full stops writing until it is
    restarted, so messages are refused while the reserve is left."""

    free: int
    """What this user may still write."""
    reserve: int
    """What should be left: 64 MiB, or a twentieth of a small disk."""

    @property
    def low(self) -> bool:
        """Whether new messages must be refused."""
        return self.free < self.reserve

    @property
    def enough(self) -> bool:
        """Whether messages may be accepted again: twice the reserve, so that the state does not flap."""
        return self.free >= 2 * self.reserve


def room(directory: Path) -> Room | None:
    """The room of the disk on which a directory is, None if it is unknown."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return None
    total = disk.f_blocks * disk.f_frsize
    return Room(disk.f_bavail * disk.f_frsize, min(_RESERVE, total // _SHARE))


def _write(path: Path, data: bytes, flag: int, mode: int = 0o600) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flag, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
