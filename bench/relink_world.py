"""Hub and leaves for the benchmarks of the link: real servers, in which the product's account stands beside
one for raw JetStream, and the product's agents as processes of their own; and that raw JetStream: a leaf's
stream and the hub's stream that sources it, as the documents of nats-server show them, made once and left
alone.

Both accounts live in the same servers and their links take the same way, so that one fault meets both.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from nats.aio.client import Client

from agent.base.machine import machine_id
from agent.config import LinkConfig
from agent.config.keys import ensure_key
from agent.contract import DEFAULT_CLASS, aggregate, api_prefix, server_name
from agent.demo.loopback import free_port
from agent.jetstream import JetStream
from agent.server.values import HubConfig, LeafConfig, LeafUser
from bench.link_processes import AgentProcess, Server

_STORE: Final = 256 * 2**30
_STREAM: Final = "256MiB"
_NORMAL: Final = LinkConfig()


class Dialled(Protocol):
    """What leaves dial in the hub's place."""

    host: str
    port: int


@dataclass(slots=True)
class LinkWorld:
    """A hub, its registrar, leaves by domain and their agents; none is started by making it."""

    hub: Server
    registrar: AgentProcess
    leaves: dict[str, Server] = field(default_factory=dict)
    agents: dict[str, AgentProcess] = field(default_factory=dict)

    async def start(self) -> None:
        """Start all of it. Starting an agent waits, and a proxy in this thread goes on meanwhile."""
        self.hub.start()
        for leaf in self.leaves.values():
            leaf.start()
        await asyncio.sleep(1.0)
        for agent in (self.registrar, *self.agents.values()):
            await asyncio.to_thread(agent.start)

    def end(self) -> None:
        for agent in (*self.agents.values(), self.registrar):
            agent.kill()
        for server in (*self.leaves.values(), self.hub):
            server.kill()


@contextmanager
def link_world(
    directory: Path,
    domains: list[str],
    classes: tuple[str, ...] = (DEFAULT_CLASS,),
    proxy: Dialled | None = None,
    leaf_listen: str | None = None,
    aggregates: int = 1,
    linger: str = "5ms",
    stream: str = _STREAM,
    link: LinkConfig = _NORMAL,
) -> Iterator[LinkWorld]:
    """The servers and agents in a directory; what is started ends with the context. Leaves dial the proxy,
    which leads to the hub's `leaf_listen`, or the hub itself. A leaf's streams hold `stream` bytes each."""
    listen = leaf_listen or f"127.0.0.1:{free_port()}"
    dialled = listen if proxy is None else f"{proxy.host}:{proxy.port}"
    users = []
    for domain in domains:
        key = directory / domain / "keys" / "link.nk"
        users.append(LeafUser(domain, ensure_key(key), classes))
    servers = _hub(directory / "hub", listen, users, aggregates)
    for user in users:
        servers.leaves[user.domain] = server = _leaf(
            directory / user.domain, dialled, user, link.ping_seconds
        )
        servers.agents[user.domain] = _leaf_agent(server, user, linger, stream, link)
    try:
        yield servers
    finally:
        servers.end()


def _hub(directory: Path, listen: str, users: list[LeafUser], aggregates: int) -> LinkWorld:
    keys, public = _keys(directory, ("registrar", "registrar_system", "jobs"))
    config = HubConfig(
        server_name=server_name("hub", machine_id()),
        listen=f"127.0.0.1:{free_port()}",
        leaf_listen=listen,
        store_dir=directory / "store",
        max_file_store=_STORE,
        leaves=tuple(users),
        aggregates=tuple(aggregate(number) for number in range(aggregates)),
        registrar=public["registrar"],
        registrar_system=public["registrar_system"],
        jobs=public["jobs"],
    )
    server = Server(config, directory, keys)
    admin = free_port()
    tables = "".join(
        f'[[leaf]]\ndomain = "{user.domain}"\nkey = "{user.key}"\nclasses = {json.dumps(user.classes)}\n'
        for user in users
    )
    toml = _toml(server, "hub", "hub", "registrar", admin) + tables
    return LinkWorld(server, AgentProcess(directory, toml, admin))


def _leaf(directory: Path, dialled: str, user: LeafUser, ping_seconds: int) -> Server:
    keys, public = _keys(directory, ("agent", "agent_system", "device"))
    config = LeafConfig(
        server_name=server_name(user.domain, machine_id()),
        domain=user.domain,
        classes=user.classes,
        listen=f"127.0.0.1:{free_port()}",
        store_dir=directory / "store",
        max_file_store=_STORE,
        hub_urls=(f"nats-leaf://{dialled}",),
        link_key_file=directory / "keys" / "link.nk",
        agent=public["agent"],
        agent_system=public["agent_system"],
        device=public["device"],
        ping_seconds=ping_seconds,
    )
    return Server(config, directory, keys)


def _leaf_agent(server: Server, user: LeafUser, linger: str, stream: str, link: LinkConfig) -> AgentProcess:
    rest = "" if link.rest_after is None else f'rest_after = "{link.rest_after:g}s"'
    admin, http = free_port(), free_port()
    classes = "".join(f'[[class]]\nname = "{cls}"\nmax_bytes = "{stream}"\n' for cls in user.classes)
    toml = (
        _toml(server, "leaf", user.domain, "agent", admin)
        + classes
        + f"""
[link]
profile = "{link.profile}"
{rest}

[publish]
linger = "{linger}"

[[input]]
type = "http"
listen = "127.0.0.1:{http}"
class = "{user.classes[0]}"
"""
    )
    return AgentProcess(server.directory, toml, admin, http)


def _toml(server: Server, role: str, domain: str, identity: str, admin: int) -> str:
    return f"""\
role = "{role}"
domain = "{domain}"
state_dir = "{server.directory / "state"}"

[log]
format = "json"

[nats]
server = "external"
listen = "{server.config.listen}"
seed_file = "{server.keys[identity]}"
system_seed_file = "{server.keys[f"{identity}_system"]}"

[admin]
listen = "127.0.0.1:{admin}"

"""


def _keys(directory: Path, names: tuple[str, ...]) -> tuple[dict[str, Path], dict[str, str]]:
    paths = {name: directory / "keys" / f"{name}.nk" for name in names}
    return paths, {name: ensure_key(path) for name, path in paths.items()}


Kind = Literal["durable", "classic"]
_BYTES = 256 * 2**20
_HEARTBEAT_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class RawStream:
    """One stream of a leaf; `durable` is sourced over a consumer of its own, `classic` over one that the hub
    makes and makes again."""

    domain: str
    name: str
    kind: Kind

    @property
    def subject(self) -> str:
        return f"{self.name}.n"

    def source(self) -> dict[str, Any]:
        """It as a source of the hub's stream."""
        found: dict[str, Any] = {
            "name": self.name,
            "external": {"api": api_prefix(self.domain), "deliver": ""},
        }
        if self.kind == "durable":
            found["consumer"] = {"name": "hub", "deliver_subject": f"deliver.{self.name}"}
        return found


async def make_at_leaf(nc: Client, streams: list[RawStream]) -> None:
    """The streams of one leaf, and their consumers."""
    js = JetStream(nc, timeout=30.0)
    for one in streams:
        await js.api(f"STREAM.CREATE.{one.name}", _stream(one.name) | {"subjects": [one.subject]})
        if one.kind == "durable":
            await js.create_consumer(
                one.name,
                {
                    "name": "hub",
                    "durable_name": "hub",
                    "deliver_subject": f"deliver.{one.name}",
                    "deliver_policy": "all",
                    "ack_policy": "flow_control",
                    "max_ack_pending": 10_000,
                    "flow_control": True,
                    "idle_heartbeat": _HEARTBEAT_NS,
                },
            )


async def make_at_hub(nc: Client, name: str, streams: list[RawStream]) -> None:
    """The stream that sources them all."""
    sources = [one.source() for one in streams]
    await JetStream(nc, timeout=30.0).api(
        f"STREAM.CREATE.{name}", _stream(name, 4) | {"sources": sources, "allow_direct": True}
    )


def _stream(name: str, times: int = 1) -> dict[str, Any]:
    return {
        "name": name,
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_bytes": _BYTES * times,
        "compression": "s2",
    }
