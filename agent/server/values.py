"""Defines checked values for server configurations. Pure, without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from agent.base.nats_server import RenderError, Variable
from agent.config import listen_address
from agent.config.keys import is_public_key
from agent.contract import (
    DEFAULT_CLASS,
    HOME,
    HUB_DOMAIN,
    RESERVED_DOMAINS,
    aggregate,
    check_app,
    check_class,
    check_domain,
    check_tenant,
    check_user,
)
from agent.server.permissions import LinkRights

MAX_PAYLOAD = 8 * 1024 * 1024
PING_SECONDS = 5

_HOST = re.compile(r"[A-Za-z0-9.:_-]+\Z")


class LeafUser(Struct, frozen=True):
    """A leaf at the hub: domain, key, classes, streams it takes and gives."""

    domain: str
    key: str
    classes: tuple[str, ...] = (DEFAULT_CLASS,)
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    tenant: str = ""
    cell: str = HOME

    def __post_init__(self) -> None:
        _check_leaf(self.domain, self.classes)
        if self.tenant:
            check_tenant(self.tenant)
        if (self.tenant or self.cell) and (self.takes or self.gives):
            whose = "a tenant's" if self.tenant else f"in cell {self.cell}"
            raise RenderError(
                f"domain {self.domain!r} is {whose}, and what it takes and gives cannot cross accounts"
            )


class AccountUser(Struct, frozen=True):
    """A program's account: public key (empty: no access), readable streams and limits.

    `link_key_file` is a linked leaf's seed; at the hub `link_keys` are such leaves'.
    """

    name: str
    key: str
    max_bytes: int
    reads: tuple[str, ...] = ()
    link_key_file: Path | None = None
    link_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_user(self.name)


class MqttUser(Struct, frozen=True):
    """An MQTT user and password file."""

    name: str
    password_file: Path


class MqttListener(Struct, frozen=True, kw_only=True):
    """The MQTT listener; `tls` is chain and key.

    Admits devices only if `open`, as otherwise the server would acknowledge and drop readings. `shut` is why
    it does not listen.
    """

    listen: str
    users: tuple[MqttUser, ...]
    tls: tuple[Path, Path] | None = None
    open: bool = True
    shut: str | None = None

    def includes(self) -> list[tuple[str, MqttUser]]:
        """Return password files with users."""
        return [(f"mqtt-{number}.conf", user) for number, user in enumerate(self.users)]

    def block(self) -> dict[str, Any]:
        head: dict[str, Any] = {"listen": self.listen}
        if self.tls is not None:
            cert, key = self.tls
            head["tls"] = {"cert_file": str(cert), "key_file": str(key), "timeout": 10}
        return head


class ClusterConfig(Struct, frozen=True):
    """A hub server's cluster. `include` has routes and password, made from `routes` and `password_file` if
    embedded.

    `tls` is certificate, key and authority.
    """

    listen: str
    include: str = "cluster.conf"
    routes: tuple[str, ...] = ()
    password_file: Path | None = None
    name: str = HUB_DOMAIN
    tls: tuple[Path, Path, Path] | None = None


class _AnyConfig(Struct, frozen=True, kw_only=True):
    """Common values. `max_file_store` must cover all streams' `max_bytes`, which JetStream reserves.

    `extra` is added (`agent.config.server_overlay`); `identity` has keys as variables.
    """

    server_name: str
    store_dir: Path
    max_file_store: int
    links: tuple[LinkRights, ...] = ()
    users: tuple[AccountUser, ...] = ()
    listen: str = "127.0.0.1:4222"
    max_payload: int = MAX_PAYLOAD
    extra: Mapping[str, Any] = field(default_factory=dict)
    identity: str = ""
    pid_file: Path | None = None
    log_file: Path | None = None


class HubConfig(_AnyConfig, frozen=True, kw_only=True):
    """A hub server. `identity` has the public REGISTRAR_KEY, REGISTRAR_SYSTEM_KEY and JOBS_KEY."""

    registrar: str
    registrar_system: str
    jobs: str
    cells: Mapping[str, str] = field(default_factory=dict)
    """The registrar's key in each cell but the first."""
    leaves: tuple[LeafUser, ...] = ()
    aggregates: tuple[str, ...] = (aggregate(0),)
    leaf_listen: str = "127.0.0.1:7422"
    cluster: ClusterConfig | None = None
    sync_seconds: float = 0.0
    """Sync interval; 0 for before acks."""

    def __post_init__(self) -> None:
        own = {name: getattr(self, name) for name in ("registrar", "registrar_system", "jobs")}
        own |= {f"registrar of cell {cell}": key for cell, key in self.cells.items()}
        _check_keys(own | {f"leaf {leaf.domain}": leaf.key for leaf in self.leaves} | _keys_of(self.users))
        for name in ("listen", "leaf_listen"):
            address_of(getattr(self, name))
        if self.cluster is not None:
            address_of(self.cluster.listen)
        _check_extra(self.extra, "hub")
        domains = set[str]()
        for leaf in self.leaves:
            if leaf.domain in domains:
                raise RenderError(
                    f"domain {leaf.domain!r} stands twice among the leaves; a domain is one machine's"
                )
            domains.add(leaf.domain)
            if leaf.cell and leaf.cell not in self.cells:
                raise RenderError(f"domain {leaf.domain!r} is in cell {leaf.cell}, which has no registrar")


class LeafConfig(_AnyConfig, frozen=True, kw_only=True):
    """A leaf's server, dialling `hub_urls` (`nats-leaf://host:port`) with `link_key_file` if `link_open`.

    `removed` classes had streams, `apps` have commands, `heard` are local subjects, `remote` adds settings.
    `identity` has server_name, the seed LINK_KEY, and public AGENT_KEY, AGENT_SYSTEM_KEY and DEVICE_KEY.
    """

    domain: str
    hub_urls: tuple[str, ...]
    link_key_file: Path
    agent: str
    agent_system: str
    device: str
    classes: tuple[str, ...] = (DEFAULT_CLASS,)
    removed: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()
    heard: tuple[str, ...] = ()
    ping_seconds: int = PING_SECONDS
    link_open: bool = True
    mqtt: MqttListener | None = None
    remote: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_leaf(self.domain, self.classes)
        for cls in self.removed:
            check_class(cls)
        for app in self.apps:
            check_app(app)
        own = {name: getattr(self, name) for name in ("agent", "agent_system", "device")}
        _check_keys(own | _keys_of(self.users))
        address_of(self.listen)
        if self.mqtt is not None:
            address_of(self.mqtt.listen)
        _check_extra(self.extra, "leaf")
        _check_extra(self.remote, "remote")
        if not self.hub_urls:
            raise RenderError("a leaf needs the address of its hub, such as nats-leaf://hub.example:7422")


ServerConfig = HubConfig | LeafConfig


def address_of(listen: str) -> tuple[str, int]:
    """Parse a `listen` value. Raises `RenderError`."""
    try:
        host, port = listen_address(listen)
    except ValueError:
        host, port = "", 0
    if port == 0 or _HOST.match(host) is None:
        raise RenderError(f"listen {listen!r} is not host:port, such as 127.0.0.1:4222")
    return host, port


def _check_leaf(domain: str, classes: Sequence[str]) -> None:
    if check_domain(domain) in RESERVED_DOMAINS:
        raise RenderError(f"domain {domain!r} is the name of a part of petiole itself; take another")
    if not classes:
        raise RenderError(f"domain {domain!r} has no class; there is at least {DEFAULT_CLASS!r}")
    for cls in classes:
        check_class(cls)


def _check_extra(extra: Mapping[str, Any], of: Literal["hub", "leaf", "remote"]) -> None:
    if not extra:
        return
    from agent.config.server_overlay import TAKEN, extra_problems  # not held in memory where nothing is added

    for key, stood, remedy in extra_problems(extra, TAKEN[of]):
        raise RenderError(f"{key} {stood}; {remedy}")


def _keys_of(users: Sequence[AccountUser]) -> dict[str, str]:
    found = {f"user {user.name}": user.key for user in users if user.key}
    links = {
        f"link {number} of user {user.name}": key
        for user in users
        for number, key in enumerate(user.link_keys)
    }
    return found | links


def _check_keys(keys: Mapping[str, str]) -> None:
    owners: dict[str, str] = {}
    for owner, key in keys.items():
        if isinstance(key, Variable):
            continue
        if not is_public_key(key):
            raise RenderError(f"key of {owner} is not the public key of a user (56 characters, U first)")
        if owners.setdefault(key, owner) != owner:
            raise RenderError(f"{owners[key]} and {owner} have the same key; each needs its own")
