"""Manages an embedded server's directory: lock, configuration, log, and checks of a hub's store."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from agent.base.files import open_regular, private_directory, write_private
from agent.base.nats_server import ServerError, ask
from agent.base.wait import paced
from agent.config.keys import password_line, read_password, seed_line
from agent.contract import COMMANDS, FLEET_BUCKET, cell_account, cell_of
from agent.server.render import LINK_INCLUDE, cluster_include, pieces
from agent.server.values import AccountUser, HubConfig, LeafConfig, ServerConfig

_READ_AT_MOST = 256 * 1024
_CHECK_SECONDS = 120.0
"""Timeout of nats-server's check; 4,000 leaves in tenants took 70 s."""


class Workspace:
    """A directory with one writer."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.configuration = directory / "nats-server.conf"
        self.pid = directory / "nats-server.pid"
        self.log = directory / "nats-server.log"
        self.output = directory / "nats-server.out"
        self._lock: int | None = None
        self._applied = directory / "applied"
        self._drafted = self.configuration.with_suffix(".draft")

    def lock(self) -> None:
        """Lock the directory. Raises `ServerError`."""
        if self._lock is not None:
            return
        private_directory(self.directory)
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ServerError(
                f"another process looks after the server in {self.directory}; stop that one, or use another"
                " state directory"
            ) from None
        self._lock = lock

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def write(self, config: ServerConfig, binary: Path) -> str:
        """Write a checked configuration and return its digest; needs no disk space if unchanged.

        Raises `ServerError` or `RenderError`, keeping the old one.
        """
        rendered = await paced(pieces(config))
        digest, is_new = await asyncio.to_thread(self._draft, config, rendered)
        if not is_new:
            return digest
        code, said = await ask(binary, "-t", "-c", str(self._drafted), seconds=_CHECK_SECONDS)
        if code != 0:
            raise ServerError(f"nats-server does not take its configuration: {said.strip()[:500]}")
        self._drafted.rename(self.configuration)
        return digest

    def applied(self) -> tuple[int, str] | None:
        """Return the noted process and digest."""
        try:
            pid, digest = self._applied.read_text().split()
            return int(pid), digest
        except (OSError, ValueError):
            return None

    def note_applied(self, pid: int, digest: str) -> None:
        """Note a process's digest; without the note the next agent reloads."""
        if self.applied() != (pid, digest):
            with suppress(OSError):
                write_private(self._applied, f"{pid} {digest}\n".encode())

    def log_reader(self) -> Callable[[], str]:
        """Return a function for the newest log since now."""
        start = self.log.stat().st_size if self.log.exists() else 0

        def read() -> str:
            try:
                with self.log.open("rb") as file:
                    size = file.seek(0, 2)
                    file.seek(max(start if size >= start else 0, size - _READ_AT_MOST))
                    return file.read(_READ_AT_MOST).decode(errors="replace")
            except FileNotFoundError:
                return ""

        return read

    def complaint(self, logged: str) -> str:
        """Return why a start failed, from log or output."""
        lines = logged.splitlines()
        fatal = [line for line in lines if "[FTL]" in line or "[ERR]" in line]
        printed = self.output.read_text(errors="replace").splitlines() if self.output.exists() else []
        last = fatal or printed or lines
        return last[-1][:500] if last else "it said nothing"

    def _draft(self, config: ServerConfig, rendered: Sequence[str]) -> tuple[str, bool]:
        """Write a draft with includes unless unchanged; returns the digest, and whether written. Blocks."""
        files = self._files("".join(rendered).encode(), config)
        digest, applied = self._digest(config, files), self.applied()
        if applied is not None and applied[1] == digest and all(map(_holds, files, files.values())):
            return digest, False
        for path, data in files.items():
            write_private(self._drafted if path == self.configuration else path, data)
        return digest, True

    def _files(self, rendered: bytes, config: ServerConfig) -> dict[Path, bytes]:
        files = {self.configuration: rendered}
        if isinstance(config, LeafConfig):
            files[self.directory / LINK_INCLUDE] = seed_line("nkey", config.link_key_file).encode()
            files |= _user_links(self.directory, config.users)
            for name, user in () if config.mqtt is None else config.mqtt.includes():
                files[self.directory / name] = password_line(user.password_file).encode()
        elif config.cluster is not None and config.cluster.password_file is not None:
            password = read_password(config.cluster.password_file)
            text = cluster_include(password, config.cluster.routes)
            files[self.directory / config.cluster.include] = text.encode()
        return files

    def _digest(self, config: ServerConfig, files: Mapping[Path, bytes]) -> str:
        text, *included = files.values()
        digest = hashlib.sha256(text)
        for path in _named_files(config):
            with suppress(OSError), open_regular(path) as file:  # nats-server says what is wrong with it
                digest.update(file.read())
        for data in included:
            digest.update(data)
        return digest.hexdigest()


def _named_files(config: ServerConfig) -> list[Path]:
    remote = config.remote if isinstance(config, LeafConfig) else {}
    cluster = config.cluster if isinstance(config, HubConfig) else None
    named = [] if cluster is None or cluster.tls is None else list(cluster.tls)
    if config.extra or remote:
        from agent.config.server_overlay import named_files  # not held in memory where nothing is added

        named += [*named_files(config.extra), *named_files(remote)]
    return named


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def _user_links(directory: Path, users: Sequence[AccountUser]) -> dict[Path, bytes]:
    linked = [(user.name, user.link_key_file) for user in users if user.link_key_file is not None]
    if not linked:
        return {}
    from agent.server.accounts import link_include  # not held in memory where no account is linked

    return {directory / link_include(name): seed_line("nkey", key).encode() for name, key in linked}


def store_problem(config: HubConfig) -> str | None:
    """Return why a hub's server must not start with its store, or None; None if encrypted.

    The store's number of replicas must match. A single server would drop the record of replicated streams but
    keep their messages, so sources would store all again
    (`findings/nats-damaged-meta-file-gives-old-messages-to-a-new-stream.sh`). A clustered one would add
    messages that others lack.
    """
    several = config.cluster is not None
    accounts = config.store_dir / "jetstream"
    for name in (*config.aggregates, COMMANDS, f"KV_{FLEET_BUCKET}"):
        replicas = _replicas(accounts / cell_account(cell_of(name)) / "streams" / name / "meta.inf")
        if replicas is not None and (replicas > 1) is not several:
            was, is_now = ("one machine", "several") if several else ("several machines", "one")
            return (
                f"{config.store_dir} is the store of a hub of {was}, and this hub is one of {is_now}: stop "
                "the agent and move the store away; the leaves send again what they hold "
                "(docs/hub-cluster.md)"
            )
    return None


def _replicas(meta: Path) -> int | None:
    try:
        return int(json.loads(meta.read_bytes())["num_replicas"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
