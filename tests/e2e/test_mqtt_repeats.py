"""What real brokers send the `mqtt` input again: retained messages, and a copy for each filter."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from agent.base.metrics import Metrics
from agent.base.nats_server import find_binary
from agent.cli.configuration import problems
from agent.demo.loopback import free_port
from agent.leaf.inputs.mqtt import MqttOptions, TopicTemplate
from agent.leaf.inputs.mqtt.input import MqttInput
from agent.leaf.inputs.shared import LocalServer
from tests.harness.intakes import Burying, Core
from tests.harness.mqtt_broker import WAIT_SECONDS, Mosquitto, publish
from tests.harness.wait import until, wait_for

TOPICS = [TopicTemplate(filter="plant/+/#", device="{2}", metric="{3+}")]
TAGS = {"retained": "true"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    made = Mosquitto(tmp_path / "mosquitto", free_port())
    made.start()
    yield made
    made.stop()


@pytest.fixture
def copying_broker(tmp_path: Path) -> Iterator[int]:
    """The port of a broker that sends a copy for each filter: nats-server."""
    port, native = free_port(), free_port()
    config = tmp_path / "server.conf"
    config.write_text(
        f'server_name: broker\nlisten: "127.0.0.1:{native}"\njetstream {{ store_dir: "{tmp_path}/js" }}\n'
        f'mqtt {{ listen: "127.0.0.1:{port}" }}\n'
    )
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen([find_binary(), "-c", config], stdout=log, stderr=log)
    try:
        wait_for(lambda: _answers(port), "the broker listens")
        yield port
    finally:
        server.terminate()
        server.wait(WAIT_SECONDS)


def _answers(port: int) -> bool:
    try:
        publish(port, "nobody/listens", b"1")
    except OSError:
        return False
    return True


def retain(port: int, topic: str, payload: bytes, qos: int = 1, protocol: int = mqtt.MQTTv311) -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion(protocol))
    client.connect("127.0.0.1", port)
    client.loop_start()
    client.publish(topic, payload, qos, retain=True).wait_for_publish(WAIT_SECONDS)
    client.disconnect()
    client.loop_stop()


def forget_session(port: int) -> None:
    """Make the broker lose the input's session, as a restart without persistence does."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "petiole-edge-1-mqtt", clean_session=True)
    client.connect("127.0.0.1", port)
    client.loop_start()
    wait_for(client.is_connected, "the session is gone")
    client.disconnect()
    client.loop_stop()


@contextlib.asynccontextmanager
async def running(core: Core, port: int, state: Path, **options: Any) -> AsyncIterator[Metrics]:
    """The input from its start to its end; with the context it has stored what a message `plant/end` finds
    before it."""
    metrics, stopping = Metrics(), asyncio.Event()
    given = {"url": f"mqtt://127.0.0.1:{port}", "topics": TOPICS, **options}
    server = LocalServer("nats://127.0.0.1:4222", Path(), state)
    made = MqttInput(MqttOptions(**given), metrics, server)
    assert problems([made]) == []
    task = asyncio.create_task(made.run(core, stopping))

    def up() -> bool:
        return metrics.registry.get_sample_value("petiole_input_up", {"input": "mqtt"}) == 1

    try:
        await until(up, "the broker is connected")
        yield metrics
        # The broker sends in order, so whatever it sends for the subscription is stored by then.
        end = f"end {len(core.rows())}"
        await asyncio.to_thread(publish, port, "plant/end/end", json.dumps(end).encode())
        await until(lambda: end in core.values(), "the last message is stored")
    finally:
        stopping.set()
        async with asyncio.timeout(WAIT_SECONDS):
            await task


def seen(core: Core) -> list[tuple[Any, bool]]:
    """The values that were stored, each with whether it is marked as retained."""
    return [(row["value"], row.get("tags") == TAGS) for row in core.rows() if row["device"] != "end"]


@pytest.mark.parametrize(("qos", "protocol"), [(0, mqtt.MQTTv311), (1, mqtt.MQTTv5), (2, mqtt.MQTTv5)])
async def test_a_retained_value_is_stored_once_however_often_it_comes(
    broker: Mosquitto, tmp_path: Path, qos: int, protocol: int
) -> None:
    core = Burying("mqtt")
    await asyncio.to_thread(retain, broker.port, "plant/p/before", b"1", qos, protocol)
    async with running(core, broker.port, tmp_path):
        await asyncio.to_thread(retain, broker.port, "plant/p/live", b"61.5", qos, protocol)
    assert seen(core) == [(1, True), (61.5, False)]
    await asyncio.to_thread(broker.stop)
    await asyncio.to_thread(broker.start)
    async with running(core, broker.port, tmp_path) as metrics:
        pass  # a session that goes on
    labels = {"input": "mqtt"}
    assert metrics.registry.get_sample_value("petiole_skipped_retained_messages_total", labels) == 2
    await asyncio.to_thread(forget_session, broker.port)
    async with running(core, broker.port, tmp_path):
        pass
    assert seen(core) == [(1, True), (61.5, False)]


async def test_a_retained_value_that_changed_meanwhile_is_stored_once_with_its_tag(
    broker: Mosquitto, tmp_path: Path
) -> None:
    core = Burying("mqtt")
    async with running(core, broker.port, tmp_path):
        await asyncio.to_thread(retain, broker.port, "plant/p/t", b'{"in": 1, "out": 2}')
    await asyncio.to_thread(forget_session, broker.port)
    await asyncio.to_thread(retain, broker.port, "plant/p/t", b'{"value": 3, "tags": {"unit": "bar"}}')
    await asyncio.to_thread(retain, broker.port, "plant/p/odd", b"no reading")
    for _ in range(2):
        async with running(core, broker.port, tmp_path):
            pass
    rows = [(row["value"], row.get("tags")) for row in core.rows() if row["device"] == "p"]
    assert rows == [(1, None), (2, None), (3, {"unit": "bar", "retained": "true"})]
    assert [letter.received for letter in core.letters] == [b"no reading"]


@pytest.mark.parametrize(("retained", "stored"), [("tag", [(1, True), (1, True)]), ("skip", [])])
async def test_retained_messages_are_all_stored_or_none_where_the_configuration_says_so(
    broker: Mosquitto, tmp_path: Path, retained: str, stored: list[tuple[int, bool]]
) -> None:
    core = Burying("mqtt")
    await asyncio.to_thread(retain, broker.port, "plant/p/t", b"1")
    for _ in range(2):
        async with running(core, broker.port, tmp_path, retained=retained):
            pass
    assert seen(core) == stored


async def test_a_message_that_matches_two_filters_is_stored_once_under_the_first(
    copying_broker: int, tmp_path: Path
) -> None:
    core = Burying("mqtt")
    topics = [TopicTemplate(filter="plant/+/temp", device="{2}", metric="first"), *TOPICS]
    async with running(core, copying_broker, tmp_path, topics=topics):
        await asyncio.to_thread(publish, copying_broker, "plant/p1/temp", b"1")
    assert [row["metric"] for row in core.rows()] == ["first", "end"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["plant/+/temp", "plant/end/end"], ["plant/#"]),
        (["plant/#"], ["plant/+/temp", "plant/end/end"]),
        (["plant/+/temp", "+/end/end"], ["plant/+/temp", "plant/#"]),
    ],
)
async def test_filters_that_the_configuration_had_before_bring_no_copies(
    copying_broker: int, tmp_path: Path, before: list[str], after: list[str]
) -> None:
    core = Burying("mqtt")
    for filters in (before, after, after):
        topics = [TopicTemplate(filter=filter_, device="{2}", metric="n") for filter_ in filters]
        async with running(core, copying_broker, tmp_path, topics=topics):
            pass
    async with running(core, copying_broker, tmp_path, topics=topics):
        await asyncio.to_thread(publish, copying_broker, "plant/p1/temp", b"1")
    assert core.values().count(1) == 1
    assert core.letters == []
