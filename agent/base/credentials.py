"""Paths of secrets: where systemd passes them (LoadCredential=), which modes are safe, and how a message
names a path that may be the secret itself. Reads no secret."""

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
    """The path of a configured secret. One that begins with `$CREDENTIALS_DIRECTORY/` is passed by systemd; a
    command run by hand finds it where the shipped unit has it."""
    name = text.removeprefix(f"${_VARIABLE}/")
    return Path(text) if name == text else _directory() / name


def named(path: Path) -> str:
    """The path of a secret's file, for a message. Text that does not look like a path may be the secret
    itself, written where its file belongs: it is not shown."""
    text = str(path)
    if text.startswith(("/", "./", "../")) or is_there(path) or ("/" in text and is_there(path.parent)):
        return text
    return "(not shown, for it may be the secret itself: write the path of its file there)"


def without_password(text: str) -> str:
    """A text without the logins of the addresses in it."""
    return _LOGIN.sub(r"\1", text)


def is_handed_over(path: Path) -> bool:
    """Whether systemd passes this file."""
    return path.is_relative_to(_directory())


def others_may(path: Path, mode: int) -> bool:
    """Whether a secret of this mode is open to others than its owner. systemd may let the agent's user in by
    an access list, which shows as a right of the group (systemd.exec(5))."""
    return bool(mode & (0o007 if is_handed_over(path) else 0o077))


def _directory() -> Path:
    return Path(os.environ.get(_VARIABLE) or _SHIPPED)
