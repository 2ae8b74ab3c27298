"""Handles NKey seeds and MQTT passwords in files of mode 0600, never in logs or errors."""

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
from agent.contract.receipt import Signer

_PASSWORD_BYTES: Final = 256

_SEED = re.compile(r"(?<![A-Z2-7])S[A-Z2-7]{40}")
_SEED_BYTES = 1024
_PUBLIC_KEY = re.compile(r"U[A-Z2-7]{55}\Z")


class SeedError(ConditionError):
    """A seed file is unusable; the text names it and the remedy."""


def make_key(path: Path) -> str:
    """Create a user key and return its public half.

    Raises `FileExistsError`; keys are never overwritten. Root's key belongs to the directory's owner.
    """
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    create_private(path, seed)
    return public_key(path)


def renew_key(path: Path) -> str:
    """Replace a key, keeping the old seed as `….old`; returns the public half. Raises `OSError`."""
    old = path.with_name(f"{path.name}.old")
    if path.exists():
        path.replace(old)
    return make_key(path)


def ensure_key(path: Path) -> str:
    """Return a seed's public key, making it if missing. Raises `SeedError`."""
    if not is_there(path):
        try:
            return make_key(path)
        except FileExistsError:
            pass  # made by another process since the look
    return public_key(path)


def public_key(path: Path) -> str:
    """Return a seed's public key. Raises `SeedError`."""
    return _read(path)[1]


def receipt_signer(path: Path) -> tuple[str, Signer]:
    """Return a seed's public key and a function that signs with it. Raises `SeedError`."""
    seed, public = _read(path)
    return public, nkeys.from_seed(seed.encode()).sign


def is_public_key(text: str) -> bool:
    """Tell whether this is a user's public key with valid checksum."""
    if _PUBLIC_KEY.match(text) is None:
        return False
    raw = base64.b32decode(text)
    return bool(nkeys.crc16(raw[:-2]).to_bytes(2, "little") == raw[-2:])


def is_seed(text: str) -> bool:
    """Tell whether this looks like a seed."""
    return _SEED.search(text) is not None


def seed_line(name: str, key_file: Path) -> str:
    """Return a configuration line with the seed, for a file of mode 0600. Raises `SeedError`.

    nats-server takes the seed itself as a remote's `nkey`.
    """
    return f'{name}: "{_read(key_file)[0]}"\n'


def password_line(password_file: Path) -> str:
    """Return a configuration line with the password or bcrypt hash, for a file of mode 0600. Raises
    `SeedError`.
    """
    return f"password: {quoted(read_password(password_file))}\n"


def check_password(password_file: Path) -> str | None:
    """Return a password file's fault, or None."""
    try:
        read_password(password_file)
    except SeedError as error:
        return str(error)
    return None


def read_password(path: Path) -> str:
    """Read a one-line password file. Raises `SeedError`."""
    return password_in(_secret("password", path, _PASSWORD_BYTES + 2), path)


def password_in(line: bytes, path: Path) -> str:
    """Return the password in a file's content. Raises `SeedError`."""
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    found = text.decode(errors="replace")
    if not 1 <= len(text) <= _PASSWORD_BYTES or not found.isprintable() or "\ufffd" in found:
        raise SeedError(
            f"password file {path} does not hold one line of 1 to {_PASSWORD_BYTES} bytes that can be printed"
        )
    return found


def _secret(kind: str, path: Path, most: int) -> bytes:
    """Read at most `most` bytes of an owner-only file."""
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
