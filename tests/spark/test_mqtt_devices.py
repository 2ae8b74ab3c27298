"""What an MQTT device sends is a row of `readings`: device, leaf, link, hub and jobs are the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.contract import Exit
from agent.demo import plan
from agent.demo.loopback import free_port
from hub_jobs.ingest import run as ingest
from hub_jobs.refine import run as refine
from tests.harness.agent_process import Agent
from tests.harness.mqtt_client import PASSWORD, USER, device, listening
from tests.harness.wait import wait_for
from tests.spark.lakes import contents

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def test_what_devices_send_with_any_qos_is_in_the_table_once(tmp_path: Path) -> None:
    member, leaf_port = plan.member(tmp_path, "hub"), free_port()
    with listening(tmp_path, hub_port=leaf_port) as plant:
        table = plant.leaf.petiole("enrol").stdout
        hub = Agent(member, plan.hub_toml(member, leaf_port, [table]))
        try:
            hub.start()
            plant.start()
            with device(plant.port, USER, PASSWORD) as one:
                for qos, payload in enumerate(("1.5", '{"value": true, "tags": {"a": "b"}}', '"open"')):
                    assert one.publish("readings/normal/pump.7/valve", payload, qos)
            server = plant.leaf
            wait_for(lambda: server.metric("petiole_stored_readings_total", input="qos0") == 1, "QoS 0")
            wait_for(lambda: server.metric("petiole_backlog_messages") == 0, "the hub has it all")
            lake = tmp_path / "lake"
            key = str(hub.member.state / "keys" / "jobs.nk")
            options = ["--server", hub.member.nats_url, "--seed-file", key, "--lake", str(lake)]
            assert ingest.main(options) == Exit.WELL
            assert refine.main(["--lake", str(lake)]) == Exit.WELL
            rows = contents(lake, "readings", "device", "metric", "value", "text", "tags", "ts_source")
            assert [row[1:] for row in rows if row[0] == "pump.7"] == [
                ("valve", 1.0, "true", [("a", "b")], "hub"),
                ("valve", 1.5, None, [], "agent"),
                ("valve", None, "open", [], "hub"),
            ]
            assert contents(lake, "quarantine", "reason") == []
            # The link carries readings only: what the server keeps for MQTT stays where it is.
            log = (server.member.state / "nats" / "nats-server.log").read_text()
            assert "$MQTT" not in (hub.member.state / "nats" / "nats-server.log").read_text()
            assert "iolation" not in log
        finally:
            hub.close()
