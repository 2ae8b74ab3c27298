"""Lists certificate files that a configuration names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from agent.config import Config

_OPTIONS: Final = ("tls_cert", "tls_ca", "cert", "server_cert")
_SERVER_OPTIONS: Final = ("cert_file", "ca_file")
_AUTHORITIES: Final = ("tls_ca", "ca_file")


class NamedCertificate(NamedTuple):
    name: str
    """Its setting."""
    path: Path
    authorities: bool
    """Whether it has authorities rather than a chain."""


def tables(config: Config) -> Iterator[tuple[str, Any]]:
    """Yield all tables that may name files."""
    yield "admin", config.admin
    yield "nats.mqtt", config.nats.mqtt
    yield "nats.cluster", config.nats.cluster
    for user in config.nats.mqtt.users:
        yield f"MQTT user {user.name}", user
    for options in config.input:
        yield f"input {options.name}", options


def named_files(config: Config, options: Iterable[str]) -> Iterator[tuple[str, Path, str]]:
    """Yield files in options: owner, path and option."""
    for owner, table in tables(config):
        for name in options:
            path = getattr(table, name, None)
            if isinstance(path, Path):
                yield owner, path, name


def named_certificates(config: Config) -> Iterator[NamedCertificate]:
    """Yield all certificates of listeners, inputs and server settings."""
    for owner, path, name in named_files(config, _OPTIONS):
        yield NamedCertificate(f"{name} of {owner}", path, name in _AUTHORITIES)
    for owner, table in (("nats.extra", config.nats.extra), ("nats.remote", config.nats.remote)):
        yield from _in_table(owner, table)


def _in_table(prefix: str, table: Mapping[str, Any]) -> Iterator[NamedCertificate]:
    """Yield those in a part of the server configuration."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _in_table(f"{prefix}.{key}", value)
        elif key in _SERVER_OPTIONS and isinstance(value, str):
            yield NamedCertificate(f"{prefix}.{key}", Path(value), key in _AUTHORITIES)
