"""A declared mirror is left to its server, which asks its origin again in its own time: 12 to 40 s."""

from __future__ import annotations

from pathlib import Path

from tests.faults.report import Case
from tests.harness.configured import open_servers
from tests.harness.declared import kept, leaf_mirror

RECOVER = 120.0


def numbered(name: str) -> list[str]:
    """Ten texts, none like another."""
    return [f"{name} {number}" for number in range(10)]


async def test_a_declared_mirror_catches_up_after_a_cut_and_kills(case: Case, tmp_path: Path) -> None:
    async with open_servers(tmp_path, "edge-1") as servers:
        hub, leaf, server = servers.ends["hub"], servers.ends["edge-1"], servers.leaves["edge-1"]
        await hub.make("PLANS", "plans.>")
        sent = numbered("first")
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
                more = numbered(fault)
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
