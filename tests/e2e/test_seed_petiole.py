"""What Petiole's own servers prevent of that which the document on JetStream and leaf nodes shows."""

from __future__ import annotations

from agent.contract import ACCOUNT, new_epoch
from tests.harness.servers import ServerPair, api, ask
from tests.harness.streams import AGGREGATE, make_aggregate, make_leaf_stream
from tests.harness.wait import until


async def test_what_a_leaf_stores_goes_to_the_hub_by_its_source_alone(servers: ServerPair) -> None:
    agent, registrar = await servers.leaf.connect("agent"), await servers.hub.connect("registrar")
    device = await servers.leaf.connect("device")
    epoch = new_epoch()
    await make_leaf_stream(agent, "edge-1", epoch)
    await make_aggregate(registrar, {"edge-1": epoch}, subjects=["tel.>"])
    for number in range(5):
        await device.jetstream().publish("tel.edge-1.normal.pump.bar", b"%d" % number)

    async def sourced() -> bool:
        sources = (await api(registrar, f"STREAM.INFO.{AGGREGATE}"))["sources"]
        return bool(sources[0].get("seq") == 5)

    await until(sourced, "the source has brought all of it")
    assert (await api(registrar, f"STREAM.INFO.{AGGREGATE}"))["state"]["last_seq"] == 5
    assert not servers.leaf.errors + servers.hub.errors


async def test_both_servers_have_a_domain_and_the_link_joins_the_datas_account_alone(
    servers: ServerPair,
) -> None:
    for node, system, domain in (
        (servers.hub, "registrar_system", "hub"),
        (servers.leaf, "agent_system", "edge-1"),
    ):
        client = await node.connect(system)
        links = (await ask(client, "$SYS.REQ.SERVER.PING.LEAFZ"))["data"]["leafs"]
        assert [one["account"] for one in links] == [ACCOUNT]
        server = (await ask(client, "$SYS.REQ.SERVER.PING.VARZ"))["data"]
        assert server["jetstream"]["config"]["domain"] == domain
