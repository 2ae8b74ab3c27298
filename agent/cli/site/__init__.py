"""Defines topology files and makes agents' configuration tables from them. Public keys only. Pure."""

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
"""Password file of cluster routes on a hub machine."""


class SiteServer(Struct, forbid_unknown_fields=True):
    """A hub server; several form a cluster with `cluster_listen` each."""

    name: str = "a"
    listen: str = "127.0.0.1:4222"
    leaf_listen: str = "0.0.0.0:7422"
    cluster_listen: str = ""


class SiteHub(Struct, forbid_unknown_fields=True):
    """The hub; leaves dial `urls`. Agents run its servers if `embedded`.

    `cluster_tls_…` are certificate, key and authority between servers. `config` adds agent tables, `extra`
    server settings.
    """

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
        """The three files, or None."""
        cert, key, authority = self.cluster_tls_cert, self.cluster_tls_key, self.cluster_tls_ca
        return None if cert is None or key is None or authority is None else (cert, key, authority)


class Leaves(Struct, forbid_unknown_fields=True):
    """Common settings of leaves; `remote` adds to each server's remote."""

    embedded: bool = False
    listen: str = "127.0.0.1:4222"
    state_dir: Path = Path("/var/lib/petiole")
    store_dir: Path = Path("/var/lib/nats")
    max_file_store: Size = Size(8 * 2**30)
    config: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    remote: dict[str, Any] = {}


class SiteLeaf(LeafMember, forbid_unknown_fields=True):
    """One leaf as in [[leaf]]; no access without `key`. `config` overrides the common one."""

    classes: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)


class Topology(Struct, forbid_unknown_fields=True):
    """The site with `tenants` of its leaves."""

    tenants: list[str] = []
    hub: SiteHub = field(default_factory=SiteHub)
    leaves: Leaves = field(default_factory=Leaves)
    leaf: list[SiteLeaf] = []


def hub_table(
    site: Topology, leaves: Mapping[str, Config], server: SiteServer | None = None
) -> dict[str, Any]:
    """Return the hub agent's configuration at `server` (default: first). Unenrolled leaves get no access."""
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
    """Return a leaf's classes by its configuration."""
    if config is None:
        return list(leaf.classes) or [DEFAULT_CLASS]
    return config.class_names


def conflicts(rendered: Mapping[str, Any], added: Mapping[str, Any], at: str) -> Iterator[Problem]:
    """Yield added keys that are already rendered."""
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
    return {
        "seed_file": str(state_dir / "keys" / f"{name}.nk"),
        "system_seed_file": str(state_dir / "keys" / f"{name}_system.nk"),
    }
