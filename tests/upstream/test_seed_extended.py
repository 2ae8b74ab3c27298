"""NATS' document on JetStream and leaf nodes, step by step: a JetStream that is extended to a leaf because
neither has a domain, and the document's known issues. `docs/client.md` walks through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from nats.aio.client import Client

from agent.contract import api_prefix
from agent.demo.loopback import LoopbackProxy, free_port
from agent.jetstream import ApiError, JetStreamError
from tests.harness.configured import ConfiguredServer
from tests.harness.seed_servers import ACCOUNTS, Clients, answers, configured, remote
from tests.harness.streams import PatientJetStream
from tests.harness.wait import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSZ = "$SYS.REQ.SERVER.PING.JSZ"
NO_PEERS = 10005


class Extended(Clients):
    """Three servers of a cluster, a leaf of theirs, and clients at each."""

    def __init__(self, hubs: list[ConfiguredServer], leaf: ConfiguredServer, proxy: LoopbackProxy) -> None:
        super().__init__({one.name: one for one in [*hubs, leaf]})
        self.proxy = proxy

    async def js(self, server: str, domain: str = "", *, user: str = "acc") -> PatientJetStream:
        prefix = api_prefix(domain) if domain else "$JS.API"
        return PatientJetStream(await self.connect(server, user), prefix)

    async def size(self, size: int) -> None:
        """Return when so many servers are one JetStream, with a leader."""
        client = await self.connect("hub-0", "admin")

        async def grown() -> bool:
            rows = [row["data"].get("meta_cluster") or {} for row in await answers(client, JSZ)]
            return any(row.get("leader") and row.get("cluster_size") == size for row in rows)

        await until(grown, f"{size} servers are one JetStream")


@asynccontextmanager
async def open_extended(
    directory: Path, *, hint: str = "", domains: tuple[str, str, str] = ("", "", "")
) -> AsyncIterator[Extended]:
    """The cluster, its servers in these domains, and the leaf, which has none and whose JetStream has the
    `extension_hint`."""
    routed, leaf_port = [free_port() for _ in range(3)], free_port()
    routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in routed)
    async with AsyncExitStack() as stack:
        hubs = []
        for number, (port, domain) in enumerate(zip(routed, domains, strict=True)):
            listen = f'listen: "127.0.0.1:{leaf_port if number == 0 else free_port()}", no_advertise: true'
            block = f'cluster {{ name: hub, listen: "127.0.0.1:{port}", routes: [ {routes} ] }}'
            hubs.append(configured(directory / str(number), f"hub-{number}", domain, listen, ACCOUNTS, block))
            stack.push_async_callback(hubs[-1].kill)
        await asyncio.gather(*(one.start() for one in hubs))
        proxy = LoopbackProxy(leaf_port)
        await proxy.start()
        stack.push_async_callback(proxy.stop)
        leaf = configured(directory / "leaf", "leaf-server", "", remote(proxy.port, "SYS", "ACC"), hint=hint)
        stack.push_async_callback(leaf.kill)
        await leaf.start()
        extended = Extended(hubs, leaf, proxy)
        stack.push_async_callback(extended.close)
        yield extended


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def extended(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Extended]:
    """A cluster whose JetStream is extended to the leaf."""
    async with open_extended(tmp_path_factory.mktemp("extended"), hint="will_extend") as one:
        await one.size(4)
        yield one


@pytest.mark.parametrize("at", ["hub-1", "leaf-server"])
async def test_one_jetstream_places_a_stream_at_the_hub_or_at_the_leaf_from_either(
    extended: Extended, at: str
) -> None:
    js = await extended.js(at)
    for cluster in ("hub", "leaf-server"):
        name = f"{at}-{cluster}"
        config = {"name": name, "subjects": [name], "placement": {"cluster": cluster}}
        made = await js.api(f"STREAM.CREATE.{name}", config)
        assert (made["cluster"]["name"], made.get("domain", "")) == (cluster, "")
        for anywhere in ("hub-2", "leaf-server"):
            assert (await (await extended.js(anywhere)).stream_info(name)).config["placement"] == {
                "cluster": cluster
            }
            await (await extended.js(anywhere)).publish(name, b"hello world")
        assert (await js.stream_info(name)).messages == 2


async def test_an_extended_leaf_that_is_cut_off_stores_and_cannot_make_anything(extended: Extended) -> None:
    js = await extended.js("leaf-server")
    config = {"name": "here", "subjects": ["here"], "placement": {"cluster": "leaf-server"}}
    await js.api("STREAM.CREATE.here", config)
    extended.proxy.cut()
    try:
        for number in range(1, 4):
            assert await js.publish("here", b"") == number
        with pytest.raises(JetStreamError):
            await js.api(
                "STREAM.CREATE.later", {**config, "name": "later", "subjects": ["later"]}, timeout=0.5
            )
    finally:
        extended.proxy.restore()
    await extended.size(4)

    async def whole() -> bool:
        try:
            return (await (await extended.js("hub-1")).stream_info("here")).messages == 3
        except JetStreamError:
            return False

    await until(whole, "the hub sees what the leaf has stored")


async def test_without_the_hint_a_leaf_of_one_server_is_not_extended(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async with open_extended(tmp_path_factory.mktemp("alone"), hint="") as one:
        await one.size(3)
        config = {"name": "far", "subjects": ["far"], "placement": {"cluster": "leaf-server"}}
        with pytest.raises(ApiError) as refused:
            await (await one.js("hub-1")).api("STREAM.CREATE.far", config)
        assert refused.value.err_code == NO_PEERS
        assert "extension_hint: will_extend" in one.servers["leaf-server"].log


async def test_a_cluster_of_two_domains_is_found_in_part_and_replicates_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    domains = ("hub", "hub", "other")
    async with open_extended(tmp_path_factory.mktemp("mixed"), domains=domains) as one:
        await one.size(3)
        for name, domain, foreign in (("hub-0", "hub", "other"), ("hub-2", "other", "hub")):
            client = await one.connect(name)
            await until(partial(reached, client, domain), f"{domain} is reached from {name}")
            assert not await reached(client, foreign)
        config = {"name": "copied", "subjects": ["copied"], "num_replicas": 3}
        with pytest.raises(ApiError) as refused:
            await (await one.js("hub-0")).api("STREAM.CREATE.copied", config)
        assert refused.value.err_code == NO_PEERS


@asynccontextmanager
async def open_plain(
    directory: Path, hub_domain: str, domains: dict[str, str], *together: str, jetstream: bool = True
) -> AsyncIterator[Clients]:
    """One hub server and leaves of it by their names, each with its domain or without one for ""."""
    async with AsyncExitStack() as stack:
        port = free_port()
        listen = f'listen: "127.0.0.1:{port}", no_advertise: true'
        accounts = ACCOUNTS if jetstream else ACCOUNTS.replace("jetstream: enabled", "")
        servers = [
            configured(directory / "hub", "hub", hub_domain, listen, accounts, jetstream=jetstream),
            *(
                configured(directory / name, name, domain, remote(port, *together))
                for name, domain in domains.items()
            ),
        ]
        for one in servers:
            stack.push_async_callback(one.kill)
            await one.start()
        clients = Clients({one.name: one for one in servers})
        stack.push_async_callback(clients.close)
        yield clients


async def test_the_hub_that_is_to_be_extended_must_be_a_cluster_else_a_request_is_carried_out_twice(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("single")
    async with open_plain(directory, "", {"edge": ""}, "SYS", "ACC") as one:
        client = await one.connect("edge", "admin")

        async def together() -> bool:
            return len(await answers(client, JSZ)) == 2

        await until(together, "the system accounts are linked")
        await (await one.js("hub")).ensure_stream({"name": "made-at-the-hub", "subjects": ["made"]})

        async def twice() -> bool:
            return [name async for name in (await one.js("edge")).stream_names()] == ["made-at-the-hub"]

        await until(twice, "the leaf has made the stream as well")


@pytest.mark.parametrize(
    ("domain", "jetstream"), [("hub", True), ("", True), ("", False)], ids=["domain", "none", "no JetStream"]
)
async def test_leaves_of_two_domains_reach_each_other_and_a_hub_only_by_its_domain(
    tmp_path_factory: pytest.TempPathFactory, domain: str, jetstream: bool
) -> None:
    directory = tmp_path_factory.mktemp("two")
    leaves = {"edge-1": "edge-1", "edge-2": "edge-2"}
    async with open_plain(directory, domain, leaves, "ACC", jetstream=jetstream) as one:
        for near, far in (("edge-1", "edge-2"), ("edge-2", "edge-1")):
            client = await one.connect(near)
            await until(partial(reached, client, far), f"{far} is reached from {near}")
            assert [row["domain"] for row in await answers(client, "$JS.API.INFO")] == [near]
            assert [row["domain"] for row in await answers(client, "$JS.hub.API.INFO")] == (
                ["hub"] if domain else []
            )


async def reached(client: Client, domain: str) -> bool:
    """Whether a domain answers."""
    return bool(await answers(client, f"$JS.{domain}.API.INFO"))
