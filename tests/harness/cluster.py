"""A hub of three servers in a cluster, from the rendered configuration and a block for the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from nats.errors import Error as NatsError

from agent.config.keys import ensure_key
from agent.contract import aggregate, inbox_prefix
from agent.demo.loopback import free_port
from agent.server import permissions, workspace
from agent.server.render import pieces
from agent.server.values import LeafUser, ServerConfig
from tests.harness.servers import Hub, Leaf, LinkProxy, ServerPair, ask, is_answered, make_hub, make_leaf
from tests.harness.wait import until

_BLOCK = """
cluster: {{ name: hub, listen: "127.0.0.1:{port}", routes: [{routes}] }}
"""


class Cluster:
    """Three hub servers and one leaf that dials them all."""

    def __init__(self, hubs: list[Hub], leaf: Leaf) -> None:
        self.hubs = {hub.config.server_name: hub for hub in hubs}
        self.leaf = leaf
        self.servers = ServerPair(hubs[0], {leaf.domain: leaf})

    async def placement(self, stream: str) -> dict[str, Any]:
        """Who leads a stream and who follows, as a server says; empty while none knows."""
        hub = next(one for one in self.hubs.values() if one.server.pid is not None)
        client = await hub.connect("registrar")
        try:
            return (await ask(client, f"$JS.API.STREAM.INFO.{stream}", seconds=1)).get("cluster") or {}
        except NatsError:
            return {}
        finally:
            await client.close()

    async def leader(self) -> str:
        """The server that leads the aggregate, "" while none does."""
        return str((await self.placement(aggregate(0))).get("leader", ""))

    async def step_down(self) -> None:
        """Let another server lead the aggregate."""
        before = await self.leader()
        assert before, "nobody leads the aggregate"
        client = await self.hubs[before].connect("registrar")
        await ask(client, f"$JS.API.STREAM.LEADER.STEPDOWN.{aggregate(0)}")
        await client.close()

        async def moved() -> bool:
            return await self.leader() not in ("", before)

        await until(moved, "another server leads")

    async def leaf_at(self) -> str:
        """The hub server that the leaf is linked to, "" while it is linked to none."""
        system = await self.leaf.connect("agent_system")
        try:
            links = (await ask(system, "$SYS.REQ.SERVER.PING.LEAFZ"))["data"].get("leafs") or []
        finally:
            await system.close()
        return str(links[0]["name"]) if links else ""

    async def apart(self) -> None:
        """Let the aggregate be led by another server than that to which the leaf is linked."""
        while await self.leader() in ("", await self.leaf_at()):
            await self.step_down()


@asynccontextmanager
async def open_cluster(
    directory: Path, monkeypatch: pytest.MonkeyPatch, proxy: LinkProxy
) -> AsyncIterator[Cluster]:
    """The cluster, running, its leaf linked; all of it ends with the context."""
    link = directory / "edge-1" / "keys" / "link"
    first = make_hub(directory / "a", (LeafUser("edge-1", ensure_key(link)),))
    ports = {f"hub-{letter}": free_port() for letter in "abc"}
    routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports.values())

    def rendered(config: ServerConfig) -> Iterator[str]:
        yield from pieces(config)
        if (port := ports.get(config.server_name)) is not None:
            yield _BLOCK.format(port=port, routes=routes)

    monkeypatch.setattr(workspace, "pieces", rendered)
    monkeypatch.setattr(permissions, "_STREAM_VERBS", (*permissions._STREAM_VERBS, "LEADER.STEPDOWN"))
    inboxes = {"registrar": "registrar", "registrar_system": "registrar", "jobs": "jobs"}
    hubs = [
        Hub(
            replace(
                first.config,
                server_name=name,
                listen=f"127.0.0.1:{free_port()}",
                leaf_listen=f"127.0.0.1:{free_port()}",
                store_dir=directory / name / "store",
            ),
            directory / name,
            first.keys,
            {one: inbox_prefix(who) for one, who in inboxes.items()},
        )
        for name in ports
    ]
    async with AsyncExitStack() as stack:
        for hub in hubs:
            stack.push_async_callback(hub.close)
        await asyncio.gather(*(hub.start() for hub in hubs))
        registrar = await hubs[0].connect("registrar")
        await until(lambda: is_answered(registrar, "$JS.API.STREAM.INFO.COMMANDS"), "JetStream has a leader")
        stack.push_async_callback(_disconnect, hubs)
        leaf = make_leaf(directory / "edge-1", "edge-1", ("normal",), proxy, link)
        urls = tuple(f"nats-leaf://127.0.0.1:{hub.leaf_port}" for hub in hubs)
        leaf = Leaf(
            replace(leaf.config, hub_urls=urls), directory / "edge-1", leaf.keys, leaf._inboxes, proxy
        )
        stack.push_async_callback(leaf.close)
        await leaf.start()
        await leaf.wait_linked()
        yield Cluster(hubs, leaf)


async def _disconnect(hubs: list[Hub]) -> None:
    """Close all clients while every server is there: one that is just changing over leaves a socket open."""
    for hub in hubs:
        for client in hub._clients:
            await client.close()
