"""The schema of a topology file: its keys and their defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct, field

from agent.config import Size


class SiteServer(Struct, forbid_unknown_fields=True):
    """A server of the hub; more than one are a cluster, and each then has a `cluster_listen`."""

    name: str = "a"
    listen: str = "127.0.0.1:4222"
    leaf_listen: str = "0.0.0.0:7422"
    cluster_listen: str = ""


class SiteHub(Struct, forbid_unknown_fields=True):
    """The hub: `urls` are where leaves dial. Its one server is run by the agent when it is `embedded`.
    `config` has more tables of the agent's configuration, `extra` is added to that of each server."""

    urls: list[str] = []
    embedded: bool = False
    state_dir: Path = Path("/var/lib/petiole")
    store_dir: Path = Path("/var/lib/nats")
    max_file_store: Size = Size(64 * 2**30)
    server: list[SiteServer] = field(default_factory=lambda: [SiteServer()])
    config: dict[str, Any] = {}
    extra: dict[str, Any] = {}


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


class SiteLeaf(Struct, forbid_unknown_fields=True):
    """One leaf, as in the hub's [[leaf]] tables; without a `key` it is not let in yet. `config` is joined
    with that of all leaves and goes before it."""

    domain: str
    key: str = ""
    classes: list[str] = []
    takes: list[str] = []
    gives: list[str] = []
    revoked: list[str] = []
    tenant: str = ""
    users: dict[str, str] = {}
    config: dict[str, Any] = {}


class Topology(Struct, forbid_unknown_fields=True):
    """The whole site. `tenants` has each tenant that a leaf names."""

    tenants: list[str] = []
    hub: SiteHub = field(default_factory=SiteHub)
    leaves: Leaves = field(default_factory=Leaves)
    leaf: list[SiteLeaf] = []
