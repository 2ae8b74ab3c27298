"""What a configuration adds to the servers' does what nats-server says of it: TLS, websockets, encryption."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.config.keys import ensure_key
from agent.contract import new_epoch
from agent.demo.loopback import LoopbackProxy, free_port
from agent.server.values import LeafUser
from tests.harness.certificates import self_signed
from tests.harness.servers import Hub, Leaf, ask, make_hub, make_leaf
from tests.harness.streams import AGGREGATE, held, make_aggregate, make_leaf_stream


@asynccontextmanager
async def linked(
    directory: Path, hub_extra: dict[str, Any], remote: dict[str, Any], scheme: str, port: int | None = None
) -> AsyncIterator[tuple[Hub, Leaf]]:
    """A hub and a leaf whose configurations have these additions, linked through a URL of this scheme."""
    key = directory / "edge-1" / "keys" / "link"
    hub = make_hub(directory / "hub", (LeafUser("edge-1", ensure_key(key)),))
    hub = Hub(replace(hub.config, extra=hub_extra), hub.directory, hub.keys, hub._inboxes)
    proxy = LoopbackProxy(port or hub.leaf_port)
    leaf = make_leaf(directory / "edge-1", "edge-1", ("normal",), proxy, key)
    await proxy.start()
    url = f"{scheme}://{proxy.host}:{proxy.port}"
    config = replace(leaf.config, hub_urls=(url,), remote=remote)
    leaf = Leaf(config, leaf.directory, leaf.keys, leaf._inboxes, proxy)
    try:
        await hub.start()
        await leaf.start()
        await leaf.wait_linked()
        yield hub, leaf
    finally:
        await leaf.close()
        await proxy.stop()
        await hub.close()


async def flows(hub: Hub, leaf: Leaf) -> None:
    """A reading gets from the leaf to the hub."""
    agent, registrar, epoch = await leaf.connect("agent"), await hub.connect("registrar"), new_epoch()
    await make_leaf_stream(agent, "edge-1", epoch)
    await agent.jetstream().publish("tel.edge-1.normal.pump.bar", b"in the clear?")
    await make_aggregate(registrar, {"edge-1": epoch})
    await held(registrar, AGGREGATE, 1)


async def test_a_link_under_tls_with_the_handshake_first_and_a_store_that_is_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_KEY", "correct-horse-battery-staple")
    cert, key = self_signed(tmp_path)
    tls = {"cert_file": str(cert), "key_file": str(key), "handshake_first": True}
    extra = {
        "leafnodes": {"tls": tls, "compression": "s2_best"},
        "jetstream": {"cipher": "aes", "key": "$STORE_KEY"},
    }
    remote = {"tls": {"ca_file": str(cert), "handshake_first": True}, "compression": "s2_best"}
    async with linked(tmp_path, extra, remote, "tls") as (hub, leaf):
        await flows(hub, leaf)
        stored = b"".join(path.read_bytes() for path in hub.config.store_dir.rglob("*.blk"))
        assert stored
        assert b"in the clear?" not in stored
        for written in ("nats-server.conf", "nats-server.log"):
            assert "battery" not in (hub.directory / written).read_text()


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_a_link_over_a_websocket(tmp_path: Path, scheme: str) -> None:
    port, (cert, key) = free_port(), self_signed(tmp_path)
    secured: dict[str, Any] = {"no_tls": True}
    if scheme == "wss":
        secured = {"tls": {"cert_file": str(cert), "key_file": str(key)}}
    extra = {"websocket": {"listen": f"127.0.0.1:{port}", **secured}}
    remote = {"tls": {"ca_file": str(cert)}} if scheme == "wss" else {}
    async with linked(tmp_path, extra, remote, scheme, port) as (hub, leaf):
        await flows(hub, leaf)


@pytest.mark.parametrize("asked", [None, "s2_fast"])
async def test_a_link_is_compressed_only_where_the_leafs_remote_asks_for_it(
    tmp_path: Path, asked: str | None
) -> None:
    remote = {"compression": asked} if asked else {}
    async with linked(tmp_path, {}, remote, "nats-leaf") as (hub, _):
        told = await ask(await hub.connect("registrar_system"), "$SYS.REQ.SERVER.PING.LEAFZ")
        (link,) = told["data"]["leafs"]
        assert link["compression"] == (asked or "off")
