"""Files that are written whole or not at all, most of them for their owner only. Knows nothing of what
stands in them."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO


class UnseenError(Exception):
    """A path cannot be looked at; the text says why. What is there, if anything, is not known."""


def mode_at(path: Path | str) -> int | None:
    """Type and mode of what is at a path, None where nothing is. `Path.exists` and its like let some errors
    out, as that of a directory which may not be entered. Raises `UnseenError`."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - a text may hold what a Path does not take
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UnseenError((isinstance(error, OSError) and error.strerror) or str(error)) from None


def is_there(path: Path | str) -> bool:
    """Whether something is at a path, as far as this user may see."""
    try:
        return mode_at(path) is not None
    except UnseenError:
        return False


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it. Raises `OSError`, also for what is none: to open a named pipe would wait for
    whoever writes into it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def private_directory(path: Path) -> Path:
    """Make a directory and its missing parents with mode 0700; one that is there is left as it is."""
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
    """Like `write_private`, but raises `FileExistsError` instead of replacing, whoever else writes too."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write(aside, data, os.O_EXCL)
        path.hardlink_to(aside)
    finally:
        aside.unlink(missing_ok=True)
    _sync_directory(path.parent)


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
