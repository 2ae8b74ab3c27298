"""The hub and the leaf of NATS' document on JetStream and leaf nodes, configured as it configures them: users
with passwords, one `accounts.conf` for both. What differs is where they listen, and a proxy between them that
can be cut."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client

from agent.contract import api_prefix
from agent.demo.loopback import LoopbackProxy, free_port
from agent.jetstream import JetStream
from tests.harness.configured import ConfiguredServer, closed
from tests.harness.servers import is_answered
from tests.harness.wait import until

FIRST_SECONDS, SILENCE_SECONDS = 3.0, 0.3
SIDES = ("hub", "leaf")
ACCOUNTS = """
accounts {
    SYS: {
        users: [{user: admin, password: admin}]
    },
    ACC: {
        users: [{user: acc, password: acc}],
        jetstream: enabled
    }
}
system_account: SYS
"""
SERVER = """
listen: "127.0.0.1:{port}"
server_name: {name}
{jetstream}
leafnodes {{ {leafnodes} }}
include ./accounts.conf
{extra}
"""
TOGETHER = ("SYS", "ACC")
"""The accounts that the document links, for its demonstration."""


class Clients:
    """Servers by name, and the clients that a test has there."""

    def __init__(self, servers: Mapping[str, ConfiguredServer]) -> None:
        self.servers = servers
        self._clients: dict[tuple[str, str], Client] = {}

    async def connect(self, server: str, user: str = "acc") -> Client:
        """A user's client at one of the servers, the same for all who ask."""
        if (server, user) not in self._clients:
            self._clients[server, user] = await nats.connect(
                self.servers[server].url,
                user=user,
                password=user,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.1,
                error_cb=_quiet,
            )
        return self._clients[server, user]

    async def js(self, server: str, domain: str = "", *, user: str = "acc") -> JetStream:
        """The JetStream that a client at one of the servers reaches, without a domain or by the prefix of
        one."""
        prefix = api_prefix(domain) if domain else "$JS.API"
        return JetStream(await self.connect(server, user), prefix)

    async def close(self) -> None:
        """End the clients."""
        for client in self._clients.values():
            await closed(client)


class Seed(Clients):
    """The hub and the leaf, which dials it through `proxy`."""

    def __init__(self, hub: ConfiguredServer, leaf: ConfiguredServer, proxy: LoopbackProxy) -> None:
        super().__init__({"hub": hub, "leaf": leaf})
        self.proxy = proxy

    async def linked(self, linked: bool = True) -> None:
        """Return when the hub's account ACC reaches the leaf's JetStream, or does not."""
        client = await self.connect("hub")

        async def reached() -> bool:
            return await is_answered(client, "$JS.leaf.API.INFO") is linked

        await until(reached, f"hub and leaf are {'linked' if linked else 'apart'}")

    async def share(self, accounts: str) -> None:
        """Give both servers other accounts, by a reload."""
        for server in self.servers.values():
            (server.directory / "accounts.conf").write_text(accounts)
            await server.reload()
        await self.linked()


@asynccontextmanager
async def open_seed(
    directory: Path, *, accounts: str = ACCOUNTS, together: tuple[str, ...] = TOGETHER, extra: str = ""
) -> AsyncIterator[Seed]:
    """Both servers, running and linked in the accounts `together`; `extra` is added to both configurations.
    All of it ends with the context."""
    async with AsyncExitStack() as stack:
        leaf_port = free_port()
        listen = f'listen: "127.0.0.1:{leaf_port}", no_advertise: true'
        hub = configured(directory / "hub", "hub-server", "hub", listen, accounts, extra)
        stack.push_async_callback(hub.kill)
        await hub.start()
        proxy = LoopbackProxy(leaf_port)
        await proxy.start()
        stack.push_async_callback(proxy.stop)
        remotes = remote(proxy.port, *together)
        leaf = configured(directory / "leaf", "leaf-server", "leaf", remotes, accounts, extra)
        stack.push_async_callback(leaf.kill)
        await leaf.start()
        seed = Seed(hub, leaf, proxy)
        stack.push_async_callback(seed.close)
        await seed.linked()
        yield seed


def configured(
    directory: Path,
    name: str,
    domain: str,
    leafnodes: str,
    accounts: str = ACCOUNTS,
    extra: str = "",
    *,
    hint: str = "",
    jetstream: bool = True,
) -> ConfiguredServer:
    """A server as the document writes it, not started yet; without a domain for "". `hint` is its
    JetStream's `extension_hint`."""
    port = free_port()
    given = {"store_dir": f'"{directory}/store"', "domain": domain, "extension_hint": hint}
    settings = ", ".join(f"{key}: {value}" for key, value in given.items() if value)
    text = SERVER.format(
        port=port,
        name=name,
        jetstream=f"jetstream {{ {settings} }}" if jetstream else "",
        leafnodes=leafnodes,
        extra=extra,
    )
    server = ConfiguredServer(directory, name, port, text)
    (directory / "accounts.conf").write_text(accounts)
    return server


def remote(port: int, *accounts: str) -> str:
    """The leaf's side of its link, an account after the other."""
    rows = []
    for name in accounts:
        user = "admin" if name == "SYS" else name.lower()
        rows.append(f'{{ urls: ["nats-leaf://{user}:{user}@127.0.0.1:{port}"], account: "{name}" }}')
    return f"remotes = [ {', '.join(rows)} ]"


async def answers(client: Client, subject: str) -> list[dict[str, Any]]:
    """All answers to one request, until nobody has answered for a while."""
    inbox = client.new_inbox()
    heard = await client.subscribe(inbox)
    await client.publish(subject, reply=inbox)
    rows = []
    try:
        seconds = FIRST_SECONDS
        while True:
            if data := (await heard.next_msg(timeout=seconds)).data:  # else: no responders
                rows.append(json.loads(data))
            seconds = SILENCE_SECONDS
    except TimeoutError:
        return rows
    finally:
        await heard.unsubscribe()


async def _quiet(_: Exception) -> None:
    return
