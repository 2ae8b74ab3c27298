"""What is believed of file systems: only those known to keep what is synced, on a device that does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from agent.base.storage import KEEPING, Mount, covering, judged, parsed, storage
from tests.faults.tools.disk import missing


def mount(kind: str, *options: str) -> Mount:
    return Mount("0:99", "/", kind, "x", options)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("tmpfs", "is memory"),
        ("ramfs", "is memory"),
        ("overlay", "is a layer of a container"),
        ("nfs4", "is a share"),
        ("9p", "is a share"),
        ("cifs", "is a share"),
        ("fuse.sshfs", "is a share"),
        ("fuseblk", "is a share"),
        ("virtiofs", "is a share"),
        ("vfat", "is not known to keep"),
        ("ext2", "is not known to keep"),
        ("something-new", "is not known to keep"),
    ],
)
def test_what_is_not_known_to_keep_is_named(kind: str, words: str) -> None:
    assert words in str(judged(mount(kind)).problem)


def test_a_known_file_system_keeps_unless_its_mount_lets_the_disk_cache(tmp_path: Path) -> None:
    for kind in KEEPING:
        assert judged(mount(kind, "rw", "relatime")).problem is None
    for option in ("nobarrier", "barrier=0"):
        assert f"mounted with {option}" in str(judged(mount("ext4", "rw", option)).problem)


def test_of_several_mounts_at_a_place_the_newest_hides_the_others() -> None:
    mounts = parsed(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:30 / /a\\040b rw,nosuid shared:1 - autofs systemd rw\n"
        "3 1 8:2 / /a\\040b rw - xfs /dev/sda2 rw,nobarrier\n"
        "4 1 0:31 / /other rw - tmpfs tmpfs rw\n"
        "a line that is no mount\n"
    )
    found = covering(Path("/a b/c"), mounts)
    assert found is not None
    assert (found.kind, found.device) == ("xfs", "8:2")
    assert "nobarrier" in found.options
    root = covering(Path("/a"), mounts)
    assert root is not None
    assert root.kind == "ext4"


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[Path]:
    place.mkdir(parents=True)
    subprocess.run(("mount", *options, str(place)), check=True)
    try:
        yield place
    finally:
        subprocess.run(("umount", "--lazy", str(place)), check=True)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_real_mounts_are_known_by_what_is_below_them(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for kind in ("tmpfs", "ramfs"):
            place = stack.enter_context(mounted(tmp_path / kind, "-t", kind, kind))
            below = storage(place / "not" / "there" / "yet")
            assert below.kind == kind
            assert f"{kind} is memory" in str(below.problem)
        image = tmp_path / "ramfs" / "disk"
        with image.open("wb") as file:
            file.truncate(16 * 2**20)
        subprocess.run(("/usr/sbin/mkfs.ext4", "-q", str(image)), check=True)
        inside = stack.enter_context(mounted(tmp_path / "inside", "-o", "loop", str(image)))
        found = storage(inside)
        assert found.kind == "ext4"
        assert f"ext4 is in the file {image}: ramfs is memory" in str(found.problem)
