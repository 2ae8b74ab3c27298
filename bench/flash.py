"""What reaches a block device, by the kernel's counters (Documentation/block/stat.rst), and a device of its
own for what is measured, where this process may make one."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SECTOR: Final = 512
_WRITTEN, _FLUSHES = 6, 15
"""Where the counters stand."""
_IMAGE_BYTES: Final = 8 * 2**30


@dataclass(frozen=True, slots=True)
class Written:
    """Since the machine started."""

    bytes: int
    flushes: int

    def since(self, before: Written) -> Written:
        """What came after."""
        return Written(self.bytes - before.bytes, self.flushes - before.flushes)


@dataclass(frozen=True, slots=True)
class Device:
    """A directory, and the device that holds it."""

    directory: Path
    name: str
    alone: bool
    """Nothing else writes to it."""

    def written(self) -> Written:
        """Until now."""
        fields = Path(f"/sys/class/block/{self.name}/stat").read_text().split()
        return Written(int(fields[_WRITTEN]) * _SECTOR, int(fields[_FLUSHES]))


@contextmanager
def device() -> Iterator[Device]:
    """An empty ext4 on a loop device that ends with the context; without the rights for that a temporary
    directory on the device that holds it, which others write to as well. Raises `RuntimeError` where it is on
    none."""
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as name:
        image, mounted = Path(name) / "image", Path(name) / "mounted"
        mounted.mkdir()
        if not _mount(image, mounted):
            yield Device(mounted, _holding(mounted), alone=False)
            return
        try:
            yield Device(mounted, _holding(mounted), alone=True)
        finally:
            subprocess.run(["umount", "--lazy", str(mounted)], check=True)


def _mount(image: Path, mounted: Path) -> bool:
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    commands = (["mkfs.ext4", "-q", "-F", str(image)], ["mount", "-o", "loop", str(image), str(mounted)])
    with suppress(OSError, subprocess.CalledProcessError):
        for command in commands:
            subprocess.run(command, check=True, capture_output=True)
        return True
    return False


def _holding(directory: Path) -> str:
    number = directory.stat().st_dev
    entry = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not entry.exists():
        raise RuntimeError(f"{directory} is on no block device; set TMPDIR to a directory that is")
    return entry.resolve().name
