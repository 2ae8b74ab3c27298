"""The configuration files of a fault environment. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent import contract
from agent.demo.plan import Member


@dataclass(frozen=True, slots=True)
class LeafSettings:
    """What a case changes of a leaf: keys of its one class and of `[nats]`, as lines of TOML; the level of
    its input; tables to add."""

    ack: str = "stored"
    cls: str = 'max_bytes = "256MiB"'
    nats: str = ""
    max_file_store: str = "2GiB"
    http: str = ""
    """Options of its `http` input."""
    more: str = ""


@dataclass(frozen=True, slots=True)
class HubSettings:
    """What a case changes of the hub."""

    registrar: str = 'max_bytes = "512MiB"'
    nats: str = ""
    max_file_store: str = "2GiB"
    more: str = ""


def leaf_toml(one: Member, hub: str, settings: LeafSettings) -> str:
    """A leaf whose server dials `hub`, a URL."""
    return f"""\
role = "leaf"
domain = {json.dumps(one.domain)}
state_dir = {json.dumps(str(one.state))}

[log]
format = "json"

[nats]
server = "embedded"
listen = "127.0.0.1:{one.nats_port}"
max_file_store = "{settings.max_file_store}"
hub_urls = ["{hub}"]
{settings.nats}

[[class]]
name = "{contract.DEFAULT_CLASS}"
{settings.cls}

[admin]
listen = "127.0.0.1:{one.admin_port}"

[[input]]
type = "http"
ack = "{settings.ack}"
listen = "127.0.0.1:{one.http_port}"
{settings.http}
{settings.more}
"""


def external(toml: str, keys: Path) -> str:
    """The same leaf beside a server that is not its agent's own, whose keys are in this directory."""
    own = (("seed_file", "agent.nk"), ("system_seed_file", "agent_system.nk"))
    lines = ['server = "external"', *(f"{name} = {json.dumps(str(keys / key))}" for name, key in own)]
    return toml.replace('server = "embedded"', "\n".join(lines))


def hub_toml(one: Member, leaf_listen: str, leaves: Sequence[str], settings: HubSettings) -> str:
    """The hub; `leaves` are the tables that `petiole enrol` printed."""
    tables = "\n".join(leaves)
    return f"""\
role = "hub"
domain = "{contract.HUB_DOMAIN}"
state_dir = {json.dumps(str(one.state))}

[log]
format = "json"

[nats]
server = "embedded"
listen = "127.0.0.1:{one.nats_port}"
leaf_listen = "{leaf_listen}"
max_file_store = "{settings.max_file_store}"
{settings.nats}

[registrar]
{settings.registrar}

[admin]
listen = "127.0.0.1:{one.admin_port}"
{settings.more}

{tables}
"""
