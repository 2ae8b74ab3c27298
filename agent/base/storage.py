"""Finds a directory's file system, and whether it keeps synced data on power loss. Unknown ones do
not count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

KEEPING: Final = frozenset(
    {"ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs", "nilfs2", "reiserfs"}
)
"""File systems that keep a synced file and its name."""
FLUSHING: Final = ("ext3", "ext4", "btrfs", "zfs")
"""File systems that write a replacing file whole without its sync."""
_MEMORY: Final = ("tmpfs", "ramfs", "rootfs", "devtmpfs", "hugetlbfs")
_LAYERS: Final = ("overlay", "aufs", "unionfs")
_SHARES: Final = re.compile(r"(nfs|cifs|smb|9p|ceph|gluster|afs|virtiofs|vboxsf|lustre|ocfs2|gfs2|fuse)")
_UNSAFE: Final = re.compile(r"(nobarrier|barrier=0|barrier=none|fsync_mode=nobarrier|volatile)\Z")
_RAM_DISK: Final = re.compile(r"(zram|ram)\d+\Z")
_DEEPEST: Final = 8


class Mount(Struct, frozen=True):
    """A line of /proc/self/mountinfo (proc_pid_mountinfo(5))."""

    device: str
    """Major and minor number."""
    place: str
    kind: str
    source: str
    options: tuple[str, ...]


class Storage(Struct, frozen=True):
    """The storage of a path."""

    kind: str | None
    """File system such as `ext4`; None if unknown."""
    problem: str | None
    """Why synced data may be lost; None if known to be kept."""


def storage(path: Path) -> Storage:
    """Return the storage of a path or its nearest existing parent."""
    mount = mount_of(path)
    return Storage(None, "its file system is not known") if mount is None else judged(mount)


def judged(mount: Mount, depth: int = 0) -> Storage:
    """Judge whether a mount keeps synced data."""
    kind = mount.kind
    if kind in _MEMORY:
        problem = f"{kind} is memory: a restart of the machine takes all of it"
    elif kind in _LAYERS:
        problem = f"{kind} is a layer of a container or a live system, and may end with that"
    elif _SHARES.match(kind):
        problem = f"{kind} is a share or a program's: whether what is synced is on a disk is not known"
    elif kind not in KEEPING:
        problem = f"{kind} is not known to keep what is synced"
    elif unsafe := [option for option in mount.options if _UNSAFE.match(option)]:
        problem = f"{kind} is mounted with {unsafe[0]}, so the cache of its disk is not flushed"
    else:
        problem = _under(mount, depth) or ""
    return Storage(kind, problem or None)


def _under(mount: Mount, depth: int) -> str | None:
    """Return what block devices below a mount lose, or None."""
    for name in _devices(Path("/sys/dev/block") / mount.device, depth):
        if _RAM_DISK.match(name):
            return f"{mount.kind} is on {name}, which is memory: a restart of the machine takes all of it"
        backing = Path("/sys/block") / name / "loop" / "backing_file"
        if name.startswith("loop") and depth < _DEEPEST and (file := _read(backing)):
            below = mount_of(Path(file))
            if below is not None and (problem := judged(below, depth + 1).problem) is not None:
                return f"{mount.kind} is in the file {file}: {problem}"
    return None


def _devices(device: Path, depth: int) -> Iterator[str]:
    """Yield a block device, its disk, and those below it (LVM, RAID)."""
    try:
        real = device.resolve(strict=True)
    except OSError:
        return
    yield real.name
    yield real.parent.name
    if depth < _DEEPEST:
        for slave in sorted((real / "slaves").glob("*")):
            yield from _devices(slave, depth + 1)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def file_system(path: Path) -> str | None:
    """Return a path's file system, None if unknown."""
    mount = mount_of(path)
    return None if mount is None else mount.kind


def mount_of(path: Path) -> Mount | None:
    """Return a path's mount; the newest of several at one place."""
    try:
        text = Path("/proc/self/mountinfo").read_bytes().decode(errors="surrogateescape")
        whole = path.resolve()
    except (OSError, RuntimeError):
        return None
    return covering(whole, parsed(text))


def covering(path: Path, mounts: list[Mount]) -> Mount | None:
    """Return the mount above a path."""
    found = None
    for mount in mounts:
        if path.is_relative_to(mount.place) and (found is None or len(mount.place) >= len(found.place)):
            found = mount
    return found


def parsed(text: str) -> list[Mount]:
    """Parse a mountinfo file in order."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if len(left) >= 6 and len(right) >= 3:
            options = (*left[5].split(","), *right[2].split(","))
            mounts.append(Mount(left[2], _unescaped(left[4]), right[0], _unescaped(right[1]), options))
    return mounts


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    raw = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), os.fsencode(text))
    return os.fsdecode(raw)
