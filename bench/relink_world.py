"""Hub and leaves for the benchmarks of the link: real servers, in which the product's account stands beside
one for raw JetStream, and the product's agents as processes of their own.

Both accounts live in the same servers and their links take the same way, so that one fault meets both.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import nats
import psutil
from nats.aio.client import Client

from agent.base.files import write_private
from agent.base.machine import machine_id
from agent.base.nats_server import find_binary
from agent.config import LinkConfig
from agent.config.keys import ensure_key, seed_line
from agent.contract import DEFAULT_CLASS, aggregate, inbox_prefix, server_name
from agent.demo.ports import free_port
from agent.server.render import LINK_INCLUDE, render
from agent.server.values import HubConfig, LeafConfig, LeafUser, ServerConfig
from bench.agents import started, wait_ready

RAW: Final = "RAW"
OURS: Final = "PETIOLE"
_PASSWORD: Final = "raw"
_STORE: Final = 256 * 2**30
_STREAM: Final = "256MiB"
_RECONNECT_SECONDS: Final = 0.02
_START_SECONDS: Final = 60.0
_RAW_ACCOUNT = (
    f"accounts: {{\n  {RAW}: {{ jetstream: enabled, users: [ {{ user: raw, password: {_PASSWORD} }} ] }}\n"
)
_TIMEOUTS = 'dial_timeout: "10s", first_info_timeout: "10s"'
RAW_PLAIN: Final = f"account: {RAW}, compression: off,"
"""Stands in the leaf's raw remote: not compressed, as the product's is not."""
_RAW_REMOTE = f'remotes: [\n      {{ urls: [ "%s" ], {RAW_PLAIN} {_TIMEOUTS} }}\n'
_LINK = re.compile(
    r"\[\d+\] (?P<at>\S+ \S+) \[INF\] \S+ - lid:(?P<link>\d+) - "
    r"Leafnode connection (?:created for account: (?P<account>\S+)|closed)"
)


class Dialled(Protocol):
    """What leaves dial in the hub's place."""

    host: str
    port: int


class Server:
    """A nats-server process with a rendered configuration to which the account of raw JetStream is added."""

    def __init__(self, config: ServerConfig, directory: Path, keys: dict[str, Path]) -> None:
        self.config = replace(config, log_file=directory / "nats-server.log")
        self.directory = directory
        self.keys = keys
        self._path = directory / "nats-server.conf"
        self._path.write_text(_with_raw(self.config))
        if isinstance(config, LeafConfig):
            write_private(directory / LINK_INCLUDE, seed_line("nkey", config.link_key_file).encode())
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{self.config.listen}"

    @property
    def process(self) -> psutil.Process:
        """The running server."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def start(self) -> float:
        """Start the process; returns when that was, in seconds since 1970."""
        with (self.directory / "output").open("ab") as output:
            began = time.time()
            self._process = subprocess.Popen(
                [find_binary(), "-c", self._path], stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
        return began

    def kill(self) -> None:
        """SIGKILL, also to one that is stopped."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def link_ups(self, account: str, since: float) -> Iterator[float]:
        """When links of an account came up at or after a time, by this server's own log."""
        return (at for at, of, up in self._links() if up and of == account and at >= since)

    def link_downs(self, account: str, since: float) -> Iterator[float]:
        """When links of an account ended at or after a time, by this server's own log."""
        return (at for at, of, up in self._links() if not up and of == account and at >= since)

    async def raw(self) -> Client:
        """A client in the account of raw JetStream."""
        return await nats.connect(self.url, user="raw", password=_PASSWORD, **_forever())

    async def ours(self, identity: str, inbox: str) -> Client:
        """A client with one of the product's identities."""
        seed, prefix = str(self.keys[identity]), inbox_prefix(inbox)
        return await nats.connect(self.url, nkeys_seed=seed, inbox_prefix=prefix, **_forever())

    def _links(self) -> Iterator[tuple[float, str, bool]]:
        """When a link came up or ended, and that of which account it was."""
        accounts: dict[str, str] = {}
        for line in self._log():
            if (found := _LINK.match(line)) is None:
                continue
            at = datetime.strptime(found["at"], "%Y/%m/%d %H:%M:%S.%f").timestamp()
            if found["account"]:
                accounts[found["link"]] = found["account"]
            yield at, accounts.get(found["link"], ""), bool(found["account"])

    def _log(self) -> list[str]:
        assert self.config.log_file is not None
        files = sorted(self.directory.glob("nats-server.log*"), key=lambda one: one.stat().st_mtime)
        return [line for file in files for line in file.read_text(errors="replace").splitlines()]


@dataclass(slots=True)
class AgentProcess:
    """The product's agent: one `petiole run` beside a server that it does not own."""

    directory: Path
    toml: str
    admin_port: int
    http_port: int = 0
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns when it is ready. Raises `RuntimeError`."""
        (self.directory / "petiole.toml").write_text(self.toml)
        self._process = started(self.directory)
        wait_ready(self._process, self.directory, self.admin_port, _START_SECONDS, 0.05)

    @property
    def process(self) -> psutil.Process:
        """The running agent."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def kill(self) -> None:
        """End it by SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def status(self) -> dict[str, Any]:
        """What `/status` shows, empty where nothing answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/status", timeout=2) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return {}
        return found


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
        """End every process."""
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
    profile: Literal["normal", "thin"] = "normal",
) -> Iterator[LinkWorld]:
    """The servers and agents in a directory; what is started ends with the context. Leaves dial the proxy,
    which leads to the hub's `leaf_listen`, or the hub itself. A leaf's streams hold `stream` bytes each."""
    listen = leaf_listen or f"127.0.0.1:{free_port()}"
    dialled = listen if proxy is None else f"{proxy.host}:{proxy.port}"
    users = []
    for domain in domains:
        link = directory / domain / "keys" / "link.nk"
        users.append(LeafUser(domain, ensure_key(link), classes))
    servers = _hub(directory / "hub", listen, users, aggregates)
    for user in users:
        servers.leaves[user.domain] = server = _leaf(
            directory / user.domain, dialled, user, LinkConfig(profile=profile).ping_seconds
        )
        servers.agents[user.domain] = _leaf_agent(server, user, linger, stream, profile)
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


def _leaf_agent(server: Server, user: LeafUser, linger: str, stream: str, profile: str) -> AgentProcess:
    admin, http = free_port(), free_port()
    classes = "".join(f'[[class]]\nname = "{cls}"\nmax_bytes = "{stream}"\n' for cls in user.classes)
    toml = (
        _toml(server, "leaf", user.domain, "agent", admin)
        + classes
        + f"""
[link]
profile = "{profile}"

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


def _with_raw(config: ServerConfig) -> str:
    text = _once(render(config), "accounts: {\n", _RAW_ACCOUNT)
    if isinstance(config, LeafConfig):
        dialled = config.hub_urls[0].removeprefix("nats-leaf://")
        text = _once(text, "remotes: [\n", _RAW_REMOTE % f"nats-leaf://raw:{_PASSWORD}@{dialled}")
    return text


def _once(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the configuration"
    return text.replace(old, new)


def _forever() -> dict[str, Any]:
    return {
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": _RECONNECT_SECONDS,
        "error_cb": _ignore,
    }


async def _ignore(_: Exception) -> None:
    """Faults are what is measured; the library would print each."""
