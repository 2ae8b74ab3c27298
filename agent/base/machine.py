"""Identifies the machine, locks the state directory, and notifies systemd."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct

_MACHINE_ID = Path("/etc/machine-id")


def machine_id(known: str | None = None) -> str:
    """Return a keyed hash of the machine-id (machine-id(5)), else the `known` or a random id."""
    text = _MACHINE_ID.read_text().strip() if _MACHINE_ID.exists() else ""
    if not text:
        return known or uuid.uuid4().hex[:16]
    return hashlib.blake2b(text.encode(), key=b"petiole", digest_size=8).hexdigest()


_LOCK_BYTES = 16

_LOCK = "agent.lock"


class InUseError(Exception):
    """The state directory is in use or unwritable; the text has the reason."""


def running(state_dir: Path) -> int | None:
    """Return the process id of the agent using a state directory, or None. Raises `OSError`."""
    try:
        descriptor = os.open(state_dir / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else None
    else:
        return None
    finally:
        os.close(descriptor)


def unwritable(state_dir: Path, error: OSError) -> str:
    """Return why a state directory is unwritable, with remedy."""
    return f"state_dir {state_dir} cannot be written ({error.strerror}); make it for the agent's user"


@contextlib.contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Lock a state directory for the scope. Raises `InUseError`."""
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(state_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InUseError(unwritable(state_dir, error)) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(_in_use(state_dir)) from None
        # Overwrite instead of truncating: a full disk might not grant the room again.
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, f"{os.getpid()}\n".ljust(_LOCK_BYTES).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _in_use(state_dir: Path) -> str:
    pid = running(state_dir)
    process = "" if pid is None else f", as process {pid}"
    return f"petiole already runs here{process}, with {state_dir}; stop it, or set another state_dir"


_LONGEST: Final = 400
"""Longest status; `systemctl status` shows one line."""

log = structlog.get_logger("agent")


class Notifier(Struct, frozen=True):
    """Sends notifications to the supervisor."""

    address: str | bytes
    """Its socket's address."""
    watchdog: float | None = None
    """Seconds without `alive` before it kills the process, None without watchdog."""

    def ready(self) -> None:
        """Report the process ready or reloaded."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Report a reload, until `ready`."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}")

    def stopping(self, seconds: float) -> None:
        """Report the end within so many seconds, beyond the unit's limit."""
        self._send(
            "STOPPING=1",
            "STATUS=what is in flight is stored, then it ends",
            f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}",
        )

    def status(self, text: str) -> None:
        """Report the state in one sentence."""
        self._send(f"STATUS={_line(text)}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as notify:
                notify.connect(self.address)
                notify.send("\n".join(lines).encode())
        except OSError as error:
            log.debug("sd_notify failed", error=str(error))


def notifier(environment: Mapping[str, str]) -> Notifier | None:
    """Return the notifier by the environment, None without supervisor."""
    address = environment.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@") or address in ("/", "@"):
        return None
    # A socket without a path: the kernel's names of these begin with a zero byte.
    where: str | bytes = b"\0" + os.fsencode(address[1:]) if address[0] == "@" else address
    return Notifier(where, _watchdog(environment))


def _watchdog(environment: Mapping[str, str]) -> float | None:
    whose, microseconds = environment.get("WATCHDOG_PID"), environment.get("WATCHDOG_USEC", "")
    if (whose is not None and whose != str(os.getpid())) or not microseconds.isdecimal():
        return None
    return int(microseconds) / 1e6 or None


def _line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]
