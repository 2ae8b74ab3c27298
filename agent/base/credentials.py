"""Secrets: those that the supervisor hands over (LoadCredential= of systemd), in a directory that it names in
the environment and that nobody but the agent's user may enter; and how a message names what may hold one.
Reads none of them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from agent.base.files import is_there

_VARIABLE: Final = "CREDENTIALS_DIRECTORY"
_LOGIN: Final = re.compile(r"(//|^|(?<=[\"' ]))[^/\s\"']*@")
_SHIPPED: Final = "/run/credentials/petiole.service"


def place(text: str) -> Path:
    """A path as a configuration has it: one that begins with `$CREDENTIALS_DIRECTORY/` is a secret that is
    handed over. A command that is run by hand beside the agent finds it where the shipped unit has it."""
    name = text.removeprefix(f"${_VARIABLE}/")
    return Path(text) if name == text else _directory() / name


def named(path: Path) -> str:
    """The path of a secret's file, for a message. What is no path, as far as one can see, may be the secret
    itself, written where its file was to be named: it is not shown."""
    text = str(path)
    if text.startswith(("/", "./", "../")) or is_there(path) or ("/" in text and is_there(path.parent)):
        return text
    return "(not shown, for it may be the secret itself: write the path of its file there)"


def without_password(text: str) -> str:
    """A text without the users and passwords of the addresses in it."""
    return _LOGIN.sub(r"\1", text)


def is_handed_over(path: Path) -> bool:
    """Whether a file is one of these."""
    return path.is_relative_to(_directory())


def others_may(path: Path, mode: int) -> bool:
    """Whether a secret of this mode is open to others than its owner. systemd may let the agent's user in by
    an access list, which shows as a right of the group (systemd.exec(5))."""
    return bool(mode & (0o007 if is_handed_over(path) else 0o077))


def _directory() -> Path:
    return Path(os.environ.get(_VARIABLE) or _SHIPPED)
