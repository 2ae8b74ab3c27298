"""An agent that ends while its server goes on: the data flows, and nothing is taken in any more."""

from __future__ import annotations

from prometheus_client.exposition import generate_latest

from tests.harness.registrar import LeafHand, hub_of
from tests.harness.servers import ServerPair
from tests.harness.wait import until


async def test_a_leaf_whose_agent_missed_three_announcements_is_silent_until_it_is_heard(
    servers: ServerPair,
) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    leaf.every = 0.5
    async with hub.registrar() as registrar:

        def word() -> str:
            return str(registrar.status()["leaves"]["edge-1"]["word"])

        def counted() -> float:
            return hub.metrics.registry.get_sample_value("petiole_fleet_silent_leaves") or 0.0

        def shown(state: str) -> bool:
            return hub.counted("petiole_leaf_state", domain="edge-1", state=state) == 1

        await leaf.announce()
        await hub.holds("edge-1", await leaf.store(1))
        await until(lambda: word() == "flowing", "it flows")
        await until(lambda: shown("flowing"), "its state is a metric")
        assert hub.counted("petiole_leaf_linked", domain="edge-1") == 1
        await until(lambda: word() == "silent", "its server is linked, and nobody announces it")
        said = registrar.status()["leaves"]["edge-1"]["state"]
        assert said.startswith("its server is linked, and its agent was last heard")
        await until(lambda: counted() == 1, "it is counted")
        assert shown("silent")
        assert not shown("flowing")
        leaf.every = 60.0
        await leaf.announce()
        assert word() == "flowing"
        await until(lambda: counted() == 0, "it is not counted any more")
        await servers.leaf.stop()
        await until(lambda: word() == "away", "without its server it is away, not silent")
        await until(lambda: shown("away"), "and so is its metric")
        assert hub.counted("petiole_leaf_linked", domain="edge-1") == 0


async def test_an_agent_that_does_not_say_how_often_it_announces_itself_is_given_three_minutes(
    servers: ServerPair,
) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    async with hub.registrar() as registrar:
        await leaf.announce()
        assert registrar._fleet.leaves["edge-1"].silent_after == 180.0


async def test_a_leaf_whose_name_is_not_chosen_has_no_metrics_of_its_own_and_is_counted(
    servers: ServerPair,
) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    async with hub.registrar(metrics=["edge-2*"]) as registrar:
        await leaf.announce()
        assert "edge-1" in registrar._fleet.leaves
        assert 'domain="edge-1"' not in generate_latest(hub.metrics.registry).decode()
        assert hub.counted("petiole_fleet_unshown_leaves") >= 1
