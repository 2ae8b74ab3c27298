"""Declared mirrors and sources over cuts, kills and streams that are recreated."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.test_declared_links import GATHERED, gathering, numbered
from tests.faults.report import Case
from tests.harness.configured import open_servers
from tests.harness.declared import kept, leaf_mirror

RECOVER = 120.0
"""Seconds. A mirror is left to its server, which asks its origin again in its own time: 12 to 40 s."""


async def test_a_declared_mirror_catches_up_after_a_cut_and_kills(case: Case, tmp_path: Path) -> None:
    async with open_servers(tmp_path, "edge-1") as servers:
        hub, leaf, server = servers.ends["hub"], servers.ends["edge-1"], servers.leaves["edge-1"]
        await hub.make("PLANS", "plans.>")
        sent = [f"first {number}" for number in range(10)]
        await hub.store("plans.a", *sent)
        async with kept(leaf_mirror(), "keeper", server.url, server.seed) as one:
            await leaf.holds("PLANS", sent)
            await one.is_in("PLANS", "flowing")
            for fault in ("cut", "hub killed", "leaf killed"):
                if fault == "cut":
                    servers.proxies["edge-1"].cut()
                    assert "does not answer" in await one.is_in("PLANS", "down")
                elif fault == "hub killed":
                    await servers.hub.kill()
                    await one.is_in("PLANS", "down")
                    await servers.hub.start()
                else:
                    await server.kill()
                more = [f"{fault} {number}" for number in range(10)]
                await hub.store("plans.a", *more)
                sent += more
                if fault == "cut":
                    servers.proxies["edge-1"].restore()
                elif fault == "leaf killed":
                    await server.start()
                await leaf.holds("PLANS", sent, RECOVER)
                assert await leaf.texts("PLANS") == sent
                await one.is_in("PLANS", "flowing", seconds=RECOVER)
        case.sent, case.lost, case.duplicates = len(sent), 0, 0
        case.expected = "every message of the origin is in the mirror once and in order"


async def test_a_source_whose_stream_was_purged_goes_on_where_it_was(case: Case, tmp_path: Path) -> None:
    case.expected = "only what is new comes"
    async with gathering(tmp_path, *numbered(10)) as (servers, one):
        hub, leaf = servers.ends["hub"], servers.ends["edge-1"]
        await hub.js.purge("ALL", 10)
        await servers.hub.kill()
        await leaf.store("local.x", "new")
        await servers.hub.start()
        await hub.holds("ALL", ["new"])
        await one.is_in(GATHERED, "flowing")
        # Without it the server begins by the time of its own last message, which a leaf whose clock is
        # behind has stored before.
        (source,) = (await hub.js.stream_info("ALL")).config["sources"]
        assert source["opt_start_seq"] == 11


async def test_a_source_whose_origin_was_made_again_takes_all_of_the_new_one(
    case: Case, tmp_path: Path
) -> None:
    case.expected = "all of the old origin and all of the new one, each once"
    async with gathering(tmp_path, *numbered(5)) as (servers, one):
        hub, leaf = servers.ends["hub"], servers.ends["edge-1"]
        await leaf.js.api("STREAM.DELETE.LOCAL")
        await one.is_in(GATHERED, "absent", "refused")
        await leaf.make("LOCAL", "local.>")
        await leaf.store("local.x", "a", "b")
        await hub.holds("ALL", [*numbered(5), "a", "b"])
        await one.is_in(GATHERED, "flowing")
