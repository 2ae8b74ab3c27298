"""Files that only their owner may read: written whole or not at all. Knows nothing of what stands in them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def private_directory(path: Path) -> Path:
    """Make a directory and its missing parents with mode 0700; one that is there is left as it is."""
    for missing in reversed([path, *path.parents]):
        if not missing.exists():
            missing.mkdir(mode=0o700, exist_ok=True)
    return path


def write_private(path: Path, text: str) -> None:
    """Put a file of mode 0600 with this text in place; who reads sees the old text or the new, never half."""
    written = _written_aside(path, text)
    try:
        written.rename(path)
    except OSError:
        written.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def create_private(path: Path, text: str) -> None:
    """Like `write_private`, but raises `FileExistsError` instead of replacing."""
    written = _written_aside(path, text)
    try:
        path.hardlink_to(written)
    finally:
        written.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _written_aside(path: Path, text: str) -> Path:
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    return aside


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
