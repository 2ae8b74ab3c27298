"""A whole site from one file: its hub, leaves and tenants, made into the configurations of every server and
agent. Knows public keys only and opens no connection. This file has the schema of a topology file, and the
configurations of a site's agents as tables of TOML. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import asdict

from agent.base.nats_server import merged
from agent.config import Config, LeafMember, Problem, Size
from agent.config.server_checks import CLUSTER_TLS
from agent.contract import DEFAULT_CLASS, HUB_DOMAIN

_ROUTES_FILE: Final = "/etc/petiole/cluster.password"
"""Where a machine of the hub has what the servers of its cluster show each other."""


class SiteServer(Struct, forbid_unknown_fields=True):
    """A server of the hub; more than one are a cluster, and each then has a `cluster_listen`."""

    name: str = "a"
    listen: str = "127.0.0.1:4222"
    leaf_listen: str = "0.0.0.0:7422"
    cluster_listen: str = ""


class SiteHub(Struct, forbid_unknown_fields=True):
    """The hub: `urls` are where leaves dial. Its servers are run by the agents when it is `embedded`.
    `cluster_tls_…` are where each machine has its certificate, its key and the authority of all, for what
    passes between several. `config` has more tables of the agent's configuration, `extra` is added to that of
    each server."""

    urls: list[str] = []
    embedded: bool = False
    state_dir: Path = Path("/var/lib/petiole")
    store_dir: Path = Path("/var/lib/nats")
    max_file_store: Size = Size(64 * 2**30)
    server: list[SiteServer] = field(default_factory=lambda: [SiteServer()])
    cluster_tls_cert: Path | None = None
    cluster_tls_key: Path | None = None
    cluster_tls_ca: Path | None = None
    config: dict[str, Any] = {}
    extra: dict[str, Any] = {}

    @property
    def cluster_tls(self) -> tuple[Path, Path, Path] | None:
        """The three files, None without."""
        cert, key, authority = self.cluster_tls_cert, self.cluster_tls_key, self.cluster_tls_ca
        return None if cert is None or key is None or authority is None else (cert, key, authority)


class Leaves(Struct, forbid_unknown_fields=True):
    """What all leaves have in common; `remote` is added to the remote of each server."""

    embedded: bool = False
    listen: str = "127.0.0.1:4222"
    state_dir: Path = Path("/var/lib/petiole")
    store_dir: Path = Path("/var/lib/nats")
    max_file_store: Size = Size(8 * 2**30)
    config: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    remote: dict[str, Any] = {}


class SiteLeaf(LeafMember, forbid_unknown_fields=True):
    """One leaf, as in the hub's [[leaf]] tables; without a `key` it is not let in yet. `config` is joined
    with that of all leaves and goes before it."""

    classes: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)


class Topology(Struct, forbid_unknown_fields=True):
    """The whole site. `tenants` has each tenant that a leaf names."""

    tenants: list[str] = []
    hub: SiteHub = field(default_factory=SiteHub)
    leaves: Leaves = field(default_factory=Leaves)
    leaf: list[SiteLeaf] = []


def hub_table(
    site: Topology, leaves: Mapping[str, Config], server: SiteServer | None = None
) -> dict[str, Any]:
    """The configuration of the hub's agent next to a `server`, by default the first one. `leaves` are the
    configurations of those leaves that can be read; a leaf that was never enrolled is not let in."""
    hub, servers = site.hub, [server for server in site.hub.server if server is not None]
    server = server or next(iter(servers), None)
    nats: dict[str, Any] = {
        "server": "embedded" if hub.embedded else "external",
        "listen": server.listen if server else "",
        "store_dir": str(hub.store_dir),
        "max_file_store": int(hub.max_file_store),
    }
    if hub.embedded:
        nats |= {"leaf_listen": server.leaf_listen if server else "", "extra": hub.extra}
        if server and len(servers) > 1:
            nats["cluster"] = {
                "name": server.name,
                "listen": server.cluster_listen,
                "routes": [other.cluster_listen for other in servers],
                "password_file": _ROUTES_FILE,
                **dict(zip(CLUSTER_TLS, map(str, hub.cluster_tls or ()), strict=False)),
            }
    else:
        nats |= _seeds(hub.state_dir, "registrar")
    table: dict[str, Any] = {
        "role": "hub",
        "domain": HUB_DOMAIN,
        "state_dir": str(hub.state_dir),
        "nats": nats,
        "registrar": {"replicas": 3 if len(servers) > 1 else 1},
    }
    return merged(table, hub.config) | {
        "leaf": [
            _member(leaf, classes(leaf, leaves.get(leaf.domain)))
            for leaf in site.leaf
            if leaf is not None and (leaf.key or leaf.revoked)
        ]
    }


def leaf_table(site: Topology, leaf: SiteLeaf) -> dict[str, Any]:
    common = site.leaves
    nats: dict[str, Any] = {
        "server": "embedded" if common.embedded else "external",
        "listen": common.listen,
        "store_dir": str(common.store_dir),
        "max_file_store": int(common.max_file_store),
    }
    if common.embedded:
        nats |= {"hub_urls": site.hub.urls, "extra": common.extra, "remote": common.remote}
    else:
        nats |= _seeds(common.state_dir, "agent")
    table: dict[str, Any] = {
        "role": "leaf",
        "domain": leaf.domain,
        "state_dir": str(common.state_dir),
        "nats": nats,
        "link": {"tenant": bool(leaf.tenant)},
    }
    return merged(merged(table, common.config), leaf.config)


def classes(leaf: SiteLeaf, config: Config | None) -> list[str]:
    """The classes of a leaf: those of its agent's configuration."""
    if config is None:
        return list(leaf.classes) or [DEFAULT_CLASS]
    return config.class_names


def conflicts(rendered: Mapping[str, Any], added: Mapping[str, Any], at: str) -> Iterator[Problem]:
    """The keys of an added table that are rendered already."""
    for key, value in added.items():
        present = rendered.get(key)
        if isinstance(present, Mapping) and isinstance(value, Mapping):
            yield from conflicts(present, value, f"{at}.{key}")
        elif key in rendered or key == "leaf":
            yield Problem(f"{at}.{key}", "follows from the rest of the topology", "remove it")


def _member(leaf: SiteLeaf, names: list[str]) -> dict[str, Any]:
    row = asdict(leaf) | {"classes": names, "config": None}
    return {key: value for key, value in row.items() if value}


def _seeds(state_dir: Path, name: str) -> dict[str, Any]:
    """The paths of the agent's own seeds, which `petiole enrol` makes."""
    return {
        "seed_file": str(state_dir / "keys" / f"{name}.nk"),
        "system_seed_file": str(state_dir / "keys" / f"{name}_system.nk"),
    }
