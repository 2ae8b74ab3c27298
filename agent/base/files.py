"""Writes files atomically, private by default, and small records in place; checks secret paths and disk
space.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path, PosixPath
from typing import BinaryIO, Final

from msgspec import Struct

_RESERVE: Final = 64 * 2**20
_SHARE: Final = 20
_FILES: Final = 64
"""Inodes kept free; a server needs one per 8 MiB of stream."""


class UnseenError(Exception):
    """The path can't be read, so its existence is unknown; the text has the reason."""


def mode_at(path: Path | str) -> int | None:
    """Return type and mode of a path, None if missing. Raises `UnseenError` without permission."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - a text may hold what a Path does not take
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UnseenError((isinstance(error, OSError) and error.strerror) or str(error)) from None


def is_there(path: Path | str) -> bool:
    """Tell whether a file exists, as far as visible."""
    try:
        return mode_at(path) is not None
    except UnseenError:
        return False


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file. Raises `OSError`, also for a named pipe, which would block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def private_directory(path: Path) -> Path:
    """Create a directory and its parents with mode 0700; an existing one keeps its mode."""
    for missing in reversed([path, *path.parents]):
        if not missing.exists():
            missing.mkdir(mode=0o700, exist_ok=True)
    return path


def write_private(path: Path, data: bytes, mode: int = 0o600, owner: tuple[int, int] | None = None) -> None:
    """Replace a file atomically with this mode and `owner` (user, group); one writer at a time. Raises
    `OSError`.
    """
    aside = path.with_name(f".{path.name}.new")
    aside.unlink(missing_ok=True)
    try:
        _write(aside, data, mode, owner)
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        if error.errno is not None:
            error.filename = str(path)  # the kernel says of a full disk only that it is full
        raise
    _sync_directory(path.parent)


class LockedError(Exception):
    """Another process holds a file's lock; the text names it and the wait."""


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Lock a file for the scope, through a persistent lock file beside it. Raises `LockedError` after so many
    seconds, or `OSError`.
    """
    descriptor = _open_lock(path.with_name(f".{path.name}.lock"), path.stat())
    try:
        deadline = time.monotonic() + seconds
        while not _has_locked(descriptor):
            if time.monotonic() > deadline:
                holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
                raise LockedError(f"process {holder} has been changing it for {seconds:.0f} s")
            time.sleep(0.05)
        with contextlib.suppress(OSError):  # a full disk
            os.pwrite(descriptor, f"{os.getpid():<20}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open_lock(path: Path, like: os.stat_result) -> int:
    """Open a lock file, which root gives to the owner of the locked file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    if os.geteuid() == 0:
        os.fchown(descriptor, like.st_uid, like.st_gid)
    return descriptor


def _has_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def create_private(path: Path, data: bytes) -> None:
    """Create a file as `write_private`; raises `FileExistsError`, also in a race. Makes missing directories.

    As root, the file belongs to the owner of the existing directory.
    """
    missing = [above for above in (path.parent, *path.parent.parents) if not above.exists()]
    there = (missing[-1].parent if missing else path.parent).stat()
    owner = (there.st_uid, there.st_gid) if os.geteuid() == 0 else None
    private_directory(path.parent)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        if owner is not None:
            for directory in missing:
                os.chown(directory, *owner, follow_symlinks=False)
        _write(aside, data, owner=owner)
        path.hardlink_to(aside)
    finally:
        aside.unlink(missing_ok=True)
    _sync_directory(path.parent)


class Room(Struct, frozen=True):
    """Disk space in bytes. nats-server stops writing on a full disk until restarted, so a reserve is kept."""

    free: int
    """Writable by this user."""
    reserve: int
    """64 MiB, or a twentieth of a small disk."""
    files: int | None = None
    """Free inodes; None if unlimited."""

    @property
    def low(self) -> bool:
        """Whether to refuse messages."""
        return self.free < self.reserve or self.few_files

    @property
    def few_files(self) -> bool:
        """Whether inodes are short."""
        return self.files is not None and self.files < _FILES

    @property
    def enough(self) -> bool:
        """Whether to accept again: twice the reserve, against flapping."""
        return self.free >= 2 * self.reserve and (self.files is None or self.files >= 2 * _FILES)


def room(directory: Path) -> Room | None:
    """Return the space of a directory's disk, None if unknown."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return None
    total = disk.f_blocks * disk.f_frsize
    # btrfs and others that make inodes as they are needed say that there are none.
    files = disk.f_favail if disk.f_files else None
    return Room(disk.f_bavail * disk.f_frsize, min(_RESERVE, total // _SHARE), files)


def _write(path: Path, data: bytes, mode: int = 0o600, owner: tuple[int, int] | None = None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        if owner is not None:
            os.fchown(descriptor, *owner)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_VARIABLE: Final = "CREDENTIALS_DIRECTORY"
_LOGIN: Final = re.compile(r"(//|^|(?<=[\"' ]))[^/\s\"']*@")
_SHIPPED: Final = "/run/credentials/petiole.service"


class RelativePath(PosixPath):
    """A path relative to its configuration file."""

    given = ""
    """The written text; "" for derived paths."""


def place(text: str, directory: Path | None = None) -> Path:
    """Return a configured path, relative to `directory` if given.

    `$CREDENTIALS_DIRECTORY/` comes from systemd; commands use the unit's place instead.
    """
    name = text.removeprefix(f"${_VARIABLE}/")
    if name != text:
        return _directory() / name
    if directory is None or text.startswith("/"):
        return Path(text)
    path = RelativePath(directory, text)
    path.given = text
    return path


def named(path: Path) -> str:
    """Return a secret file's path for messages. Text unlike a path may be the secret itself and is hidden."""
    text = (isinstance(path, RelativePath) and path.given) or str(path)
    if text.startswith(("/", "./", "../")) or is_there(path) or ("/" in text and is_there(path.parent)):
        return str(path)
    return "(not shown: it may be the secret itself)"


def without_password(text: str) -> str:
    """Remove logins from addresses in a text."""
    return _LOGIN.sub(r"\1", text)


def is_handed_over(path: Path) -> bool:
    """Tell whether systemd passes this file."""
    return path.is_relative_to(_directory())


def others_may(path: Path, mode: int) -> bool:
    """Tell whether a secret's mode opens it to others. systemd's ACL for the agent shows as group right
    (systemd.exec(5)).
    """
    return bool(mode & (0o007 if is_handed_over(path) else 0o077))


def _directory() -> Path:
    return Path(os.environ.get(_VARIABLE) or _SHIPPED)


SLOT: Final = 64 * 1024
"""Bytes of a slot with its head."""
_HEAD: Final = struct.Struct("<4sIQI")
_MAGIC: Final = b"PTL1"
"""Slot format: record length and number, and a CRC-32 over them and the record."""


class SlotFile:
    """Two slots written in turn, so a crash leaves one whole. One writer at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0

    def read(self) -> list[bytes]:
        """Return whole records, newest first. Raises `OSError`."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        found = [record for at in (0, SLOT) if (record := _parse_slot(data[at : at + SLOT])) is not None]
        found.sort(reverse=True)
        if found:
            self._number = found[0][0]
        return [record for _, record in found]

    def write(self, record: bytes) -> bool:
        """Write a record durably over the older slot; False if too large. Raises `OSError`."""
        if not self._number:
            self.read()
        number = self._number + 1
        if _HEAD.size + len(record) > SLOT:
            return False
        head = _HEAD.pack(_MAGIC, len(record), number, _checksum(number, record))
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < 2 * SLOT:
                # All blocks are there from the first write on, so that none of the later ones changes more.
                write_at(descriptor, bytes(2 * SLOT), 0)
                os.fsync(descriptor)
            write_at(descriptor, head + record, SLOT * (number % 2))
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        self._number = number
        return True


def write_at(descriptor: int, data: bytes, offset: int) -> None:
    """Write everything at an offset. Repeats after a partial write on a full disk, which then raises
    `OSError`.
    """
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def _checksum(number: int, record: bytes) -> int:
    return zlib.crc32(record, zlib.crc32(struct.pack("<QI", number, len(record))))


def _parse_slot(slot: bytes) -> tuple[int, bytes] | None:
    """Return a slot's number and record, None if invalid."""
    if len(slot) < _HEAD.size:
        return None
    magic, length, number, checksum = _HEAD.unpack_from(slot)
    record = slot[_HEAD.size : _HEAD.size + length]
    if magic != _MAGIC or len(record) != length or _checksum(number, record) != checksum:
        return None
    return number, record
