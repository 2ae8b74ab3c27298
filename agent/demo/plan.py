"""Plans the demonstration: addresses, configurations, fault times. Pure except for ports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent import contract
from agent.demo.loopback import free_port

LEAVES = ("edge-1", "edge-2")
READINGS_PER_SECOND = 3_000
LOAD_SECONDS = 40.0
CUT_AT, CUT_SECONDS = 4.0, 10.0
HUB_KILL_AT = 18.0
AGENT_KILL_AT = 27.0
FILE_LINES_PER_SECOND = 50

_STORE_BYTES = "2GiB"
_STREAM_BYTES = "512MiB"


@dataclass(frozen=True, slots=True)
class Member:
    """An agent: domain, directory, ports."""

    domain: str
    directory: Path
    nats_port: int
    admin_port: int
    http_port: int

    @property
    def config(self) -> Path:
        return self.directory / "petiole.toml"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def lines(self) -> Path:
        """The followed file."""
        return self.directory / "lines.ndjson"

    @property
    def nats_url(self) -> str:
        return f"nats://127.0.0.1:{self.nats_port}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"


def member(directory: Path, domain: str) -> Member:
    return Member(domain, directory / domain, free_port(), free_port(), free_port())


@dataclass(frozen=True, slots=True)
class HubMachine:
    """A hub machine: agent, leaf port, cluster port."""

    member: Member
    leaf_port: int
    route_port: int


def hub_machines(directory: Path, count: int) -> list[HubMachine]:
    """Return one hub machine, or several named a, b, c."""
    names = (
        [contract.HUB_DOMAIN] if count == 1 else [f"{contract.HUB_DOMAIN}-{'abc'[n]}" for n in range(count)]
    )
    return [HubMachine(member(directory, name), free_port(), free_port()) for name in names]


def leaf_toml(member: Member, *hub_ports: int) -> str:
    """Return a leaf's configuration; its server dials `hub_ports`."""
    urls = [f"nats-leaf://127.0.0.1:{port}" for port in hub_ports]
    return f"""\
{_agent_toml("leaf", member.domain, member)}\
hub_urls = {json.dumps(urls)}

[[class]]
name = "{contract.DEFAULT_CLASS}"
max_bytes = "{_STREAM_BYTES}"

[[input]]
type = "http"
listen = "127.0.0.1:{member.http_port}"

[[input]]
type = "file"
path = {_text(member.lines)}

[[input]]
type = "host"
interval = "1s"
"""


def hub_toml(member: Member, leaf_port: int, leaves: list[str], cluster: str = "") -> str:
    """Return the hub's configuration with enrolled `leaves` and `cluster`."""
    return f"""\
{_agent_toml("hub", contract.HUB_DOMAIN, member)}\
leaf_listen = "127.0.0.1:{leaf_port}"
{cluster}
[registrar]
max_bytes = "{_STREAM_BYTES}"
{"replicas = 3" if cluster else ""}

""" + "\n".join(leaves)


def _agent_toml(role: str, domain: str, member: Member) -> str:
    """Return the common part, open for more of [nats]."""
    return f"""\
role = "{role}"
domain = {_text(domain)}
state_dir = {_text(member.state)}

[log]
format = "json"

[admin]
listen = "127.0.0.1:{member.admin_port}"

[nats]
server = "embedded"
listen = "127.0.0.1:{member.nats_port}"
max_file_store = "{_STORE_BYTES}"
"""


def cluster_toml(hub: HubMachine, hubs: Sequence[HubMachine], password_file: Path) -> str:
    """Return the cluster part of a hub's configuration."""
    return f"""
[nats.cluster]
name = {_text(hub.member.domain.rpartition("-")[2])}
listen = "127.0.0.1:{hub.route_port}"
routes = {json.dumps([f"127.0.0.1:{other.route_port}" for other in hubs])}
password_file = {_text(password_file)}
"""


def _text(value: object) -> str:
    return json.dumps(str(value))
