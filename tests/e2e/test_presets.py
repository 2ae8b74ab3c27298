"""The makers' payloads over a real broker: into the stream of a leaf, and again with each kind of repeat."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from agent.base.metrics import Metrics
from agent.demo.loopback import free_port
from agent.leaf.inputs import make_inputs
from agent.leaf.inputs.mqtt import MqttOptions
from agent.leaf.inputs.shared import LocalServer
from agent.mapping.paths import fits
from agent.mapping.presets import load, names
from agent.mapping.schema import Map
from agent.testing.stored_stream import stored_readings
from tests.harness.agent_process import leaf_with
from tests.harness.intakes import RunningInput, stopped_in_time
from tests.harness.mqtt_broker import WAIT_SECONDS, Mosquitto, keep_session, publish
from tests.harness.wait import until, wait_for
from tests.unit.mapping.test_presets import CASES, received

CLIENT = "petiole-edge-1-mqtt"
UPLINK = CASES["chirpstack"][0]
PRESS = next(case for case in CASES["zigbee2mqtt"] if case["about"].startswith("a press"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    made = Mosquitto(tmp_path / "mosquitto", free_port())
    made.start()
    yield made
    made.stop()


def first(filters: list[tuple[str, str]], topic: str) -> str:
    return next(preset for filter_, preset in filters if fits(filter_.split("/"), topic.split("/")))


def key_of(reading: list[Any]) -> str:
    _, device, metric, value, *tags = reading
    return json.dumps([device, metric, value, tags[0] if tags else {}], sort_keys=True)


def test_makers_share_a_broker_and_their_payloads_become_readings_in_the_stream(
    broker: Mosquitto, tmp_path: Path
) -> None:
    # More general filters come later, as the first that fits counts.
    general = ("homeassistant", "esphome")
    order = [name for name in names() if name not in (*general, "ignore")] + list(general)
    filters = [(filter_, name) for name in order for filter_ in load(name).topics or ()]
    entries = [f'{{ filter = "{filter_}", preset = "{name}" }}' for filter_, name in filters]
    options = f"""type = "http"
[[input]]
type = "mqtt"
url = "mqtt://127.0.0.1:{broker.port}"
topics = [{", ".join(entries)}, {{ filter = "#", preset = "ignore" }}]
"""
    expected: Counter[str] = Counter()
    sent = 0
    keep_session(broker.port, CLIENT, "#", "first")
    for preset in order:
        for case in CASES[preset]:
            topic, payload = case["topic"], received(case)
            if "keys" in case or not any(fits(one.split("/"), topic.split("/")) for one, _ in filters):
                continue
            assert first(filters, topic) == preset
            publish(broker.port, topic, payload)
            expected.update(key_of(reading) for reading in case.get("readings", ()))
            sent += 1
    assert sent > 90
    with leaf_with(tmp_path, options) as leaf:
        wait_for(lambda: len(stored_readings(leaf.member)) >= expected.total(), "all is stored")
        stored = stored_readings(leaf.member)
    found = Counter(
        key_of([row["ts"], row["device"], row["metric"], row["value"], row.get("tags") or {}])
        for row in stored
    )
    assert found == expected


def running(broker: Mosquitto, preset: str, state: Path) -> Any:
    options = MqttOptions(
        url=f"mqtt://127.0.0.1:{broker.port}", topics=[], preset=Map(name=preset, preset=preset)
    )
    metrics = Metrics()
    (made,) = make_inputs([options], metrics, LocalServer("nats://127.0.0.1:4222", Path(), state))
    assert made.check() == []
    return stopped_in_time(RunningInput(made, metrics))


def receive_without_answer(port: int, count: int) -> None:
    """Take the input's messages as its client id and answer none, so that the broker sends them again."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, CLIENT, clean_session=False, manual_ack=True)
    came: list[bytes | bytearray] = []
    done = threading.Event()

    def take(_client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        came.append(message.payload)
        if len(came) == count:
            done.set()

    client.on_message = take
    client.connect("127.0.0.1", port)
    client.loop_start()
    assert done.wait(WAIT_SECONDS)
    client.disconnect()
    client.loop_stop()


async def test_an_uplink_that_the_broker_and_its_sender_repeat_is_the_same_readings(
    broker: Mosquitto, tmp_path: Path
) -> None:
    topic, payload = UPLINK["topic"], received(UPLINK)
    filter_ = "application/+/device/+/event/+"
    await asyncio.to_thread(keep_session, broker.port, CLIENT, filter_)
    await asyncio.to_thread(publish, broker.port, topic, payload, payload)
    await asyncio.to_thread(receive_without_answer, broker.port, 2)
    await asyncio.to_thread(broker.stop)
    await asyncio.to_thread(broker.start)
    each = len(UPLINK["readings"])
    async with running(broker, "chirpstack", tmp_path) as one:
        await one.stored(2 * each)
        await asyncio.to_thread(publish, broker.port, topic, payload)
        await one.stored(3 * each)
        rows = one.core.rows()
    assert len(rows) == 3 * each
    assert len({json.dumps(row, sort_keys=True) for row in rows}) == each


async def test_a_retained_uplink_has_no_mark_and_a_retained_state_without_time_is_stored_once(
    broker: Mosquitto, tmp_path: Path
) -> None:
    await asyncio.to_thread(publish, broker.port, PRESS["topic"], received(PRESS), retain=True)
    for folder in ("z", "c"):
        (tmp_path / folder).mkdir()
    for marked in (True, False):
        async with running(broker, "zigbee2mqtt", tmp_path / "z") as one:
            await until(lambda: one.value("petiole_input_up") == 1, "it hears")
            await asyncio.to_thread(publish, broker.port, "zigbee2mqtt/end", b'{"end": 1}')
            await until(lambda: any(row["metric"] == "end" for row in one.core.rows()), "all is stored")
            rows = [row for row in one.core.rows() if row["metric"] != "end"]
        assert [row["tags"] for row in rows] == ([{"retained": "true"}] if marked else [])
    await asyncio.to_thread(publish, broker.port, UPLINK["topic"], received(UPLINK), retain=True)
    async with running(broker, "chirpstack", tmp_path / "c") as one:
        await one.stored(len(UPLINK["readings"]))
        assert all("retained" not in row["tags"] for row in one.core.rows())
