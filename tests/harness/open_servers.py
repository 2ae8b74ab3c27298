"""Servers from configurations written by hand, whose users may do everything: the servers of somebody who
runs `server = "external"`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats

from agent.config.keys import ensure_key
from agent.demo.ports import free_port
from agent.demo.proxy import Proxy
from tests.harness.configured import ConfiguredServer, closed
from tests.harness.declared import End

ONE_ACCOUNT = "ACC {{ jetstream: enabled, users: [ {{ nkey: {key} }} ] }}"


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
        client = await nats.connect(
            self.url,
            nkeys_seed=str(seed or self.seed),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            error_cb=_quiet,
        )
        stack.push_async_callback(closed, client)
        return End(client)


class OpenWorld:
    """A hub and leaves, linked through proxies; `ends` by domain."""

    def __init__(self, hub: OpenServer) -> None:
        self.hub = hub
        self.leaves: dict[str, OpenServer] = {}
        self.proxies: dict[str, Proxy] = {}
        self.ends: dict[str, End] = {}


@asynccontextmanager
async def open_servers(
    directory: Path, *domains: str, accounts: str = ONE_ACCOUNT
) -> AsyncIterator[OpenWorld]:
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
        servers = OpenWorld(hub)
        servers.ends["hub"] = await hub.end(stack)
        for domain in domains:
            proxy = Proxy(leaf_port)
            await proxy.start()
            stack.push_async_callback(proxy.stop)
            remote = f'{{ urls: ["nats-leaf://leaf:leaf@127.0.0.1:{proxy.port}"], account: ACC }}'
            leaf = OpenServer(directory / domain, domain, ONE_ACCOUNT, f"remotes: [ {remote} ]")
            stack.push_async_callback(leaf.kill)
            await leaf.start()
            servers.leaves[domain], servers.proxies[domain] = leaf, proxy
            servers.ends[domain] = await leaf.end(stack)
        yield servers


async def _quiet(_: Exception) -> None:
    return
