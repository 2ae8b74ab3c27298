"""Debian's kernel for a guest, with the modules that it needs, fetched once by apt-get and kept."""

from __future__ import annotations

import lzma
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TOOLS: Final = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mkfs.ext4": "e2fsprogs",
    "busybox": "busybox-static",
    "dpkg-deb": "dpkg",
    "apt-get": "apt",
}
_PACKAGE: Final = "linux-image-amd64"
_MODULES: Final = ("virtio_pci", "virtio_blk", "virtio_net", "crc32c_generic", "ext4", "9pnet_virtio", "9p")
_DEPENDS: Final = re.compile(rb"\0depends=([^\0]*)\0")
_SECONDS: Final = 300.0


class NoKernelError(Exception):
    """There is no kernel for a guest; the text says why."""


def missing() -> str | None:
    """Why no guest can be run here, None where one can."""
    if platform.machine() != "x86_64":
        return f"the guest is an x86_64 machine, this one is {platform.machine()}"
    if os.geteuid() != 0:
        return "a guest that sees this machine's files needs root"
    lacking = [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]
    return f"not installed: apt-get install {' '.join(lacking)}" if lacking else None


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel and the modules to load, each after those that it depends on."""

    image: Path
    modules: tuple[Path, ...]


def kernel() -> Kernel:
    """The kernel. Raises `NoKernelError`."""
    kept = Path(sys.prefix) / "guest-kernel"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=sys.prefix) as directory:
            _extract(_fetch(Path(directory)), kept)
    by_name = {_name(path): path for path in kept.rglob("*.ko*")}
    ordered: dict[str, Path] = {}
    for name in _MODULES:
        _order(name, by_name, ordered)
    return Kernel(next(kept.glob("boot/vmlinuz-*")), tuple(ordered.values()))


def code_of(module: Path) -> bytes:
    """What of a module is loaded, compressed or not as its file may be."""
    return lzma.decompress(module.read_bytes()) if module.suffix == ".xz" else module.read_bytes()


def _name(path: Path) -> str:
    return path.name.split(".ko")[0].replace("-", "_")


def _order(name: str, by_name: dict[str, Path], ordered: dict[str, Path]) -> None:
    path = by_name.get(name)
    if path is None or name in ordered:  # what has no file is built in
        return
    found = _DEPENDS.search(code_of(path))
    for other in filter(None, found[1].decode().split(",") if found else []):
        _order(other.replace("-", "_"), by_name, ordered)
    ordered[name] = path


def _fetch(directory: Path) -> Path:
    """The package of which `_PACKAGE` is the latest name."""
    depends = _said("apt-cache", "depends", "--important", _PACKAGE, at=directory)
    names = re.findall(r"Depends: (linux-image-[0-9]\S+)", depends)
    if not names:
        raise NoKernelError(f"apt-cache knows no {_PACKAGE}; run apt-get update")
    _said("apt-get", "download", names[0], at=directory)
    return next(directory.glob("*.deb"))


def _extract(package: Path, to: Path) -> None:
    draft = package.with_name("kernel")
    _said("dpkg-deb", "--extract", str(package), str(draft), at=package.parent)
    draft.chmod(0o755)
    draft.rename(to)


def _said(*command: str, at: Path) -> str:
    try:
        done = subprocess.run(command, cwd=at, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NoKernelError(f"{' '.join(command)} took more than {_SECONDS:.0f} s") from None
    if done.returncode != 0:
        raise NoKernelError(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    return done.stdout
