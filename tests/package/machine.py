"""A clean Debian without a network: with systemd in a container of its own (systemd-nspawn), or for another
architecture, whose programs qemu emulates one by one, in namespaces of its own."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Final

import psutil

from deploy.deb import native

ROOT: Final = Path(__file__).parents[2]
_BASES: Final = ROOT / "build" / "package"
WAIT_SECONDS: Final = 240.0
_SUITE: Final = "bookworm"
_INCLUDED: Final = "systemd,systemd-sysv,dbus,python3"
NEEDED: Final = {
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "dpkg-deb": "dpkg",
    "nsenter": "util-linux",
}
"""The programs without which there is no such machine, each with the Debian package that has it."""
NEEDED_TO_EMULATE: Final = {
    "mmdebstrap": "mmdebstrap",
    "qemu-aarch64-static": "qemu-user-static",
    "unshare": "util-linux",
    "dpkg-deb": "dpkg",
    "nsenter": "util-linux",
}
_EMULATED: Final = "arm64"
_BINFMT: Final = Path("/proc/sys/fs/binfmt_misc")
_BINFMT_NAME: Final = "qemu-aarch64"

LEAF_CONFIG: Final = """\
role = "leaf"
domain = "edge-1"
state_dir = "/var/lib/petiole"

[nats]
hub_urls = ["nats-leaf://127.0.0.1:7422"]
max_file_store = "2GiB"

[[input]]
type = "http"
"""
"""What a leaf needs that takes readings over HTTP."""


def base(architecture: str) -> Path:
    """The archive of a clean system; fetched by apt once."""
    archive = _BASES / f"base-{architecture}.tar"
    if not archive.is_file():
        archive.parent.mkdir(parents=True, exist_ok=True)
        aside = archive.with_suffix(".new.tar")
        command = ["mmdebstrap", "--quiet", "--variant=apt", f"--arch={architecture}"]
        subprocess.run([*command, f"--include={_INCLUDED}", _SUITE, str(aside)], check=True, timeout=1500)
        aside.rename(archive)
    return archive


class Machine:
    """One such system below a directory. `shared` is seen in it as /shared."""

    _namespaces: tuple[str, ...] = ("-m", "-u", "-i", "-n", "-p", "-C")

    def __init__(self, directory: Path, shared: Path) -> None:
        self.root = directory / "root"
        self._shared = shared
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Unpack and boot it."""
        self._unpack(native())
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

    def _unpack(self, architecture: str) -> None:
        self.root.mkdir()
        # Devices are the container's own.
        subprocess.run(["tar", "-xf", base(architecture), "-C", self.root, "--exclude=./dev/*"], check=True)
        (self.root / "etc" / "machine-id").write_text("")

    def entered(self, command: str) -> list[str]:
        """The command, here, that runs a shell command there."""
        return ["nsenter", "-t", str(self._leader()), *self._namespaces, "--", "/bin/sh", "-c", command]

    def run(self, command: str, check: bool = True) -> str:
        """What a shell command prints in it."""
        done = subprocess.run(
            self.entered(command),
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


class EmulatedMachine(Machine):
    """A system of another architecture. Nothing boots it; its first process only waits."""

    _namespaces = ("-m", "-u", "-i", "-n", "-p", "-r", "-w")

    def __init__(self, directory: Path, shared: Path) -> None:
        super().__init__(directory, shared)
        self._spawned: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Unpack it, and have the kernel run its programs by qemu."""
        emulate()
        self._unpack(_EMULATED)
        (self.root / "shared").mkdir()
        inside = [
            f"mount --bind {self._shared} {self.root}/shared",
            f"mount -t proc proc {self.root}/proc",
            f"mount --rbind /dev {self.root}/dev",
            "ip link set lo up",
            # As the first process, it reaps whatever loses its parent.
            f"exec chroot {self.root} sh -c 'while sleep 1; do :; done'",
        ]
        # That process ends with its parent, which lets no other signal end it.
        isolated = ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child"]
        self._process = subprocess.Popen([*isolated, "sh", "-e", "-c", "\n".join(inside)])
        self.wait("test -e /proc/self/status && test -d /shared")

    def spawn(self, command: str) -> None:
        """Start a shell command in it that goes on."""
        self._spawned.append(subprocess.Popen(self.entered(command)))

    def kill(self, program: str) -> None:
        """End what runs this program in it by SIGKILL; processes there are seen from here."""
        own = [process for process in psutil.process_iter() if self._runs(process, program)]
        assert own, program
        for process in own:
            process.kill()
        _, alive = psutil.wait_procs(own, timeout=WAIT_SECONDS)
        assert not alive, program

    def _runs(self, process: psutil.Process, program: str) -> bool:
        try:
            root = Path(f"/proc/{process.pid}/root").readlink()
            return root == self.root and any(word.endswith(program) for word in process.cmdline())
        except (OSError, psutil.Error):
            return False

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            for process in (self._process, *self._spawned):
                process.wait(60)


def emulate() -> None:
    """Have the kernel run the other architecture's programs by qemu, as qemu-user-static registers it where
    systemd runs."""
    if not (_BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(_BINFMT)], check=True)
    if not (_BINFMT / _BINFMT_NAME).exists():
        (_BINFMT / "register").write_bytes(Path(f"/usr/lib/binfmt.d/{_BINFMT_NAME}.conf").read_bytes())
