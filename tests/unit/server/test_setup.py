"""What the agent's configuration makes of its server's."""

from __future__ import annotations

from pathlib import Path

from agent.config import Config, Nats
from agent.config.schema import Mqtt, MqttUserConfig
from agent.server.setup import server_config
from agent.server.values import LeafConfig


def test_mqtt_devices_are_kept_out_of_a_store_without_the_streams_that_answer_for_them(
    tmp_path: Path,
) -> None:
    mqtt = Mqtt(users=[MqttUserConfig("plant", tmp_path / "password")])
    nats = Nats(hub_urls=["nats-leaf://hub:7422"], mqtt=mqtt)
    config = Config(domain="edge-1", state_dir=tmp_path, nats=nats)

    def let_in() -> bool:
        made = server_config(config, "machine")
        assert isinstance(made, LeafConfig)
        assert made.mqtt is not None
        return made.mqtt.open

    assert not let_in()
    streams = tmp_path / "nats" / "store" / "jetstream" / "PETIOLE" / "streams"
    (streams / "TEL_edge-1_normal").mkdir(parents=True)
    assert not let_in()
    (streams / "$MQTT_msgs").mkdir()
    assert let_in()
