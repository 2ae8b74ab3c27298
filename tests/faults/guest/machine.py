"""A machine whose power can be cut: a qemu guest that ends by SIGKILL, and its page cache with it.

It sees the files of this machine, read only, and has a disk of its own over one directory. Its disk writes
through to a file here when it flushes; what it has not even handed to its disk is lost with it. Its clock is
its own, and may be set.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.faults.guest.kernel import Kernel, code_of
from tests.harness.agent_process import PETIOLE

HOST: Final = "10.0.2.2"
"""This machine's loopback, as the guest dials it."""
AGENT_LOG: Final = "/agent.log"
"""What the agent in a guest has logged in this boot."""
_LIBRARY: Final = Path(__file__).parents[3]
_FIRST_PORT: Final = 18000
_EMULATED: Final = ("-accel", "tcg", "-cpu", "Westmere,+rdrand", "-smp", "1")
"""One processor: qemu 7.2 now and then emulates two so that the kernel hangs while it boots."""
_HARDWARE: Final = ("-accel", "kvm", "-cpu", "host", "-smp", "2")
_BOOT_SECONDS: Final = 400.0
_COMMAND_SECONDS: Final = 180.0
_APPENDED: Final = (
    "console=ttyS0 quiet panic=-1 random.trust_cpu=on mitigations=off edd=off apparmor=0 audit=0 "
    "cryptomgr.notests=1"
)
_INIT: Final = Path(__file__).with_name("init.sh")
_ANSWERED: Final = re.compile(rb"(.*)==([0-9]+)==\n", re.DOTALL)


class GuestError(Exception):
    """The guest did not do what it was told; the text has what it said."""


class Machine:
    """A guest with a new disk of so many MiB over `disk`, which must be an empty directory. A connection to
    `ports` here leads to the same port of its loopback. Its files stand in `directory`."""

    def __init__(
        self, kernel: Kernel, directory: Path, disk: Path, ports: Sequence[int], mebibytes: int = 512
    ) -> None:
        self._kernel, self._directory, self._disk, self._ports = kernel, directory, disk, ports
        self._image = directory / "disk.img"
        self._console = directory / "console.log"
        self._line = directory / "line"
        self._initramfs = directory / "initramfs"
        self._process: subprocess.Popen[bytes] | None = None
        self._told: socket.socket | None = None
        directory.mkdir(parents=True, exist_ok=True)
        with self._image.open("wb") as image:
            image.truncate(mebibytes * 2**20)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._pack()

    @property
    def is_on(self) -> bool:
        """Whether it has power."""
        return self._process is not None

    def boot(self, clock: int | None = None) -> None:
        """Switch it on, its clock as this machine's or at `clock` (epoch seconds); returns when it listens to
        commands. Raises `GuestError`."""
        forwards = "".join(
            f",hostfwd=tcp:127.0.0.1:{port}-:{_FIRST_PORT + number}"
            for number, port in enumerate(self._ports)
        )
        given = f"guest_disk={self._disk} guest_ports={','.join(map(str, self._ports))}"
        given += "" if clock is None else f" guest_clock={clock}"
        self._line.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [
                *("qemu-system-x86_64", "-machine", "q35", *_processor(), "-m", "1024"),
                *("-display", "none", "-no-reboot", "-kernel", str(self._kernel.image)),
                *("-initrd", str(self._initramfs)),
                *("-append", f"{_APPENDED} {given}"),
                *("-drive", f"file={self._image},if=virtio,format=raw,cache=writeback"),
                *("-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"),
                *("-nic", f"user,model=virtio-net-pci{forwards}"),
                *("-serial", f"file:{self._console}"),
                *("-serial", f"unix:{self._line},server=on,wait=off"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._connect(time.monotonic() + _BOOT_SECONDS)
        self.run("true", seconds=_BOOT_SECONDS)

    def run(self, command: str, seconds: float = _COMMAND_SECONDS) -> str:
        """What a shell there says to this line; on the host's files it works with `chrooted`. Raises
        `GuestError` where it fails or takes longer."""
        assert self._told is not None, "the guest is off"
        self._told.settimeout(seconds)
        self._told.sendall(f"{{ {command}; }} 2>&1; echo ==$?==\n".encode())
        heard = b""
        try:
            while (found := _ANSWERED.search(heard)) is None:
                if not (more := self._told.recv(65536)):
                    raise GuestError(f"the guest went away: {self.console()}")
                heard += more
        except TimeoutError:
            raise GuestError(
                f"{command} took more than {seconds:.0f} s: {heard!r} {self.console()}"
            ) from None
        if found[2] != b"0":
            raise GuestError(f"{command}: {found[1].decode(errors='replace')}")
        return found[1].decode(errors="replace")

    def cut_power(self) -> None:
        """SIGKILL; nothing of its memory is left."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        if self._told is not None:
            self._told.close()
        self._process = self._told = None

    def console(self) -> str:
        """The last that it wrote on its console."""
        return self._console.read_text(errors="replace")[-2000:] if self._console.exists() else ""

    def _connect(self, deadline: float) -> None:
        assert self._process is not None
        while self._told is None:
            line = socket.socket(socket.AF_UNIX)
            try:
                line.connect(str(self._line))
            except OSError:
                line.close()
                if self._process.poll() is not None:
                    said = self._process.communicate()[1].decode(errors="replace")
                    raise GuestError(f"qemu ended: {said.strip()[-500:]}") from None
                if time.monotonic() > deadline:
                    raise GuestError("qemu does not listen") from None
                time.sleep(0.02)
            else:
                self._told = line
        # What is sent before the guest listens is lost.
        while "the guest listens" not in self.console():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise GuestError(f"the guest does not come up: {self.console()}")
            time.sleep(0.05)

    def _pack(self) -> None:
        root = self._directory / "root"
        for name in ("bin", "dev", "host", "modules", "proc", "sys"):
            (root / name).mkdir(parents=True)
        busybox = shutil.which("busybox")
        assert busybox is not None
        shutil.copy(busybox, root / "bin" / "busybox")
        shutil.copy(busybox, root / "bin" / "sh")
        shutil.copy(_INIT, root / "init")
        (root / "init").chmod(0o755)
        names = [f"{number}.ko" for number, _ in enumerate(self._kernel.modules)]
        for name, module in zip(names, self._kernel.modules, strict=True):
            (root / "modules" / name).write_bytes(code_of(module))
        (root / "modules" / "order").write_text("".join(f"{name}\n" for name in names))
        packed = f"find . | busybox cpio -o -H newc > {shlex.quote(str(self._initramfs))}"
        subprocess.run(packed, shell=True, cwd=root, capture_output=True, check=True)
        shutil.rmtree(root)


def run_agent(machine: Machine, config: Path) -> None:
    """Run the agent of a configuration in a guest, without waiting for it."""
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(_LIBRARY), "PYTHONDONTWRITEBYTECODE": "1"}
    agent = chrooted(f"{PETIOLE} run -c {shlex.quote(str(config))}", **given)
    machine.run(f"setsid {agent} < /dev/null >> {AGENT_LOG} 2>&1 & echo $! > /agent.pid")


def chrooted(command: str, **environment: str) -> str:
    """A command of the host's files, for a shell of the guest."""
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return f"env -i {given} chroot /host {command}"


def _processor() -> tuple[str, ...]:
    """Hardware help where it is whole: what only looks like KVM (pvm) boots no kernel that is not made for
    it."""
    whole = any(Path(f"/sys/module/kvm_{vendor}").exists() for vendor in ("amd", "intel"))
    return _HARDWARE if whole and Path("/dev/kvm").exists() else _EMULATED


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise GuestError(f"{' '.join(command)}: {done.stderr.strip()}")
