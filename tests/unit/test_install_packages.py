"""How packages of the system are installed while another program uses apt: by a real apt with directories of
its own."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.harness.wait import until

SCRIPT = Path("deploy/install_packages.sh").absolute()

pytestmark = pytest.mark.skipif(
    shutil.which("apt-get") is None or os.geteuid() != 0, reason="needs apt-get, and root for it"
)


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    """The directory of an apt that knows one source, which is empty."""
    for folder in ("lists/partial", "cache/archives/partial", "dpkg/updates", "source", "parts"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("dpkg/status", "source/Packages"):
        (tmp_path / file).touch()
    (tmp_path / "sources.list").write_text(f"deb [trusted=yes] file:{tmp_path}/source ./\n")
    (tmp_path / "apt.conf").write_text(
        f"""Dir::State "{tmp_path}";
Dir::State::status "{tmp_path}/dpkg/status";
Dir::Cache "{tmp_path}/cache";
Dir::Etc::sourcelist "{tmp_path}/sources.list";
Dir::Etc::sourceparts "{tmp_path}/parts";
Dir::Etc::parts "{tmp_path}/parts";
APT::Sandbox::User "root";
"""
    )
    return tmp_path


def install(apt: Path, wait: int) -> subprocess.Popen[str]:
    """Begin to install no package, after waiting so many seconds for others at most."""
    environment = {**os.environ, "APT_CONFIG": str(apt / "apt.conf"), "APT_WAIT": str(wait)}
    return subprocess.Popen(
        [SCRIPT, "a thing", ""], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """As another program holds a lock of apt."""
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


LOCKS = pytest.mark.parametrize(
    ("lock", "waits_in"), [("lists/lock", "sleep"), ("dpkg/lock-frontend", "apt-get")]
)


@LOCKS
async def test_packages_are_installed_once_another_program_has_left_apt(
    apt: Path, lock: str, waits_in: str
) -> None:
    with locked(apt / lock):
        running = install(apt, 60)

        def waits() -> bool:
            return waits_in in [child.name() for child in psutil.Process(running.pid).children()]

        await until(waits, "it waits for the other program")
    _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (0, "")


@LOCKS
def test_a_program_that_does_not_leave_apt_is_named(apt: Path, lock: str, waits_in: str) -> None:
    with locked(apt / lock):
        _, said = install(apt, 1).communicate(timeout=60)
    assert f"{apt / lock}" in said
    assert said.endswith("petiole: a thing is missing and apt-get could not install \n")
