"""Defines [nats]: local server, MQTT listener and cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from agent.config.values import Size


class MqttUserConfig(Struct, forbid_unknown_fields=True):
    """A user name of MQTT devices. The file, of mode 0600, holds the password, or its bcrypt hash."""

    name: str
    password_file: Path


class Mqtt(Struct, forbid_unknown_fields=True):
    """The local server's listener for MQTT devices (role leaf); there is none without users."""

    listen: str = "127.0.0.1:1883"
    users: list[MqttUserConfig] = []
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def on(self) -> bool:
        return bool(self.users)

    @property
    def tls(self) -> tuple[Path, Path] | None:
        """Certificate and key, or None."""
        cert, key = self.tls_cert, self.tls_key
        return None if cert is None or key is None else (cert, key)


class Cluster(Struct, forbid_unknown_fields=True):
    """The cluster of a hub's server (role hub), with a hub's agent beside each embedded server; there is
    none without `routes`. The file, of mode 0600, holds the password that all its servers show each other.
    With a certificate, its key and the authority of all of them they also speak TLS. Each then has to show a
    certificate of that authority."""

    name: str = ""
    """Distinguishes servers; default the machine id."""
    listen: str = "127.0.0.1:6222"
    routes: list[str] = []
    password_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None

    @property
    def on(self) -> bool:
        return bool(self.routes)

    @property
    def tls(self) -> tuple[Path, Path, Path] | None:
        """Certificate, key and authority, or None."""
        cert, key, authority = self.tls_cert, self.tls_key, self.tls_ca
        return None if cert is None or key is None or authority is None else (cert, key, authority)


class Nats(Struct, forbid_unknown_fields=True):
    """The local nats-server: run by the agent (`embedded`) or there already (`external`). `apps` are programs
    on this machine that have commands of their own; `extra` is added to the rendered configuration of
    the server, `remote` to a leaf's remote in it."""

    server: Literal["embedded", "external"] = "embedded"
    listen: str = "127.0.0.1:4222"
    seed_file: Path | None = None
    system_seed_file: Path | None = None
    store_dir: Path | None = None
    max_file_store: Size = Size(8 * 2**30)
    hub_urls: list[str] = []
    link_seed_file: Path | None = None
    leaf_listen: str = "127.0.0.1:7422"
    resume_listen: str = ""
    jobs_seed_file: Path | None = None
    device_seed_file: Path | None = None
    apps: list[str] = []
    extra: dict[str, Any] = {}
    remote: dict[str, Any] = {}
    mqtt: Mqtt = msgspec.field(default_factory=Mqtt)
    cluster: Cluster = msgspec.field(default_factory=Cluster)

    @property
    def url(self) -> str:
        """The client URL on this machine."""
        return f"nats://{self.listen}"
