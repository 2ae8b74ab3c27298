"""Files that hold secrets: whether others may read them, and whether the agent may. Pure."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from agent.base.credentials import is_handed_over, named, others_may
from agent.cli.checks.finding import Finding, failure, ok, warning

GROUP: Final = "files"
_ROOT: Final = 0


class Secret(NamedTuple):
    """A file with a secret as it stands on disk: mode and owner, or the `error` in words; `what` it is."""

    what: str
    path: Path
    mode: int = 0
    owner: int = _ROOT
    error: str = ""


def judge(directory: Secret, secrets: Iterable[Secret]) -> Iterator[Finding]:
    """What to say of the state directory and of all secrets. The owner of the directory is taken for the
    agent's user."""
    found = [*_directory(directory), *(one for secret in secrets for one in _secret(directory, secret))]
    yield from found or [ok(GROUP, "secrets can be read by their owner only")]


def _directory(one: Secret) -> Iterator[Finding]:
    if one.error == os.strerror(errno.ENOENT):
        return  # the agent makes it when it is first started
    if one.error:
        yield warning(
            GROUP, f"{one.path} cannot be looked at ({one.error})", "run this as the agent's user, or as root"
        )
    elif one.mode & 0o022:
        yield failure(GROUP, f"others may write in {one.path} (mode {one.mode:04o})", f"chmod 700 {one.path}")


def _secret(directory: Secret, one: Secret) -> Iterator[Finding]:
    if one.error:
        yield failure(
            GROUP,
            f"{one.what} {named(one.path)} cannot be read ({one.error})",
            f"put the file there: {named(one.path)}",
        )
        return
    if others_may(one.path, one.mode):
        yield failure(
            GROUP,
            f"{one.what} {one.path} may be read by others (mode {one.mode:04o})",
            f"chmod 600 {one.path}",
        )
    if is_handed_over(one.path):
        return
    if not directory.error and one.owner != directory.owner and directory.owner != _ROOT:
        yield failure(
            GROUP,
            f"{one.what} {one.path} belongs to another user than {directory.path}, so the agent cannot read "
            "it",
            f"chown --reference={directory.path} {one.path}",
        )
