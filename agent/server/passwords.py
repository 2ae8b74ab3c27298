"""Passwords of MQTT users: read from files of mode 0600, written into files of mode 0600 that the server's
configuration includes. Nothing here returns one, logs one or names one in an error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from agent.files import write_private
from agent.server.keys import SeedError
from agent.server.quoting import RenderError, quoted

_MOST: Final = 256


def write_password_include(password_file: Path, include_file: Path) -> None:
    """Write what the table of a user includes. A bcrypt hash is taken as such by nats-server. Raises
    `SeedError`."""
    write_private(include_file, f"password: {_read(password_file)}\n".encode())


def check_password(password_file: Path) -> str | None:
    """What is wrong with a password file, None when nothing is."""
    try:
        _read(password_file)
    except SeedError as error:
        return str(error)
    return None


def _read(path: Path) -> str:
    """The first line, as it stands in a configuration."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            line = file.read(_MOST + 2)
    except OSError as error:
        raise SeedError(f"password file {path} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise SeedError(f"password file {path} can be read by others; take that away with: chmod 600 {path}")
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    try:
        found = quoted(text.decode())
    except (UnicodeDecodeError, RenderError):
        found = ""
    if not 1 <= len(text) <= _MOST or not found:
        raise SeedError(
            f"password file {path} does not hold one line of 1 to {_MOST} bytes that can be printed"
        )
    return found
