"""Two servers that link through relays: TLS is theirs, and the leaf's server verifies the name of its hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from agent.base.metrics import Metrics
from agent.config.keys import ensure_key
from agent.contract import new_epoch
from agent.demo.loopback import LoopbackProxy, free_port
from agent.server.resume.hub import HubRelay
from agent.server.resume.leaf import LeafRelay
from agent.server.values import LeafUser
from tests.harness.certificates import Authority
from tests.harness.servers import Hub, Leaf, ask, make_hub, make_leaf
from tests.harness.streams import AGGREGATE, held, make_aggregate, make_leaf_stream
from tests.harness.wait import until

HOST = "127.0.0.1"


@asynccontextmanager
async def relayed(
    directory: Path, hub_extra: dict[str, Any], remote: dict[str, Any], url: str
) -> AsyncIterator[tuple[Hub, Leaf, LoopbackProxy, LeafRelay]]:
    """A hub and a leaf with their relays, and the line between these."""
    key = directory / "edge-1" / "keys" / "link"
    hub = make_hub(directory / "hub", (LeafUser("edge-1", ensure_key(key)),))
    hub = Hub(replace(hub.config, extra=hub_extra), hub.directory, hub.keys, hub._inboxes)
    metrics, listen, near = Metrics(), free_port(), free_port()
    line = LoopbackProxy(listen)
    leaf = make_leaf(directory / "edge-1", "edge-1", ("normal",), line, key)
    await line.start()
    remote = remote | {"proxy": {"url": f"http://{HOST}:{near}"}}
    config = replace(leaf.config, hub_urls=(url,), remote=remote)
    leaf = Leaf(config, leaf.directory, leaf.keys, leaf._inboxes, line)
    at_leaf = LeafRelay((HOST, near), [url], line.port, metrics)
    relays = HubRelay((HOST, listen), (HOST, hub.leaf_port), metrics), at_leaf
    tasks = [asyncio.create_task(relay.run()) for relay in relays]
    try:
        await hub.start()
        await leaf.start()
        yield hub, leaf, line, at_leaf
    finally:
        await leaf.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await line.stop()
        await hub.close()


def secured(directory: Path, host: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """TLS of a hub with a certificate for a host, and of a leaf that trusts its authority."""
    authority = Authority(directory)
    cert, key = authority.signed("hub", 3_600, host=host)
    tls = {"cert_file": str(cert), "key_file": str(key)}
    return {"leafnodes": {"tls": tls}}, {"tls": {"ca_file": str(authority.file)}}


async def test_a_link_under_tls_continues_over_cuts(tmp_path: Path) -> None:
    extra, remote = secured(tmp_path, "localhost")
    async with relayed(tmp_path, extra, remote, "tls://localhost:7422") as (hub, leaf, line, relay):
        await leaf.wait_linked()
        before, cuts = await _links(leaf), 0
        agent, registrar, epoch = await leaf.connect("agent"), await hub.connect("registrar"), new_epoch()
        await make_leaf_stream(agent, "edge-1", epoch)
        await make_aggregate(registrar, {"edge-1": epoch})
        for number in range(30):
            await agent.jetstream().publish("tel.edge-1.normal.pump.bar", f"{number}".encode())
            if number % 10 == 5:
                line.cut()
                line.restore()
                cuts += 1
                await until(partial(_has_bridged, relay, cuts), "the cut is bridged")
        await held(registrar, AGGREGATE, 30)
        assert await _links(leaf) == before


async def test_a_certificate_of_another_name_is_refused_through_the_relay(tmp_path: Path) -> None:
    extra, remote = secured(tmp_path, "other.example")
    async with relayed(tmp_path, extra, remote, "tls://localhost:7422") as (_, leaf, _, _):
        log = leaf.directory / "nats-server.log"
        await until(lambda: "not localhost" in log.read_text(), "the server names the wrong certificate")
        assert not await leaf.linked()


def _has_bridged(relay: LeafRelay, cuts: int) -> bool:
    return bool(relay.status()["bridged"] >= cuts)


async def _links(leaf: Leaf) -> list[int]:
    """The numbers of the links that the leaf's server has; a new link has another."""
    told = await ask(await leaf.connect("agent_system"), "$SYS.REQ.SERVER.PING.LEAFZ")
    return [link["id"] for link in told["data"]["leafs"]]
