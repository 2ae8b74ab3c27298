"""Passwords of MQTT users: read from files of mode 0600, written into files of mode 0600 that the server's
configuration includes. Nothing here logs one or names one in an error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from agent.base.credentials import named, others_may
from agent.base.files import open_regular
from agent.base.nats_conf_quoting import quoted
from agent.config.keys import SeedError

_MOST: Final = 256


def password_line(password_file: Path) -> str:
    """What the table of a user includes, for a file of mode 0600. A bcrypt hash is taken as such by
    nats-server. Raises `SeedError`."""
    return f"password: {quoted(read_password(password_file))}\n"


def check_password(password_file: Path) -> str | None:
    """What is wrong with a password file, None when nothing is."""
    try:
        read_password(password_file)
    except SeedError as error:
        return str(error)
    return None


def read_password(path: Path) -> str:
    """The one line of a password file. Raises `SeedError`."""
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            line = file.read(_MOST + 2)
    except OSError as error:
        raise SeedError(f"password file {named(path)} cannot be read: {error.strerror}") from None
    if others_may(path, mode):
        raise SeedError(f"password file {path} can be read by others; take that away with: chmod 600 {path}")
    return password_in(line, path)


def password_in(line: bytes, path: Path) -> str:
    """The password in what such a file holds. Raises `SeedError`."""
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    found = text.decode(errors="replace")
    if not 1 <= len(text) <= _MOST or not found.isprintable() or "\ufffd" in found:
        raise SeedError(
            f"password file {path} does not hold one line of 1 to {_MOST} bytes that can be printed"
        )
    return found
