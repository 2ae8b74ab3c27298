"""Real servers for tests: a hub and leaves, run from the rendered configurations with keys of their own.

Each identity connects with its own key and inbox, so that what a test may do is what the product may do.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from msgspec.structs import replace
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NoAnswerError

from agent.config.keys import ensure_key
from agent.contract import DEFAULT_CLASS, HOME, aggregate, inbox_prefix, server_name
from agent.demo.loopback import LoopbackProxy, free_port
from agent.jetstream.connection import CancellableClient
from agent.server.permissions import LinkRights
from agent.server.process import EmbeddedServer
from agent.server.values import HubConfig, LeafConfig, LeafUser, ServerConfig, address_of
from tests.harness.wait import until

_STORE = 2 * 1024**3
_LAST_WORDS = 30
_HUB_KEYS = ("registrar", "registrar_system", "jobs")
_LEAF_KEYS = ("agent", "agent_system", "device")


class LinkProxy(Protocol):
    """What stands between a leaf and its hub and can be broken: `Proxy`, or `Line` of `tests.faults`."""

    host: str
    port: int

    def cut(self) -> None:
        """Break every connection with a reset and refuse new ones."""

    def stall(self) -> None:
        """Let nothing pass and close nothing."""

    def restore(self) -> None:
        """Let everything through again."""


def copy_running(store: Path, copy: Path) -> None:
    """Copy what a running server stores, as its disk has it: nats-server replaces files meanwhile, each by a
    `.tmp` that takes its name, so it is copied again when one was gone."""
    while True:
        try:
            shutil.copytree(store, copy, ignore=shutil.ignore_patterns("*.tmp"))
        except shutil.Error:
            shutil.rmtree(copy)
        else:
            return


def _is_stopped(thread: Path) -> bool:
    """Whether a thread under /proc stands still (proc(5), `stat`)."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"


class Node:
    """One server and the clients that a test connected to it."""

    def __init__(self, config: ServerConfig, directory: Path, keys: dict[str, Path], inboxes: dict[str, str]):
        self.config = config
        self.directory = directory
        self.keys = keys
        self.server = EmbeddedServer(config, directory)
        self.errors: list[Exception] = []
        self._inboxes = inboxes
        self._clients: list[Client] = []

    @property
    def url(self) -> str:
        """Where clients connect."""
        return self.server.url

    @property
    def port(self) -> int:
        """The port of `url`."""
        return address_of(self.config.listen)[1]

    async def start(self) -> None:
        """Run the server; again after `kill` or `stop`, with the same store and ports."""
        await self.server.start()

    async def start_with(self, **changed: Any) -> None:
        """Stop the server and run it with these fields of its configuration."""
        await self.stop()
        self.config = replace(self.config, **changed)
        self.server = EmbeddedServer(self.config, self.directory)
        await self.start()

    async def kill(self) -> None:
        """End the server by SIGKILL; returns when it is gone."""
        self._signal(signal.SIGKILL)
        await until(lambda: self.server.pid is None, "the server is gone")

    def pause(self) -> None:
        """Freeze the server (SIGSTOP); returns once all of its threads stand still."""
        self._signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self.server.pid}/task")
        while not all(_is_stopped(thread) for thread in threads.iterdir()):
            time.sleep(0.001)

    def resume(self) -> None:
        """Let a frozen server go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    async def stop(self) -> None:
        """End the server in good order."""
        if self.server.pid is not None:
            self.resume()
        await self.server.stop()

    async def back_up(self, copy: Path) -> None:
        """Copy the store, as a backup does: while the server is down."""
        await self.stop()
        await asyncio.to_thread(shutil.copytree, self.config.store_dir, copy)
        await self.start()

    async def restore(self, copy: Path) -> None:
        """Replace the store with an older copy, after a crash."""
        await self.kill()
        await asyncio.to_thread(shutil.rmtree, self.config.store_dir)
        await asyncio.to_thread(shutil.copytree, copy, self.config.store_dir)
        await self.start()

    async def wipe(self) -> None:
        """Lose the store in a crash."""
        await self.kill()
        await asyncio.to_thread(shutil.rmtree, self.config.store_dir)
        await self.start()

    async def connect(self, identity: str, **options: Any) -> Client:
        """A client with the key and the inbox of an identity; what it is refused is kept in `errors`."""

        async def note(error: Exception) -> None:
            self.errors.append(error)

        client = CancellableClient()
        await client.connect(
            **{
                "servers": self.url,
                "nkeys_seed": str(self.keys[identity]),
                "inbox_prefix": self._inboxes[identity],
                "max_reconnect_attempts": -1,
                "reconnect_time_wait": 0.1,
                "error_cb": note,
                **options,
            }
        )
        self._clients.append(client)
        return client

    async def close(self) -> None:
        """Close the clients and end the server, whatever state they are in; its last words are printed, for
        pytest shows them of a test that fails."""
        path = self.directory / "nats-server.log"
        if path.exists():
            words = path.read_text(errors="replace").splitlines()[-_LAST_WORDS:]
            print(f"-- {path}", *words, sep="\n")
        for client in self._clients:
            # nats-py 2.16 loses a cancellation of its reconnect now and then, and then it never ends.
            client.options["max_reconnect_attempts"] = 1
            with suppress(OSError):  # it writes to a server that was killed
                await client.close()
        await self.stop()

    def _signal(self, number: signal.Signals) -> None:
        pid = self.server.pid
        assert pid is not None, "the server does not run"
        os.kill(pid, number)


class Hub(Node):
    """The hub: identities `registrar`, `registrar_system`, `jobs`."""

    config: HubConfig

    @property
    def leaf_port(self) -> int:
        """Where leaves dial."""
        return address_of(self.config.leaf_listen)[1]


class Leaf(Node):
    """A leaf: identities `agent`, `agent_system`, `device`. `proxy` stands between it and the hub."""

    config: LeafConfig

    def __init__(
        self,
        config: LeafConfig,
        directory: Path,
        keys: dict[str, Path],
        inboxes: dict[str, str],
        proxy: LinkProxy,
    ):
        super().__init__(config, directory, keys, inboxes)
        self.proxy = proxy
        self._system: Client | None = None

    @property
    def domain(self) -> str:
        """The leaf's domain."""
        return self.config.domain

    async def linked(self) -> bool:
        """Whether the leaf's server has its link to the hub."""
        if self._system is None:
            self._system = await self.connect("agent_system")
        return bool((await ask(self._system, "$SYS.REQ.SERVER.PING.LEAFZ"))["data"].get("leafs"))

    async def wait_linked(self, linked: bool = True) -> None:
        """Return when the link is up, or down for `linked=False`."""

        async def reached() -> bool:
            return await self.linked() is linked

        await until(reached, f"the link of {self.domain} is {'up' if linked else 'down'}")


class ServerPair:
    """A hub and its leaves, running and linked."""

    def __init__(self, hub: Hub, leaves: dict[str, Leaf]) -> None:
        self.hub = hub
        self.leaves = leaves

    @property
    def leaf(self) -> Leaf:
        """The first leaf."""
        return next(iter(self.leaves.values()))


@asynccontextmanager
async def open_server_pair(
    directory: Path,
    *domains: str,
    classes: tuple[str, ...] = (DEFAULT_CLASS,),
    aggregates: tuple[str, ...] = (aggregate(0),),
    proxy: LinkProxy | None = None,
    leaf_listen: str | None = None,
    takes: tuple[str, ...] = (),
    gives: tuple[str, ...] = (),
    links: Mapping[str, tuple[LinkRights, ...]] = MappingProxyType({}),
    tenants: Mapping[str, str] = MappingProxyType({}),
    cell: str = HOME,
) -> AsyncIterator[ServerPair]:
    """A hub with a leaf for every domain; all of it ends with the context. Each leaf has a proxy of its own
    before the hub, unless a `proxy` is given, which leads to the hub's `leaf_listen`. Every leaf `takes` and
    `gives` these streams; `links` are the declared links of each domain, `tenants` says whose it is. All are
    in this `cell`."""
    async with AsyncExitStack() as stack:
        keys = {domain: directory / domain / "keys" / "link" for domain in domains}
        users = tuple(
            LeafUser(domain, ensure_key(key), classes, takes, gives, tenants.get(domain, ""), cell)
            for domain, key in keys.items()
        )
        hub = make_hub(directory / "hub", users, aggregates, leaf_listen, links.get("hub", ()), cell)
        stack.push_async_callback(hub.close)
        await hub.start()
        leaves = {}
        for domain, link in keys.items():
            wire = proxy or await _proxy(stack, hub)
            leaves[domain] = make_leaf(
                directory / domain, domain, classes, wire, link, links=links.get(domain, ())
            )
            stack.push_async_callback(leaves[domain].close)
            await leaves[domain].start()
        for leaf in leaves.values():
            await leaf.wait_linked()
        yield ServerPair(hub, leaves)


async def _proxy(stack: AsyncExitStack, hub: Hub) -> LoopbackProxy:
    proxy = LoopbackProxy(hub.leaf_port)
    await proxy.start()
    stack.push_async_callback(proxy.stop)
    return proxy


async def ask(client: Client, subject: str, body: object = None, seconds: float = 30.0) -> dict[str, Any]:
    """One request and its JSON answer: the raw API of JetStream or of the system account."""
    payload = b"" if body is None else json.dumps(body).encode()
    answer: dict[str, Any] = json.loads((await client.request(subject, payload, timeout=seconds)).data)
    return answer


async def api(client: Client, subject: str, body: object = None) -> dict[str, Any]:
    """Like `ask` below `$JS.API.`, and an error in the answer fails the test."""
    answer = await ask(client, f"$JS.API.{subject}", body)
    assert "error" not in answer, (subject, answer["error"])
    return answer


async def is_answered(client: Client, subject: str) -> bool:
    """Whether anybody answers a request."""
    try:
        await client.request(subject, b"", timeout=1)
    except (NoRespondersError, NoAnswerError):
        return False
    return True


def _keys(directory: Path, names: tuple[str, ...]) -> tuple[dict[str, Path], dict[str, str]]:
    paths = {name: directory / "keys" / name for name in names}
    return paths, {name: ensure_key(path) for name, path in paths.items()}


def make_hub(
    directory: Path,
    users: tuple[LeafUser, ...] = (),
    aggregates: tuple[str, ...] = (aggregate(0),),
    leaf_listen: str | None = None,
    links: tuple[LinkRights, ...] = (),
    cell: str = HOME,
) -> Hub:
    """A hub that is not started yet, with an aggregate in a further `cell`, too. The registrar's identity
    there is `registrar_<cell>`."""
    in_cell = f"registrar_{cell}"
    paths, public = _keys(directory, (*_HUB_KEYS, *((in_cell,) if cell else ())))
    config = HubConfig(
        server_name=server_name("hub", "test"),
        listen=f"127.0.0.1:{free_port()}",
        leaf_listen=leaf_listen or f"127.0.0.1:{free_port()}",
        store_dir=directory / "store",
        max_file_store=_STORE,
        leaves=users,
        aggregates=(*aggregates, aggregate(0, cell)) if cell else aggregates,
        cells={cell: public[in_cell]} if cell else {},
        links=links,
        registrar=public["registrar"],
        registrar_system=public["registrar_system"],
        jobs=public["jobs"],
    )
    inboxes = {name: "jobs" if name == "jobs" else "registrar" for name in paths}
    return Hub(config, directory, paths, {name: inbox_prefix(who) for name, who in inboxes.items()})


def make_leaf(
    directory: Path,
    domain: str,
    classes: tuple[str, ...],
    proxy: LinkProxy,
    link: Path,
    machine: str = "test",
    links: tuple[LinkRights, ...] = (),
    heard: tuple[str, ...] = (),
) -> Leaf:
    """A leaf that is not started yet, dialling the hub through `proxy`; local programs may publish to the
    agent on `heard`."""
    paths, public = _keys(directory, _LEAF_KEYS)
    config = LeafConfig(
        server_name=server_name(domain, machine),
        domain=domain,
        classes=classes,
        links=links,
        heard=heard,
        listen=f"127.0.0.1:{free_port()}",
        store_dir=directory / "store",
        max_file_store=_STORE,
        hub_urls=(f"nats-leaf://{proxy.host}:{proxy.port}",),
        link_key_file=link,
        agent=public["agent"],
        agent_system=public["agent_system"],
        device=public["device"],
    )
    inboxes = {"agent": domain, "agent_system": domain, "device": "device"}
    return Leaf(config, directory, paths, {name: inbox_prefix(who) for name, who in inboxes.items()}, proxy)
