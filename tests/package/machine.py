"""A clean Debian with systemd in a container of its own (systemd-nspawn), without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
BASE: Final = ROOT / "build" / "package" / "base.tar"
WAIT_SECONDS: Final = 240.0
_SUITE: Final = "bookworm"
_INCLUDED: Final = "systemd,systemd-sysv,dbus,python3"
NEEDED: Final = ("mmdebstrap", "systemd-nspawn", "dpkg-deb", "nsenter")


def lacking() -> str:
    """Why there can be no such machine here; "" where there can."""
    if os.getuid() != 0:
        return "only root can run a container"
    missing = [one for one in NEEDED if shutil.which(one) is None]
    return f"not installed: {', '.join(missing)} (mmdebstrap, systemd-container)" if missing else ""


def base() -> Path:
    """The archive of a clean system; fetched by apt once."""
    if not BASE.is_file():
        BASE.parent.mkdir(parents=True, exist_ok=True)
        aside = BASE.with_suffix(".new.tar")
        command = ["mmdebstrap", "--quiet", "--variant=apt", f"--include={_INCLUDED}", _SUITE, str(aside)]
        subprocess.run(command, check=True, timeout=1500)
        aside.rename(BASE)
    return BASE


class Machine:
    """One such system below a directory. `shared` is seen in it as /shared."""

    def __init__(self, directory: Path, shared: Path) -> None:
        self.root = directory / "root"
        self._shared = shared
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Unpack and boot it."""
        self.root.mkdir()
        # Devices are the container's own.
        subprocess.run(["tar", "-xf", base(), "-C", self.root, "--exclude=./dev/*"], check=True)
        (self.root / "etc" / "machine-id").write_text("")
        options = ["--quiet", "--register=no", "--keep-unit", "--private-network", "--console=pipe"]
        # Without this nspawn forbids also to ask whether the clock is synchronised.
        options += ["--system-call-filter=@clock", f"--bind-ro={self._shared}:/shared"]
        self._process = subprocess.Popen(
            ["systemd-nspawn", *options, "-D", str(self.root), "--boot"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        self.wait("systemctl is-system-running --quiet")

    def run(self, command: str, check: bool = True) -> str:
        """What a shell command prints in it."""
        entered = ["nsenter", "-t", str(self._leader()), "-m", "-u", "-i", "-n", "-p", "-C", "--"]
        done = subprocess.run(
            [*entered, "/bin/sh", "-c", command],
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"
        return done.stdout.strip()

    def holds(self, command: str) -> bool:
        """Whether a shell command ends well in it."""
        return self.run(f"({command}) >/dev/null 2>&1 && echo yes", check=False) == "yes"

    def wait(self, command: str) -> None:
        """Until that is so."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not self.holds(command):
            assert time.monotonic() < deadline, f"waited in vain: {command}"
            time.sleep(0.2)

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)

    def _leader(self) -> int:
        """Its first process; 0 while there is none, which nothing can enter."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0]) if children else 0
