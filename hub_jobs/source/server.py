"""Describes the hub's address and where its secret is stored, with the jobs' options for both.

A `Server` travels in plans to executors and never contains a secret.
"""

from __future__ import annotations

import argparse
import base64
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from hub_jobs.source.protocol import Denied, WireError

DEFAULT_PORT: Final = 4222
INBOX_PREFIX: Final = "_INBOX_jobs"
_SECRET_LIMIT: Final = 64 * 1024


@dataclass(frozen=True)
class ServerAddress:
    """One server of the list."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        return f"{'tls' if self.tls else 'nats'}://{self.host}:{self.port}"


@dataclass(frozen=True)
class Server:
    """The hub's servers and the identity to use.

    At most one of `seed_file`, `creds_file`, `secret_env` and `user` (with `password_env`) is set. Raises
    ValueError for a wrong part.
    """

    url: str
    """`nats://host:port[,nats://host2:port]`, or `tls://`; tried in order."""
    seed_file: str | None = None
    """Path of an NKey seed, unreadable by others."""
    creds_file: str | None = None
    """Path of a `.creds` file (user JWT and seed), unreadable by others."""
    secret_env: str | None = None
    """Environment variable with a seed or `.creds` text."""
    user: str | None = None
    password_env: str | None = None
    """Environment variable with the password of `user`."""
    ca_file: str | None = None
    """Trusted authorities; default the system's."""
    tls_first: bool = False
    """Begin TLS before the server's first line (`handshake_first`)."""
    inbox_prefix: str = INBOX_PREFIX
    api_prefix: str = "$JS.API"
    """JetStream's API prefix: `$JS.API`, or `$JS.<domain>.API`."""

    def __post_init__(self) -> None:
        self.addresses()
        given = [self.seed_file, self.creds_file, self.secret_env, self.user]
        if sum(value is not None for value in given) > 1:
            raise ValueError("give one of seed_file, creds_file, secret_env and user, not several")
        if (self.user is None) != (self.password_env is None):
            raise ValueError("user and password_env belong together")

    def addresses(self) -> list[ServerAddress]:
        return [_address(part.strip()) for part in self.url.split(",")]

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS context, equal on all Pythons: 3.13 refuses certificates without authority key
        identifier by default.
        """
        context = ssl.create_default_context(cafile=self.ca_file)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context

    def identity(self, nonce: str) -> dict[str, str]:
        """Return the CONNECT fields that prove the identity for the server's challenge `nonce`.

        Raises Denied when the secret is missing or invalid.
        """
        if self.user is not None and self.password_env is not None:
            return {"user": self.user, "pass": _variable(self.password_env)}
        secret, where = self._secret()
        if not secret:
            return {}
        jwt, seed = _sections(secret)
        import nkeys  # with the cryptography that most runs need not load

        try:
            pair = nkeys.from_seed(bytearray(seed.encode()))
            signed = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
            public = pair.public_key.decode()
        except (nkeys.NkeysError, ValueError) as error:
            raise Denied(f"{where} holds no NKey seed that can be used") from error
        return {"jwt": jwt, "sig": signed} if jwt else {"nkey": public, "sig": signed}

    def _secret(self) -> tuple[str, str]:
        if self.secret_env is not None:
            return _variable(self.secret_env), f"the environment variable {self.secret_env}"
        path = self.seed_file or self.creds_file
        return (_file(Path(path)), path) if path else ("", "")


def add_server_options(parser: argparse.ArgumentParser, *, required: bool = True, why: str = "") -> None:
    """Add the options for hub address and key; `why` is the purpose shown in the help."""
    text = "nats://host:4222, several with commas between" + (f": {why}" if why else "")
    parser.add_argument("--server", required=required, help=text)
    secret = parser.add_mutually_exclusive_group()
    secret.add_argument("--seed-file", help="path of the NKey seed of the jobs")
    secret.add_argument("--creds-file", help="path of a .creds file")
    secret.add_argument("--secret-env", help="name of an environment variable with a seed or a .creds file")
    parser.add_argument("--ca-file", help="the authorities to trust instead of the system's")


def server_of(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Server | None:
    """Return the given server, None without one. Exits for a wrong option."""
    keys = {name: getattr(given, name) for name in ("seed_file", "creds_file", "secret_env", "ca_file")}
    if given.server is None:
        if any(value is not None for value in keys.values()):
            parser.error("a key was given and no --server to show it to")
        return None
    try:
        return Server(given.server, **keys)
    except ValueError as error:
        parser.error(str(error))


def unknown_key(server: Server) -> Denied:
    """Return the error for a key that the hub does not know."""
    key = server.seed_file or server.creds_file or server.secret_env or "none was given"
    return Denied(f"the hub does not know this key ({key}); it is keys/jobs.nk of the hub's agent")


def _address(text: str) -> ServerAddress:
    parts = urlsplit(text if "://" in text else f"nats://{text}")
    if "@" in parts.netloc:
        raise ValueError(
            "a server's address must not hold a user or password: name a file or a variable instead"
        )
    if parts.scheme not in ("nats", "tls") or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError(
            f"{text!r} is no server's address; it looks like nats://host:4222 or tls://host:4222"
        )
    return ServerAddress(parts.hostname, parts.port or DEFAULT_PORT, parts.scheme == "tls")


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise Denied(f"the environment variable {name}, which should hold the secret, is not set here")
    return value


def _file(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        if mode & 0o007:
            raise Denied(f"{path} can be read by everybody (mode {mode & 0o777:o}): chmod 600 it")
        with path.open(encoding="ascii") as opened:
            return opened.read(_SECRET_LIMIT)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Denied(f"the secret {path} can't be read: {reason}") from error


def _sections(secret: str) -> tuple[str, str]:
    """Return JWT (or "") and seed from a seed or `.creds` text."""
    lines = [line.strip() for line in secret.splitlines()]
    if not any(line.startswith("-----BEGIN") for line in lines):
        return "", secret.strip()
    found = {"JWT": "", "SEED": ""}
    for label, value in pairwise(lines):
        if label.startswith("-----BEGIN"):
            found["JWT" if "JWT" in label else "SEED"] = value
    return found["JWT"], found["SEED"]


def connect_options(server: Server, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the CONNECT options for a server's INFO. Raises Denied, and WireError for a too old server."""
    if not info.get("headers"):
        raise WireError("the server knows no message headers: it is older than 2.2")
    fixed = {"verbose": False, "pedantic": False, "protocol": 1, "headers": True, "no_responders": True}
    client = {"name": "petiole-jobs", "lang": "python-blocking", "version": "1"}
    return {**fixed, **client, **server.identity(str(info.get("nonce", "")))}
