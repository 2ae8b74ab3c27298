"""Declared mirrors and sources between domains and accounts: made, told truly, repaired."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from agent import config as settings
from agent.config import Config, Transform
from agent.config.mirrors import declared
from agent.hub.leadership import Leadership, LeadJetStream
from agent.hub.registrar.metrics import LeadMetrics
from agent.jetstream import UnavailableError
from agent.mirrors.observation import StreamProbe
from tests.harness.configured import OpenServer, OpenServers, open_servers
from tests.harness.declared import hub_source, kept, leaf_mirror
from tests.harness.servers import copy_running
from tests.harness.wait import until

MIRROR, GATHERED = "PLANS", "ALL from LOCAL@edge-1"


def at(server: OpenServer, config: Config) -> Any:
    """The keeper of the links of a configuration, beside one of the servers."""
    return kept(config, "keeper", server.url, server.seed)


def numbered(count: int, name: str = "m") -> list[str]:
    """So many texts, none like another."""
    return [f"{name}{number}" for number in range(count)]


@asynccontextmanager
async def gathering(directory: Path, *texts: str) -> AsyncIterator[tuple[OpenServers, Any]]:
    """A hub that has gathered what a leaf stored, and the keeper of that source."""
    async with open_servers(directory, "edge-1") as servers:
        await servers.ends["edge-1"].make("LOCAL", "local.>")
        await servers.ends["edge-1"].store("local.x", *texts)
        async with at(servers.hub, hub_source("edge-1")) as one:
            await servers.ends["hub"].holds("ALL", [*texts])
            await one.is_in(GATHERED, "flowing")
            yield servers, one


async def test_a_mirror_of_the_hubs_stream_flows_into_a_leaf(tmp_path: Path) -> None:
    async with open_servers(tmp_path, "edge-1") as servers:
        hub, leaf = servers.ends["hub"], servers.ends["edge-1"]
        await hub.make("PLANS", "plans.>")
        await hub.store("plans.a", *numbered(20))
        async with at(servers.leaves["edge-1"], leaf_mirror()) as one:
            await leaf.holds("PLANS", numbered(20))
            assert await leaf.texts("PLANS") == numbered(20)
            assert await one.is_in(MIRROR, "flowing") == "all messages of PLANS of domain hub are here"
            assert (one.value("petiole_link_up", MIRROR), one.value("petiole_link_lag_messages", MIRROR)) == (
                1,
                0,
            )


async def test_a_mirror_that_has_no_room_says_so_once(tmp_path: Path) -> None:
    async with open_servers(tmp_path, "edge-1") as servers:
        await servers.ends["hub"].make("PLANS", "plans.>")
        config = leaf_mirror(max_bytes=settings.Size(2**60))
        with capture_logs() as logs:
            async with at(servers.leaves["edge-1"], config) as one:
                await one.is_in(MIRROR, "refused", says="cannot be kept here")
                for _ in range(3):
                    await one.links._reconcile(servers.ends["edge-1"].nc, declared(config)[0])
        said = [str(log) for log in logs if "PLANS" in str(log)]
        assert len(said) == len(set(said)), said


async def test_a_hub_mirrors_and_gathers_the_streams_of_leaves(tmp_path: Path) -> None:
    async with open_servers(tmp_path, "edge-1", "edge-2") as servers:
        hub = servers.ends["hub"]
        for domain in ("edge-1", "edge-2"):
            await servers.ends[domain].make("LOCAL", f"local.{domain}.>")
            await servers.ends[domain].store(f"local.{domain}.x", *numbered(10, domain))
        config = hub_source("edge-1", "edge-2")
        config.mirror = [settings.MirrorConfig(name="COPY", of="LOCAL", domain="edge-2")]
        async with at(servers.hub, config) as one:
            await hub.holds("ALL", numbered(10, "edge-1") + numbered(10, "edge-2"))
            await hub.holds("COPY", numbered(10, "edge-2"))
            for link in (GATHERED, "ALL from LOCAL@edge-2", "COPY"):
                await one.is_in(link, "flowing")


async def test_a_link_begins_at_a_sequence_or_a_time_and_takes_what_it_is_told(tmp_path: Path) -> None:
    async with open_servers(tmp_path, "edge-1") as servers:
        hub, leaf = servers.ends["hub"], servers.ends["edge-1"]
        await hub.make("PLANS", "plans.>")
        await hub.store("plans.a", *numbered(5))
        await asyncio.sleep(0.01)
        middle = datetime.now(UTC)
        await asyncio.sleep(0.01)
        await hub.store("plans.b", *numbered(5, "late"))
        await hub.store("plans.a", "last")
        declared: list[dict[str, Any]] = [
            {"name": "SEQUENCE", "start_sequence": 4},
            {"name": "TIME", "start_time": middle},
            {"name": "FILTER", "filter": "plans.b"},
            {"name": "TRANSFORM", "transforms": [Transform("plans.a", "own.first")]},
        ]
        config = Config(
            domain="edge-1", mirror=[settings.MirrorConfig(of="PLANS", **one) for one in declared]
        )
        origin = settings.OriginConfig(
            of="PLANS", domain="hub", transforms=[Transform("plans.*", "own.{{wildcard(1)}}")]
        )
        config.source = [settings.SourceConfig(name="ALL", from_=[origin])]
        async with at(servers.leaves["edge-1"], config) as one:
            await leaf.holds("SEQUENCE", ["m3", "m4", *numbered(5, "late"), "last"])
            await leaf.holds("TIME", [*numbered(5, "late"), "last"])
            await leaf.holds("FILTER", numbered(5, "late"))
            await leaf.holds("TRANSFORM", [*numbered(5), "last"])
            await leaf.holds("ALL", [*numbered(5), *numbered(5, "late"), "last"])
            assert set(await leaf.subjects("TRANSFORM")) == {"own.first"}
            assert set(await leaf.subjects("ALL")) == {"own.a", "own.b"}
            for row in one.links.status():
                await one.is_in(row["link"], "flowing")


SEED = """
ACC {{ jetstream: enabled, users: [ {{ nkey: {key} }} ]
  exports: [
    {{ service: "$JS.hub.API.CONSUMER.CREATE.*", response_type: "stream" }}
    {{ stream: "deliver.acc.hub.>" }}
    {{ service: "$JS.FC.aggregate-test-leaf.>" }} ] }}
IMPORT_MIRROR {{ jetstream: enabled, users: [ {{ nkey: {other} }} ]
  imports: [
    {{ service: {{ account: ACC, subject: "$JS.hub.API.CONSUMER.CREATE.*" }}
       to: "JS.acc@hub.API.CONSUMER.CREATE.*" }}
    {{ service: {{ account: ACC, subject: "$JS.FC.aggregate-test-leaf.>" }} }}
    {{ stream: {{ account: ACC, subject: "deliver.acc.hub.import_mirror.>" }} }} ] }}
"""
ASKED = '{{ service: "$JS.hub.API.STREAM.INFO.aggregate-test-leaf" }}'
ASKED_THERE = (
    '{{ service: {{ account: ACC, subject: "$JS.hub.API.STREAM.INFO.aggregate-test-leaf" }}, '
    'to: "JS.acc@hub.API.STREAM.INFO.aggregate-test-leaf" }}'
)


def across_accounts() -> Config:
    """The mirror and its deliver prefix as NATS documents them for two accounts."""
    mirror = settings.MirrorConfig(
        name="aggregate-test-leaf-from-acc",
        of="aggregate-test-leaf",
        api="JS.acc@hub.API",
        deliver="deliver.acc.hub.import_mirror.hub.aggregate-test-leaf-from-acc",
    )
    return Config(domain="hub", role="hub", mirror=[mirror])


async def test_a_mirror_across_accounts_flows_and_its_lag_is_unknown_until_it_may_be_asked(
    tmp_path: Path,
) -> None:
    link = "aggregate-test-leaf-from-acc"
    asked = SEED.replace("exports: [", f"exports: [ {ASKED}").replace(
        "imports: [", f"imports: [ {ASKED_THERE}"
    )
    for accounts, word, words in (
        (SEED, "unknown", "JS.acc@hub.API.STREAM.INFO.aggregate-test-leaf is not exported and imported"),
        (asked, "flowing", "all messages"),
    ):
        async with open_servers(tmp_path / word, accounts=accounts) as servers, AsyncExitStack() as stack:
            await servers.ends["hub"].make("aggregate-test-leaf", "test.>")
            await servers.ends["hub"].store("test.a", *numbered(30))
            importer = await servers.hub.end(stack, servers.hub.other_seed)
            config = across_accounts()
            async with kept(config, "keeper", servers.hub.url, servers.hub.other_seed) as one:
                await importer.holds(link, numbered(30))
                assert words in await one.is_in(link, word)
                assert (one.value("petiole_link_lag_messages", link) is None) is (word == "unknown")


async def test_a_mirror_of_a_stream_that_was_made_again_says_so_and_is_not_deleted(tmp_path: Path) -> None:
    async with open_servers(tmp_path, "edge-1") as servers:
        hub, leaf = servers.ends["hub"], servers.ends["edge-1"]
        await mirrored_then_recreated(servers)
        async with at(servers.leaves["edge-1"], leaf_mirror()) as one:
            assert "recreate = true" in await one.is_in(MIRROR, "recreated")
            assert await leaf.texts("PLANS") == numbered(5)
        standby = Leadership(leaf.nc, None, "a", 1, (), LeadMetrics(CollectorRegistry()))
        async with at(servers.leaves["edge-1"], leaf_mirror(recreate=True)) as one:
            one.links.jetstream = partial(LeadJetStream, leadership=standby)
            assert "this agent does not lead the hub" in await one.is_in(MIRROR, "refused")
            assert await leaf.texts("PLANS") == numbered(5)
        async with at(servers.leaves["edge-1"], leaf_mirror(recreate=True)) as one:
            await leaf.holds("PLANS", ["other"])
            await hub.store("plans.a", "more")
            await leaf.holds("PLANS", ["other", "more"])
            await one.is_in(MIRROR, "flowing")


@asynccontextmanager
async def lossy_origin(directory: Path) -> AsyncIterator[tuple[OpenServers, Callable[..., Awaitable[None]]]]:
    """A mirror of five messages, and a power cut of the hub that takes the newest two of the origin, which
    stores others then."""
    async with open_servers(directory, "edge-1") as servers:
        hub = servers.ends["hub"]
        await hub.make("PLANS", "plans.>")
        await hub.store("plans.a", *numbered(3))
        async with at(servers.leaves["edge-1"], leaf_mirror()) as one:
            await one.is_in(MIRROR, "flowing")
            store = next((directory / "hub").rglob("streams/PLANS")) / "msgs"
            copy_running(store, directory / "on_disk")
            await hub.store("plans.a", "lost", "lost too")
            await servers.ends["edge-1"].holds("PLANS", [*numbered(3), "lost", "lost too"])

        async def cut_power(*stored: str) -> None:
            await servers.hub.kill()
            shutil.rmtree(store)
            shutil.copytree(directory / "on_disk", store)
            await servers.hub.start()
            await until(lambda: hub.nc.is_connected, "the hub answers")
            await hub.store("plans.a", *stored)

        yield servers, cut_power


async def cut_power_while_kept(
    servers: OpenServers, one: Any, cut_power: Callable[..., Awaitable[None]]
) -> None:
    """The power cut while the keeper looks, after which the link is back."""
    await one.is_in(MIRROR, "flowing")
    servers.proxies["edge-1"].cut()
    await one.is_in(MIRROR, "down")
    await cut_power(*numbered(4, "new"))
    servers.proxies["edge-1"].restore()


async def test_a_mirror_whose_origin_lost_messages_and_stored_others_says_so(tmp_path: Path) -> None:
    """When the link is back the origin is ahead of the mirror again, which takes none of the messages that
    have the sequences of the lost ones."""
    async with lossy_origin(tmp_path) as (servers, cut_power):
        leaf = servers.ends["edge-1"]
        async with at(servers.leaves["edge-1"], leaf_mirror(recreate=True)) as one:
            await cut_power_while_kept(servers, one, cut_power)
            await leaf.holds("PLANS", [*numbered(3), *numbered(4, "new")])
            await one.is_in(MIRROR, "flowing")


async def test_a_mirror_that_contradicts_its_origin_says_so_after_a_restart_of_the_agent_too(
    tmp_path: Path,
) -> None:
    async with lossy_origin(tmp_path) as (servers, cut_power):
        leaf = servers.ends["edge-1"]
        async with at(servers.leaves["edge-1"], leaf_mirror()) as one:
            await cut_power_while_kept(servers, one, cut_power)
            await one.is_in(MIRROR, "recreated")
            await leaf.holds("PLANS", [*numbered(3), "lost", "lost too", "new2", "new3"])
        async with at(servers.leaves["edge-1"], leaf_mirror()) as one:
            await one.is_in(MIRROR, "recreated")


async def test_a_mirror_is_compared_with_an_origin_that_lost_messages_while_no_agent_ran(
    tmp_path: Path,
) -> None:
    async with lossy_origin(tmp_path) as (servers, cut_power):
        leaf = servers.ends["edge-1"].nc
        await cut_power("new0", "new1")

        async def linked() -> bool:
            try:
                await leaf.request("$JS.hub.API.STREAM.INFO.PLANS", timeout=1)
            except (nats.errors.Error, TimeoutError):
                return False
            return True

        await until(linked, "the origin answers before the keeper looks")
        async with at(servers.leaves["edge-1"], leaf_mirror()) as one:
            await one.is_in(MIRROR, "recreated")


async def test_a_mirror_is_compared_though_its_origin_does_not_answer_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, failures = StreamProbe._api, 0

    async def ask(self: StreamProbe, nc: Any, origin: Any, subject: str, body: bytes) -> dict[str, Any]:
        nonlocal failures
        if "STREAM.MSG.GET" in subject and failures < 3:
            failures += 1
            raise UnavailableError("no answer")
        return await asked(self, nc, origin, subject, body)

    async with lossy_origin(tmp_path) as (servers, cut_power):
        async with at(servers.leaves["edge-1"], leaf_mirror()) as one:
            await one.is_in(MIRROR, "flowing")
            monkeypatch.setattr(StreamProbe, "_api", ask)
            await cut_power_while_kept(servers, one, cut_power)
            await one.is_in(MIRROR, "recreated")
        assert failures == 3


async def mirrored_then_recreated(servers: OpenServers) -> None:
    """A mirror that holds five messages of an origin which was deleted and made again since."""
    hub, leaf = servers.ends["hub"], servers.ends["edge-1"]
    await hub.make("PLANS", "plans.>")
    await hub.store("plans.a", *numbered(5))
    async with at(servers.leaves["edge-1"], leaf_mirror()):
        await leaf.holds("PLANS", numbered(5))
    await hub.js.api("STREAM.DELETE.PLANS")
    await hub.make("PLANS", "plans.>")
    await hub.store("plans.a", "other")


async def test_a_stream_of_somebody_else_is_left_alone_and_a_changed_declaration_is_followed(
    tmp_path: Path,
) -> None:
    async with open_servers(tmp_path, "edge-1") as servers:
        hub, leaf = servers.ends["hub"], servers.ends["edge-1"]
        await hub.make("PLANS", "plans.>")
        await hub.make("MORE", "more.>")
        await hub.store("plans.a", "a")
        await hub.store("more.a", "b")
        await leaf.make("PLANS", "mine.>")
        config = leaf_mirror()
        config.source = [
            settings.SourceConfig(name="ALL", from_=[settings.OriginConfig(of="PLANS", domain="hub")])
        ]
        async with at(servers.leaves["edge-1"], config) as one:
            assert "was not created as this mirror" in await one.is_in(MIRROR, "foreign")
            await leaf.holds("ALL", ["a"])
        config.source[0].from_.append(settings.OriginConfig(of="MORE", domain="hub"))
        config.source[0].max_bytes = settings.Size(2**20)
        async with at(servers.leaves["edge-1"], config) as one:
            await leaf.holds("ALL", ["a", "b"])
            await one.is_in("ALL from MORE@hub", "flowing")
        assert (await leaf.js.stream_info("ALL")).config["max_bytes"] == 2**20
        assert (await leaf.js.stream_info("PLANS")).config["subjects"] == ["mine.>"]


async def test_what_was_missed_during_a_cut_comes_once(tmp_path: Path) -> None:
    async with gathering(tmp_path, *numbered(10)) as (servers, one):
        hub, leaf = servers.ends["hub"], servers.ends["edge-1"]
        servers.proxies["edge-1"].cut()
        await leaf.store("local.x", *numbered(10, "cut"))
        await one.is_in(GATHERED, "down", says="does not answer")
        assert one.value("petiole_link_up", GATHERED) == 0
        assert one.value("petiole_link_lag_messages", GATHERED) is None
        servers.proxies["edge-1"].restore()
        await hub.holds("ALL", numbered(10) + numbered(10, "cut"))
        await servers.hub.kill()
        await one.is_in(GATHERED, "away")
        assert one.value("petiole_link_up", GATHERED) == 0
