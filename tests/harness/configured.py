"""Servers from configurations written by hand: one server, and a hub with leaves whose users may do
everything, as those of an operator who runs `server = "external"`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats
from nats.aio.client import Client

from agent.base.files import private_directory, write_private
from agent.base.nats_server import find_binary
from agent.config.keys import ensure_key, seed_line
from agent.contract import inbox_prefix
from agent.demo.loopback import LoopbackProxy, free_port
from agent.jetstream.connection import CancellableClient
from agent.server.child import Watched, greeting, reap, spawn
from agent.server.render import LINK_INCLUDE
from tests.harness.declared import End
from tests.harness.servers import Leaf
from tests.harness.wait import until

ONE_ACCOUNT = "ACC {{ jetstream: enabled, users: [ {{ nkey: {key} }} ] }}"
_CLOSE_SECONDS = 2.0
_ROGUE = """
server_name: rogue
listen: "127.0.0.1:{port}"
jetstream {{ domain: "{domain}", store_dir: "{directory}/store", max_file_store: 100MB }}
leafnodes {{ remotes [ {{ urls: ["{url}"], account: PETIOLE, include "{include}" }} ] }}
accounts {{ PETIOLE {{ jetstream: enabled, users: [ {{ user: owner, password: owner }} ] }} }}
"""


class ConfiguredServer:
    """A server that runs in `directory` with the configuration `text`, which listens on `port`."""

    def __init__(self, directory: Path, name: str, port: int, text: str, binary: Path | None = None) -> None:
        self.directory, self.name, self.port = directory, name, port
        self._binary = binary or find_binary()
        self._configuration = directory / "server.conf"
        directory.mkdir(parents=True, exist_ok=True)
        self._configuration.write_text(text)
        self._process: Watched | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What the server has said since it was started."""
        return (self.directory / "out").read_text()

    async def start(self) -> None:
        """Run the server; again after `kill`, with the same store."""
        command = [str(self._binary), "-c", str(self._configuration)]
        self._process = Watched(spawn(command, self.directory, self.directory / "out"))

        async def answers() -> bool:
            assert self._process is not None
            assert not self._process.ended.is_set(), f"{self.name} has ended: {self.log}"
            return await greeting(("127.0.0.1", self.port)) is not None

        await until(answers, f"{self.name} answers")

    async def reload(self) -> None:
        """Have the server read its files again; returns when it has."""
        assert self._process is not None
        seen = len(self.log)
        self._process.signal(signal.SIGHUP)

        def reloaded() -> bool:
            said = self.log[seen:]
            assert "Failed to reload" not in said, said
            return "Reloaded server configuration" in said

        await until(reloaded, f"{self.name} has reloaded")

    async def kill(self) -> None:
        """End the server by SIGKILL."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            await self._process.ended.wait()
            reap(self._process.pid)
            self._process = None


async def closed(client: Client) -> None:
    """End a client, whatever state its server is in."""
    # To close waits for a server that may be gone by now, and nats-py 2.16 loses a cancellation of its
    # reconnect now and then, after which it never ends.
    client.options["max_reconnect_attempts"] = 1
    with contextlib.suppress(TimeoutError, asyncio.CancelledError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()


class OpenServer(ConfiguredServer):
    """One server of a domain; `accounts` is the inside of its accounts block, with `{key}` for the public key
    of `seed` and `{other}` for that of `other_seed`."""

    def __init__(self, directory: Path, domain: str, accounts: str, leafnodes: str) -> None:
        self.seed, self.other_seed = directory / "keys" / "one", directory / "keys" / "other"
        names = {"key": ensure_key(self.seed), "other": ensure_key(self.other_seed)}
        port = free_port()
        text = (
            f'server_name: "{domain}-open"\nlisten: "127.0.0.1:{port}"\nping_interval: "5s"\n'
            f'jetstream {{ domain: "{domain}", store_dir: "{directory}/store", max_file_store: 4GB }}\n'
            f"leafnodes {{ {leafnodes} }}\naccounts {{ {accounts.format(**names)} }}\n"
        )
        super().__init__(directory, f"the server of {domain}", port, text)

    async def end(self, stack: AsyncExitStack, seed: Path | None = None) -> End:
        """This server's JetStream, as the user of a seed."""
        client = CancellableClient()
        await client.connect(
            self.url,
            nkeys_seed=str(seed or self.seed),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            error_cb=_quiet,
        )
        stack.push_async_callback(closed, client)
        return End(client)


class OpenServers:
    """A hub and leaves, linked through proxies; `ends` by domain."""

    def __init__(self, hub: OpenServer) -> None:
        self.hub = hub
        self.leaves: dict[str, OpenServer] = {}
        self.proxies: dict[str, LoopbackProxy] = {}
        self.ends: dict[str, End] = {}


@asynccontextmanager
async def open_servers(
    directory: Path, *domains: str, accounts: str = ONE_ACCOUNT
) -> AsyncIterator[OpenServers]:
    """A hub whose accounts are these, and a leaf for every domain, bound to the account ACC; all of it ends
    with the context."""
    async with AsyncExitStack() as stack:
        leaf_port = free_port()
        users = "authorization { user: leaf, password: leaf, account: ACC }"
        hub = OpenServer(
            directory / "hub",
            "hub",
            accounts,
            f'listen: "127.0.0.1:{leaf_port}", no_advertise: true, {users}',
        )
        stack.push_async_callback(hub.kill)
        await hub.start()
        servers = OpenServers(hub)
        servers.ends["hub"] = await hub.end(stack)
        for domain in domains:
            proxy = LoopbackProxy(leaf_port)
            await proxy.start()
            stack.push_async_callback(proxy.stop)
            remote = f'{{ urls: ["nats-leaf://leaf:leaf@127.0.0.1:{proxy.port}"], account: ACC }}'
            leaf = OpenServer(directory / domain, domain, ONE_ACCOUNT, f"remotes: [ {remote} ]")
            stack.push_async_callback(leaf.kill)
            await leaf.start()
            servers.leaves[domain], servers.proxies[domain] = leaf, proxy
            servers.ends[domain] = await leaf.end(stack)
        yield servers


@asynccontextmanager
async def rogue_server(leaf: Leaf, directory: Path) -> AsyncIterator[Client]:
    """A server that links with the key of `leaf` and lets its owner do all; the owner's client."""
    private_directory(directory)
    write_private(directory / LINK_INCLUDE, seed_line("nkey", leaf.config.link_key_file).encode())
    port, url = free_port(), leaf.config.hub_urls[0]
    text = _ROGUE.format(port=port, domain=leaf.domain, directory=directory, url=url, include=LINK_INCLUDE)
    server = ConfiguredServer(directory, "the rogue server", port, text)
    try:
        await server.start()
        inbox = inbox_prefix(leaf.domain)
        client = await nats.connect(f"nats://owner:owner@127.0.0.1:{port}", inbox_prefix=inbox)
        yield client
        await client.close()
    finally:
        await server.kill()


async def _quiet(_: Exception) -> None:
    return
