"""Files: written whole or not at all, most of them for their owner only; small records that are written again
and again in place; the paths of secrets; and the room that a disk has left."""

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
"""Inodes that are kept free: a server makes a file for each 8 MiB of a stream, its agent some at a time."""


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


def write_private(path: Path, data: bytes, mode: int = 0o600, owner: tuple[int, int] | None = None) -> None:
    """Put a file of this mode, and of this `owner` (user, group), with this content in place, so that a crash
    leaves the old or the new one, whole; one writer at a time. Raises `OSError`."""
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
    """Another process holds the lock of a file; the text says which, and for how long it was awaited."""


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold the lock of a file that several commands read, edit and write, for the scope. The lock is a file
    beside it that stays, and goes with the process whatever ends that. Raises `LockedError` after so many
    seconds, or `OSError`."""
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
    """Open the file of a lock. What root makes belongs to the owner of the file that it locks."""
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
    """Like `write_private`, but never replaces: raises `FileExistsError`, also when several write at once.
    Missing directories are made. What root makes belongs to the owner of the directory that was there."""
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
    """The room on a disk, in bytes. A nats-server whose disk becomes full stops writing until it is
    restarted, so messages are refused while the reserve is left."""

    free: int
    """What this user may still write."""
    reserve: int
    """What should be left: 64 MiB, or a twentieth of a small disk."""
    files: int | None = None
    """How many files may still be made; None where the file system has no such limit."""

    @property
    def low(self) -> bool:
        """Whether new messages must be refused."""
        return self.free < self.reserve or self.few_files

    @property
    def few_files(self) -> bool:
        """Whether inodes are what is lacking."""
        return self.files is not None and self.files < _FILES

    @property
    def enough(self) -> bool:
        """Whether messages may be accepted again: twice the reserve, so that the state does not flap."""
        return self.free >= 2 * self.reserve and (self.files is None or self.files >= 2 * _FILES)


def room(directory: Path) -> Room | None:
    """The room of the disk on which a directory is, None if it is unknown."""
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
    """A path that its file names relative to its own directory."""

    given = ""
    """The text in the file; empty for a path that was derived from such a path."""


def place(text: str, directory: Path | None = None) -> Path:
    """The path that a configuration in this directory names; without a directory a relative path stays
    relative. systemd passes a path that begins with `$CREDENTIALS_DIRECTORY/`; a command that is run by hand
    finds it where the shipped unit has it."""
    name = text.removeprefix(f"${_VARIABLE}/")
    if name != text:
        return _directory() / name
    if directory is None or text.startswith("/"):
        return Path(text)
    path = RelativePath(directory, text)
    path.given = text
    return path


def named(path: Path) -> str:
    """The path of a secret's file, for a message. Text that does not look like a path may be the secret
    itself, written where its file belongs: it is not shown."""
    text = (isinstance(path, RelativePath) and path.given) or str(path)
    if text.startswith(("/", "./", "../")) or is_there(path) or ("/" in text and is_there(path.parent)):
        return str(path)
    return "(not shown: it may be the secret itself)"


def without_password(text: str) -> str:
    """A text without the logins of the addresses in it."""
    return _LOGIN.sub(r"\1", text)


def is_handed_over(path: Path) -> bool:
    """Whether systemd passes this file."""
    return path.is_relative_to(_directory())


def others_may(path: Path, mode: int) -> bool:
    """Whether a secret of this mode is open to others than its owner. systemd may let the agent's user in by
    an access list, which shows as a right of the group (systemd.exec(5))."""
    return bool(mode & (0o007 if is_handed_over(path) else 0o077))


def _directory() -> Path:
    return Path(os.environ.get(_VARIABLE) or _SHIPPED)


SLOT: Final = 64 * 1024
"""Bytes of one slot, its head with them."""
_HEAD: Final = struct.Struct("<4sIQI")
_MAGIC: Final = b"PTL1"
"""Of this form of a slot: length and number of the record, and the CRC-32 of both and of the record."""


class SlotFile:
    """Two slots, written in turn, so that a crash while one is written leaves the other whole. One writer at
    a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0

    def read(self) -> list[bytes]:
        """The whole records in the file, the newest first; none where there is no file. Raises `OSError`."""
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
        """Write a record over the older of both; returns False where it does not fit into a slot. Returns
        once it is on disk. Raises `OSError`."""
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
    """Write all of it at an offset. The kernel writes a part and raises nothing where the disk becomes full
    within it; the next attempt raises `OSError`."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def _checksum(number: int, record: bytes) -> int:
    return zlib.crc32(record, zlib.crc32(struct.pack("<QI", number, len(record))))


def _parse_slot(slot: bytes) -> tuple[int, bytes] | None:
    """Number and record of a slot, None for one that was never written, or not to its end."""
    if len(slot) < _HEAD.size:
        return None
    magic, length, number, checksum = _HEAD.unpack_from(slot)
    record = slot[_HEAD.size : _HEAD.size + length]
    if magic != _MAGIC or len(record) != length or _checksum(number, record) != checksum:
        return None
    return number, record
