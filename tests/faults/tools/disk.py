"""A small disk of its own that can be filled and freed. Needs root."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FILLER = "filler"
_EMPTY = "empty"
_CHUNK = 64 * 1024


class SmallDisk:
    """A tmpfs at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, but: int = 0) -> None:
        """Take all the room that is left, but so many bytes."""
        block = bytes(_CHUNK)
        with (self.path / _FILLER).open("ab", buffering=0) as filler:
            try:
                while self.room() > but:
                    filler.write(block)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def fill_inodes(self) -> None:
        """Take all the inodes that are left."""
        (self.path / _EMPTY).mkdir()
        with suppress(OSError):
            for number in range(os.statvfs(self.path).f_ffree):
                (self.path / _EMPTY / str(number)).touch()

    def free(self) -> None:
        """Give back what `fill` and `fill_inodes` took."""
        shutil.rmtree(self.path / _EMPTY, ignore_errors=True)
        with suppress(FileNotFoundError):
            (self.path / _FILLER).unlink()

    def room(self) -> int:
        """Bytes that are left."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize


def missing() -> str | None:
    """Why no disk can be made here, None where one can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    with tempfile.TemporaryDirectory() as place:
        mounted = subprocess.run(("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place), check=False)
        if mounted.returncode != 0:
            return "mounting is not permitted"
        subprocess.run(("umount", "--lazy", place), check=True)
    return None


@contextmanager
def small_disk(path: Path, mebibytes: int, inodes: int = 0) -> Iterator[SmallDisk]:
    """A disk of this size, mounted on a new directory as long as the context lasts, with at most so many
    `inodes` if given. What still has files open there does not keep it."""
    path.mkdir(parents=True)
    size = f"size={mebibytes}m" + (f",nr_inodes={inodes}" if inodes else "")
    subprocess.run(("mount", "-t", "tmpfs", "-o", size, "tmpfs", path), check=True)
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(("umount", "--lazy", path), check=True)
