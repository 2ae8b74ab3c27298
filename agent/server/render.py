"""Configurations of nats-server as text, from plain values. Pure: touches no file and holds no secret.

The one secret of a server is the seed with which a leaf dials the hub. It stands in a file of its own beside
the configuration (`LINK_INCLUDE`, mode 0600), which the text includes; nats-server resolves an include only
relative to the file that names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.config import listen_address
from agent.contract import (
    ACCOUNT,
    DEFAULT_CLASS,
    HUB_DOMAIN,
    RESERVED_DOMAINS,
    aggregate,
    check_app,
    check_class,
    check_domain,
)
from agent.server import permissions
from agent.server.keys import is_public_key
from agent.server.mqtt import MqttListener
from agent.server.permissions import LinkRights, Permissions
from agent.server.quoting import RenderError, quoted

MAX_PAYLOAD = 8 * 1024 * 1024
PING_SECONDS = 5
LINK_INCLUDE = "link.conf"

_SYSTEM_ACCOUNT = "SYS"
_INCLUDE = "include"
_QUESTIONS = ("LEAFZ", "VARZ", "HEALTHZ")
_MEMORY_STORE = 64 * 1024 * 1024
_LOG_FILE_SIZE = 8 * 1024 * 1024
_LOG_FILES = 3
_HOST = re.compile(r"[A-Za-z0-9.:_-]+\Z")


@dataclass(frozen=True, slots=True)
class LeafUser:
    """A leaf as the hub knows it: its domain, the public key it dials with, the classes it sends, the hub's
    streams that it may take and its own that the hub may."""

    domain: str
    key: str
    classes: tuple[str, ...] = (DEFAULT_CLASS,)
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_leaf(self.domain, self.classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """The hub's server. Keys are public; sizes are bytes. `max_file_store` must hold the `max_bytes` of all
    streams together, which JetStream reserves when it makes them."""

    server_name: str
    store_dir: Path
    max_file_store: int
    registrar: str
    registrar_system: str
    jobs: str
    leaves: tuple[LeafUser, ...] = ()
    aggregates: tuple[str, ...] = (aggregate(0),)
    links: tuple[LinkRights, ...] = ()
    listen: str = "127.0.0.1:4222"
    leaf_listen: str = "127.0.0.1:7422"
    max_payload: int = MAX_PAYLOAD
    pid_file: Path | None = None
    log_file: Path | None = None

    def __post_init__(self) -> None:
        own = {name: getattr(self, name) for name in ("registrar", "registrar_system", "jobs")}
        _check_keys(own | {f"leaf {leaf.domain}": leaf.key for leaf in self.leaves})
        for name in ("listen", "leaf_listen"):
            address_of(getattr(self, name))
        domains = [leaf.domain for leaf in self.leaves]
        for domain in domains:
            if domains.count(domain) > 1:
                raise RenderError(
                    f"domain {domain!r} stands twice among the leaves; a domain is one machine's"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafConfig:
    """A leaf's server, which dials `hub_urls` (`nats-leaf://host:port`) with the seed in `link_key_file`,
    unless the link is not `link_open`. Keys are public; sizes are bytes, `max_file_store` as in `HubConfig`.
    `apps` are the local programs that have commands of their own, `heard` the subjects on which local
    programs publish to the agent."""

    server_name: str
    domain: str
    store_dir: Path
    max_file_store: int
    hub_urls: tuple[str, ...]
    link_key_file: Path
    agent: str
    agent_system: str
    device: str
    classes: tuple[str, ...] = (DEFAULT_CLASS,)
    apps: tuple[str, ...] = ()
    heard: tuple[str, ...] = ()
    links: tuple[LinkRights, ...] = ()
    listen: str = "127.0.0.1:4222"
    ping_seconds: int = PING_SECONDS
    link_open: bool = True
    mqtt: MqttListener | None = None
    max_payload: int = MAX_PAYLOAD
    pid_file: Path | None = None
    log_file: Path | None = None

    def __post_init__(self) -> None:
        _check_leaf(self.domain, self.classes)
        for app in self.apps:
            check_app(app)
        _check_keys({name: getattr(self, name) for name in ("agent", "agent_system", "device")})
        address_of(self.listen)
        if self.mqtt is not None:
            address_of(self.mqtt.listen)
        if not self.hub_urls:
            raise RenderError("a leaf needs the address of its hub, such as nats-leaf://hub.example:7422")


ServerConfig = HubConfig | LeafConfig


def render(config: ServerConfig) -> str:
    """The text of a server's configuration. Raises `RenderError`."""
    body = _hub(config) if isinstance(config, HubConfig) else _leaf(config)
    return "# Written by petiole; what is changed here by hand is lost.\n" + _block(body)


def address_of(listen: str) -> tuple[str, int]:
    """Host and port of a `listen` value. Raises `RenderError`."""
    try:
        host, port = listen_address(listen)
    except ValueError:
        host, port = "", 0
    if port == 0 or _HOST.match(host) is None:
        raise RenderError(f"listen {listen!r} is not host:port, such as 127.0.0.1:4222")
    return host, port


def _hub(config: HubConfig) -> dict[str, Any]:
    leaves = [
        _user(leaf.key, permissions.leaf_link(leaf.domain, leaf.classes, leaf.takes, leaf.gives), "LEAFNODE")
        for leaf in config.leaves
    ]
    served = [(leaf.domain, leaf.classes) for leaf in config.leaves]
    return {
        **_common(config, HUB_DOMAIN),
        "leafnodes": {
            "listen": config.leaf_listen,
            "no_advertise": True,  # else a leaf learns other addresses and goes around the one it was given
            "isolate_leafnode_interest": True,
            "authorization": {"timeout": 10},
        },
        "accounts": _accounts(
            [
                _user(config.registrar, permissions.registrar(config.aggregates, served, config.links)),
                _user(config.jobs, permissions.jobs(config.aggregates)),
                *leaves,
            ],
            [_user(config.registrar_system, permissions.system(permissions.REGISTRAR, _QUESTIONS))],
        ),
        "system_account": _SYSTEM_ACCOUNT,
    }


def _leaf(config: LeafConfig) -> dict[str, Any]:
    return {
        **_common(config, config.domain),
        "leafnodes": {
            "remotes": [
                {
                    "urls": list(config.hub_urls),
                    "account": ACCOUNT,
                    # The server's own second is too short for a satellite link.
                    "dial_timeout": "10s",
                    "first_info_timeout": "10s",
                    "disabled": not config.link_open,
                    _INCLUDE: LINK_INCLUDE,
                }
            ]
        },
        "accounts": _accounts(
            [
                _user(
                    config.agent,
                    permissions.agent(
                        config.domain, config.classes, config.links, config.mqtt is not None, config.heard
                    ),
                ),
                _user(
                    config.device,
                    permissions.device(config.domain, config.classes, config.apps, config.heard),
                ),
                *_mqtt_users(config.mqtt),
            ],
            [_user(config.agent_system, permissions.system(config.domain, _QUESTIONS))],
        ),
        "system_account": _SYSTEM_ACCOUNT,
        **({} if config.mqtt is None else {"mqtt": config.mqtt.block()}),
    }


def _mqtt_users(listener: MqttListener | None) -> list[dict[str, Any]]:
    if listener is None or not listener.open:
        return []
    return [
        {"user": user.name, _INCLUDE: include, **_granted(permissions.mqtt(), "MQTT")}
        for include, user in listener.includes()
    ]


def _common(config: ServerConfig, domain: str) -> dict[str, Any]:
    head: dict[str, Any] = {"server_name": config.server_name, "listen": config.listen}
    if config.pid_file is not None:
        head["pid_file"] = str(config.pid_file)
    if config.log_file is not None:
        head |= {
            "log_file": str(config.log_file),
            "logfile_size_limit": _LOG_FILE_SIZE,
            "logfile_max_num": _LOG_FILES,
        }
    return head | {
        "max_payload": config.max_payload,
        # Of 5 s: a dead link is noticed by the leaf in 15 s, by the hub in 20 s; by default it may take six
        # minutes.
        "ping_interval": f"{config.ping_seconds if isinstance(config, LeafConfig) else PING_SECONDS}s",
        "ping_max": 2,
        "jetstream": {
            "domain": domain,
            "store_dir": str(config.store_dir),
            "max_file_store": config.max_file_store,
            "max_memory_store": _MEMORY_STORE,
            "sync_interval": "always",  # so that an acknowledgement comes after fsync
        },
    }


def _accounts(users: list[dict[str, Any]], system_users: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        ACCOUNT: {"jetstream": "enabled", "users": users},
        _SYSTEM_ACCOUNT: {"users": system_users},
    }


def _user(key: str, allowed: Permissions, connection: str = "STANDARD") -> dict[str, Any]:
    return {"nkey": key, **_granted(allowed, connection)}


def _granted(allowed: Permissions, connection: str) -> dict[str, Any]:
    publish = {"allow": list(allowed.publish)}
    if allowed.deny_publish:
        publish["deny"] = list(allowed.deny_publish)
    subscribe = {"allow": list(allowed.subscribe)} if allowed.subscribe else {}
    if allowed.deny_subscribe:
        subscribe["deny"] = list(allowed.deny_subscribe)
    granted: dict[str, Any] = {"publish": publish, "subscribe": subscribe}
    if allowed.replies:
        granted["allow_responses"] = {"max": 1, "expires": "1m"}
    return {"allowed_connection_types": [connection], "permissions": granted}


def _check_leaf(domain: str, classes: Sequence[str]) -> None:
    if check_domain(domain) in RESERVED_DOMAINS:
        raise RenderError(f"domain {domain!r} is the name of a part of petiole itself; take another")
    if not classes:
        raise RenderError(f"domain {domain!r} has no class; there is at least {DEFAULT_CLASS!r}")
    for cls in classes:
        check_class(cls)


def _check_keys(keys: Mapping[str, str]) -> None:
    owners: dict[str, str] = {}
    for owner, key in keys.items():
        if not is_public_key(key):
            raise RenderError(f"key of {owner} is not the public key of a user (56 characters, U first)")
        if owners.setdefault(key, owner) != owner:
            raise RenderError(f"{owners[key]} and {owner} have the same key; each needs its own")


def _block(body: Mapping[str, Any], indent: str = "") -> str:
    return "".join(
        f"{indent}{_INCLUDE} {_value(value, indent)}\n"
        if key == _INCLUDE
        else f"{indent}{key}: {_value(value, indent)}\n"
        for key, value in body.items()
    )


def _value(value: Any, indent: str) -> str:
    inner = indent + "  "
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case Mapping():
            return f"{{\n{_block(value, inner)}{indent}}}"
        case list():
            items = "".join(inner + _value(one, inner) + "\n" for one in value)
            return f"[\n{items}{indent}]"
        case _:
            return quoted(str(value))
