"""What the agent's configuration makes of its server's."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.config import Config, LinkConfig, Nats, SyncInterval
from agent.config.server_schema import Cluster, Mqtt, MqttUserConfig
from agent.server import setup
from agent.server.setup import hub_sync_seconds, server_config
from agent.server.values import HubConfig, LeafConfig


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


@pytest.mark.parametrize(("kind", "seconds"), [("ext4", 1.0), ("btrfs", 1.0), ("xfs", 0.0), (None, 0.0)])
def test_a_hub_that_stands_alone_syncs_at_an_interval_where_a_replaced_file_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None, seconds: float
) -> None:
    monkeypatch.setattr(setup, "file_system", lambda _: kind)
    config = Config(domain="hub", role="hub", state_dir=tmp_path)
    made = server_config(config, "machine")
    assert isinstance(made, HubConfig)
    assert made.sync_seconds == hub_sync_seconds(config) == seconds
    config.registrar.sync_interval = SyncInterval.parse("always")
    assert hub_sync_seconds(config) == 0.0


def test_a_server_of_others_or_of_a_cluster_syncs_before_it_acknowledges(tmp_path: Path) -> None:
    others = Config(domain="hub", role="hub", nats=Nats(server="external"))
    cluster = Cluster(name="a", routes=["10.0.0.2:6222", "10.0.0.3:6222"])
    one = Config(domain="hub", role="hub", state_dir=tmp_path, nats=Nats(cluster=cluster))
    assert hub_sync_seconds(others) == hub_sync_seconds(one) == 0.0
    made = server_config(one, "machine")
    assert isinstance(made, HubConfig)
    assert made.sync_seconds == 0.0


def test_a_leaf_dials_through_its_relay_and_keeps_the_name_of_its_hub(tmp_path: Path) -> None:
    nats = Nats(hub_urls=["tls://hub.example:7422"], remote={"tls": {"ca_file": "ca.pem"}})
    config = Config(domain="edge-1", state_dir=tmp_path, nats=nats, link=LinkConfig(resume_port=7423))
    made = server_config(config, "machine")
    assert isinstance(made, LeafConfig)
    assert made.hub_urls == ("tls://hub.example:7422",)
    assert made.remote == {"tls": {"ca_file": "ca.pem"}, "proxy": {"url": "http://127.0.0.1:7423"}}
