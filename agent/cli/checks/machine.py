"""Checks files with secrets, certificates, disk and clock of this machine. Changes nothing."""

from __future__ import annotations

import errno
import os
import ssl
import stat
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from agent.base.certificates import validity, validity_of_file
from agent.base.clock import ClockReader
from agent.base.files import is_handed_over, is_there, named, open_regular, others_may, room
from agent.cli.checks import Cause, Finding, Group, certificates
from agent.cli.checks.server import judge_room, kept
from agent.config import Config
from agent.config.certificates import NamedCertificate, named_certificates, named_files, tables
from agent.config.checks import bytes_needed
from agent.config.keys import SeedError, password_in
from agent.leaf.inputs.file import FileOptions
from agent.leaf.inputs.file.listing import matches
from agent.server.setup import server_directory, store_directory

FILES: Final = Group("files")
_ROOT: Final = 0
_OWNER_MAKES: Final = stat.S_IWUSR | stat.S_IXUSR
_SECRET_OPTIONS: Final = {"token_file": "token", "password_file": "password", "tls_key": "key", "key": "key"}
_MOST_FILES: Final = 50_000


def look(config: Config, now: datetime) -> list[Finding]:
    """Run checks without server at time `now`."""
    findings = list(judge_secrets(_seen("directory", config.state_dir), _secrets(config)))
    findings += [*_keys(config), *_state_directory(config)]
    findings += [_certificate(named, now) for named in named_certificates(config)]
    findings += [finding for name, pair in _pairs(config) for finding in _pair(name, *pair)]
    if config.nats.cluster.on:
        findings += certificates.look_at_cluster(config.nats.cluster)
    findings += [*_passwords(config), *_absent(config)]
    places = {"the agent's state": config.state_dir}
    if config.nats.server == "embedded":
        findings.append(_disk(config))
        places["the server's store"] = store_directory(config)
    return [*findings, *kept(places)]


def look_at_clock(now: datetime, ahead: tuple[float, float] | None) -> list[Finding]:
    """Check the clock, and its lead over the hub's if known."""
    return list(certificates.judge_clock(now.timestamp(), ClockReader().look().clock.synchronised, ahead))


def certificate(name: str, der: bytes, now: datetime) -> Finding:
    """Judge a certificate shown by a server."""
    try:
        return certificates.judge(name, validity(der), now)
    except ValueError as error:
        return certificates.GROUP.failure(f"{name} {error}", "give that server another certificate")


def right_now() -> datetime:
    return datetime.now(UTC)


def _secrets(config: Config) -> Iterator[Secret]:
    for owner, path, name in named_files(config, _SECRET_OPTIONS):
        yield _seen(f"{_SECRET_OPTIONS[name]} of {owner}", path)
    seeds = [
        getattr(config.nats, name)
        for name in msgspec.structs.asdict(config.nats)
        if name.endswith("seed_file")
    ]
    made = _listed(config.state_dir / "keys", "*.nk")
    included = _listed(server_directory(config), "*.conf") if config.nats.server == "embedded" else []
    for path in [*(path for path in seeds if path is not None), *made]:
        yield _seen("key", path)
    for path in included:
        yield _seen("server configuration", path)


def _listed(directory: Path, pattern: str) -> list[Path]:
    """Return a directory's files, empty without permission."""
    try:
        return sorted(directory.glob(pattern))
    except OSError:
        return []


def _seen(what: str, path: Path) -> Secret:
    try:
        status = path.stat()
        if not os.access(path, os.R_OK):
            return Secret(what, path, error="permission denied")
    except OSError as error:
        return Secret(what, path, error=error.strerror or str(error))
    return Secret(what, path, status.st_mode & 0o7777, status.st_uid)


def _certificate(named: NamedCertificate, now: datetime) -> Finding:
    name, path = named.name, named.path
    try:
        valid = validity_of_file(path, now, authorities=named.authorities)
    except (OSError, ValueError) as error:
        why = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else error
        finding = certificates.GROUP.failure(f"{name}: {path} {why}", "name a file in PEM")
        return finding.after(Cause.USER)
    return certificates.judge(f"{name} ({path})", valid, now)


def _pairs(config: Config) -> Iterator[tuple[str, tuple[Path, Path]]]:
    for owner, table in tables(config):
        cert, key = getattr(table, "tls_cert", None), getattr(table, "tls_key", None)
        if isinstance(cert, Path) and isinstance(key, Path) and is_there(cert) and is_there(key):
            yield owner, (cert, key)


def _pair(owner: str, cert: Path, key: Path) -> Iterator[Finding]:
    try:
        # Without the function OpenSSL would ask at the terminal for the password of the key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ValueError) as error:
        reason = str(error)
        if isinstance(error, ssl.SSLError):  # for a file that is no PEM it has no reason
            reason = (error.reason or "").replace("_", " ").lower() or "one of them is no PEM"
        yield certificates.GROUP.failure(
            f"certificate and key of {owner} cannot be used together: {reason}",
            f"make both again, or name the key of {cert}",
        )


def _passwords(config: Config) -> Iterator[Finding]:
    """Yield invalid password files."""
    for user in config.nats.mqtt.users:
        try:
            with open_regular(user.password_file) as file:
                password_in(file.read(), user.password_file)
        except SeedError as error:
            yield FILES.failure(str(error), "write the password there, or its bcrypt hash")
        except OSError:
            continue


def _absent(config: Config) -> Iterator[Finding]:
    """Yield inputs' paths without file; the agent waits silently."""
    for options in config.input:
        if isinstance(options, FileOptions):
            paths = [options.path] if isinstance(options.path, str) else options.path
            for path in paths:
                if "\0" not in path and not matches(str(Path(path).absolute())):
                    yield FILES.warning(
                        f"no file is at {path}, which input {options.name} reads",
                        "correct path, unless the file comes later: it is read as soon as it is there",
                    )


def _disk(config: Config) -> Finding:
    store = store_directory(config)
    limit, left = int(config.nats.max_file_store), room(_existing(store))
    return judge_room(limit, _taken(store), left, "nats.max_file_store", bytes_needed(config))


def _existing(path: Path) -> Path:
    """Return the path or its nearest existing parent."""
    return next((directory for directory in (path, *path.parents) if is_there(directory)), Path("/"))


def _keys(config: Config) -> Iterator[Finding]:
    """Check readability of the agent's keys."""
    keys = config.state_dir / "keys"
    if is_there(keys) and os.access(config.state_dir, os.R_OK) and not os.access(keys, os.R_OK | os.X_OK):
        yield from _directory(Secret("directory", keys, error="permission denied"))


def _state_directory(config: Config) -> Iterator[Finding]:
    """Check that the directory's owner may write it; root always may."""
    place = _existing(config.state_dir)
    try:
        status, system = place.stat(), os.statvfs(place)
    except OSError:
        return  # a finding of the secrets
    if system.f_flag & os.ST_RDONLY:
        remedy = "mount it read-write, or set state_dir to another place"
        yield FILES.failure(f"{place} is on a file system that is mounted read-only", remedy)
    elif not stat.S_ISDIR(status.st_mode):
        yield FILES.failure(f"{place}, where the agent's state belongs, is no directory", "correct state_dir")
    elif place == config.state_dir and (status.st_mode & _OWNER_MAKES) != _OWNER_MAKES:
        sentence = (
            f"the agent cannot write in {place}: its owner may not (mode {status.st_mode & 0o7777:04o})"
        )
        yield FILES.failure(sentence, f"chmod 700 {place}")
    elif not os.access(place, os.W_OK | os.X_OK) and _is_owner_or_root(status.st_uid):
        yield FILES.failure(
            f"the agent cannot write in {place} (permission denied)",
            f"see its owner, its mode and its flags: ls -ld {place}; lsattr -d {place}",
        )
    left = room(place)
    if left is not None and left.few_files and config.nats.server != "embedded":
        yield judge_room(0, 0, left, "")


def _is_owner_or_root(owner: int) -> bool:
    return os.geteuid() in (_ROOT, owner)


def _taken(directory: Path) -> int:
    """Return bytes used by a directory, as far as readable."""
    total = 0
    for number, path in enumerate(_listed(directory, "**/*")):
        if number >= _MOST_FILES:
            break
        try:
            status = path.lstat()
        except OSError:
            continue  # gone meanwhile
        total += status.st_blocks * 512
    return total


class Secret(NamedTuple):
    """A secret file, or a directory of them."""

    what: str
    """Its content in words."""
    path: Path
    mode: int = 0
    owner: int = _ROOT
    error: str = ""
    """Why it is unreadable."""


def judge_secrets(directory: Secret, secrets: Iterable[Secret]) -> Iterator[Finding]:
    """Judge secrets; the state directory's owner counts as the agent's user."""
    findings = [
        *_directory(directory),
        *(finding for secret in secrets for finding in _secret(directory, secret)),
    ]
    yield from findings or [FILES.ok("secrets can be read by their owner only")]


def _directory(secret: Secret) -> Iterator[Finding]:
    if secret.error == os.strerror(errno.ENOENT):
        return  # the agent makes it when it is first started
    if secret.error:
        yield FILES.failure(
            f"{secret.path} cannot be looked at ({secret.error}), so most of this machine is not checked",
            "run this as the agent's user, or as root",
        ).causing(Cause.USER)
    elif secret.mode & 0o022:
        yield FILES.failure(
            f"others may write in {secret.path} (mode {secret.mode:04o})", f"chmod 700 {secret.path}"
        )


def _secret(directory: Secret, secret: Secret) -> Iterator[Finding]:
    if secret.error:
        yield FILES.failure(
            f"{secret.what} {named(secret.path)} cannot be read ({secret.error})",
            "write the path of its file there, and put that file in place",
        ).after(Cause.USER)
        return
    if others_may(secret.path, secret.mode):
        yield FILES.failure(
            f"{secret.what} {secret.path} may be read by others (mode {secret.mode:04o})",
            f"chmod 600 {secret.path}",
        )
    if is_handed_over(secret.path):
        return
    if not directory.error and secret.owner != directory.owner and directory.owner != _ROOT:
        yield FILES.failure(
            f"{secret.what} {secret.path} belongs to another user than {directory.path}, "
            "so the agent cannot read it",
            f"chown --reference={directory.path} {secret.path}",
        )
