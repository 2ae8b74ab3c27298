"""What a server lets a link send whatever it is told does no harm to what the product keeps."""

from __future__ import annotations

from pathlib import Path

from agent.contract import ACCOUNT, COMMANDS, command_consumer, command_deliver, new_epoch
from agent.hub.registrar.aggregate import commands_config
from agent.hub.registrar.command_consumers import consumer_config
from tests.harness.servers import api
from tests.harness.wait import until
from tests.security.plant import Place, open_plant
from tests.security.raw_link import raw_link


async def test_a_forged_acknowledgement_acknowledges_nothing(tmp_path: Path) -> None:
    name, epoch = command_consumer("edge-2"), new_epoch()
    async with open_plant(tmp_path) as plant:
        hub = plant.observers[Place("hub", ACCOUNT)]
        await api(hub.client, f"STREAM.CREATE.{COMMANDS}", commands_config(1))
        config = consumer_config("edge-2", epoch)
        asked = {"stream_name": COMMANDS, "config": config}
        await api(hub.client, f"CONSUMER.CREATE.{COMMANDS}.{name}.cmd.edge-2.>", asked)
        heard = await hub.client.subscribe(command_deliver("edge-2", epoch))
        await hub.client.jetstream().publish("cmd.edge-2.agent.ping", b"{}")
        await heard.next_msg(timeout=30)
        async with raw_link(plant.hub_leaf_port, "edge-3", plant.keys["links"]["edge-3"]) as link:
            link.publish(f"$JS.ACK.{COMMANDS}.{name}.1.1.1.1.0", b"+ACK forged")
            await link.flush()
            refused = link.over  # from nats-server 2.15.3 on
        if not refused:
            await until(
                lambda: b"+ACK forged" in hub.heard, "the forged acknowledgement is in the hub's account", 60
            )
        info = await api(hub.client, f"CONSUMER.INFO.{COMMANDS}.{name}")
        assert info["ack_floor"]["stream_seq"] == 0
        assert info["num_ack_pending"] == 1
