"""Secrets in files of mode 0600: the NKey seeds of users and the passwords of MQTT users. A secret goes from
its file only into another of mode 0600, which the server's configuration includes; nothing here logs one or
names one in an error."""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path
from typing import Final

import nkeys

from agent.base.files import create_private, is_there, named, open_regular, others_may
from agent.base.nats_server import quoted
from agent.base.supervisor import ConditionError

_PASSWORD_BYTES: Final = 256

_SEED = re.compile(r"(?<![A-Z2-7])S[A-Z2-7]{40}")
_SEED_BYTES = 1024
_PUBLIC_KEY = re.compile(r"U[A-Z2-7]{55}\Z")


class SeedError(ConditionError):
    """A seed file cannot be used; the text says which one and what to do."""


def make_key(path: Path) -> str:
    """Make a key pair of a user, write its seed and return the public key.

    Raises `FileExistsError` when the file is there: a key in use is never written over. A key that root makes
    belongs to the owner of the directory, such as the agent's user.
    """
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    create_private(path, seed)
    return public_key(path)


def renew_key(path: Path) -> str:
    """Make a key pair in place of the one that is there, whose seed is kept beside it as `….old`, and return
    the public key. Raises `OSError`."""
    old = path.with_name(f"{path.name}.old")
    if path.exists():
        path.replace(old)
    return make_key(path)


def ensure_key(path: Path) -> str:
    """The public key of a seed file, which is made when it is not there. Raises `SeedError`."""
    if not is_there(path):
        try:
            return make_key(path)
        except FileExistsError:
            pass  # made by another process since the look
    return public_key(path)


def public_key(path: Path) -> str:
    """The public key of a seed file. Raises `SeedError`."""
    return _read(path)[1]


def is_public_key(text: str) -> bool:
    """Whether this is the public key of a user, its checksum (the last two bytes) included."""
    if _PUBLIC_KEY.match(text) is None:
        return False
    raw = base64.b32decode(text)
    return bool(nkeys.crc16(raw[:-2]).to_bytes(2, "little") == raw[-2:])


def is_seed(text: str) -> bool:
    """Whether this looks like a seed, which is not to be shown."""
    return _SEED.search(text) is not None


def seed_line(name: str, key_file: Path) -> str:
    """A line of a configuration that holds a seed, for a file of mode 0600: nats-server takes the seed itself
    as the `nkey` of a remote, not the path of a file. Raises `SeedError`."""
    return f'{name}: "{_read(key_file)[0]}"\n'


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
    return password_in(_secret("password", path, _PASSWORD_BYTES + 2), path)


def password_in(line: bytes, path: Path) -> str:
    """The password in what such a file holds. Raises `SeedError`."""
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    found = text.decode(errors="replace")
    if not 1 <= len(text) <= _PASSWORD_BYTES or not found.isprintable() or "\ufffd" in found:
        raise SeedError(
            f"password file {path} does not hold one line of 1 to {_PASSWORD_BYTES} bytes that can be printed"
        )
    return found


def _secret(kind: str, path: Path, most: int) -> bytes:
    """What is in a file that only its owner may read, at most so many bytes."""
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read(most)
    except OSError as error:
        raise SeedError(
            f"{kind} file {named(path)} cannot be read ({error.strerror}); put it there"
        ) from None
    if others_may(path, mode):
        raise SeedError(f"{kind} file {path} can be read by others; run: chmod 600 {path}")
    return secret


def _read(path: Path) -> tuple[str, str]:
    seed = _secret("seed", path, _SEED_BYTES).strip()
    try:
        public = bytes(nkeys.from_seed(seed).public_key).decode()
    except (nkeys.NkeysError, ValueError):
        public = ""
    if not public.startswith("U"):
        raise SeedError(
            f"seed file {path} does not hold the seed of a user's NKey (it begins with SU); restore that file"
        )
    return seed.decode(), public
