"""One agent for one state directory: a lock on a file in it, which holds the agent's process id."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_LOCK_BYTES = 16

_LOCK = "agent.lock"


class InUseError(Exception):
    """The state directory is in use by another agent or cannot be written; the text says why."""


def running(state_dir: Path) -> int | None:
    """The process id of the agent that uses a state directory, None if there is none. Raises `OSError`."""
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


@contextlib.contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Hold the lock of a state directory. Raises `InUseError`."""
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(state_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InUseError(f"state_dir cannot be written: {error}") from None
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
