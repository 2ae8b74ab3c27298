"""Sparkplug B at a real broker, from an edge node that is not ours, before a core that keeps what it is given
in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.base.metrics import Metrics
from agent.cli.configuration import problems
from agent.demo.loopback import free_port
from agent.leaf.inputs.mqtt import MqttOptions, TopicTemplate
from agent.leaf.inputs.mqtt.input import MqttInput
from agent.leaf.inputs.mqtt.sparkplug import nodes
from agent.leaf.inputs.shared import LocalServer
from tests.harness.intakes import Burying, RunningInput, stopped_in_time
from tests.harness.mqtt_broker import Mosquitto, publish
from tests.harness.sparkplug_node import SparkplugNode
from tests.harness.wait import until

MINUS: dict[str, Any] = {"name": "minus", "alias": 1, "type": "Int16", "value": -5}
TEMP: dict[str, Any] = {"name": "oil/temp", "alias": 2, "type": "Float", "value": 21.5}
STATE: dict[str, Any] = {"name": "state", "alias": 3, "type": "String", "value": None, "isNull": True}
ON: dict[str, Any] = {"name": "on", "alias": 4, "type": "Boolean", "value": True}
NODE, PUMP = "plant/edge", "plant/edge/pump"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    mosquitto = Mosquitto(tmp_path / "mosquitto", free_port())
    mosquitto.start()
    yield mosquitto
    mosquitto.stop()


@pytest.fixture
def node(broker: Mosquitto, tmp_path: Path) -> Iterator[SparkplugNode]:
    """An edge node that is not connected yet."""
    edge = SparkplugNode(broker.port, tmp_path / "node")
    yield edge
    edge.kill()


@contextlib.asynccontextmanager
async def running(broker: Mosquitto, state: Path | None = None) -> AsyncIterator[RunningInput]:
    """The input at the broker, connected; it is stopped with the context."""
    topics = [TopicTemplate(filter="spBv1.0/#", format="sparkplug")]
    metrics = Metrics()
    options = MqttOptions(url=f"mqtt://127.0.0.1:{broker.port}", topics=topics)
    mqtt = MqttInput(options, metrics, LocalServer("", Path(), state))
    assert problems([mqtt]) == []
    async with stopped_in_time(RunningInput(mqtt, metrics)) as one:
        await until(lambda: one.value("petiole_input_up") == 1, "the broker is connected")
        yield one


def told(core: Burying, *devices: str) -> list[tuple[Any, ...]]:
    """Device, metric and value of the readings of some devices, in order, without those of the client."""
    own = ("bdSeq", "Node Control/Rebirth")
    rows = [row for row in core.rows() if row["device"] in devices and row["metric"] not in own]
    return [(row["device"], row["metric"], row["value"]) for row in rows]


async def test_births_name_and_type_what_data_and_deaths_say_by_alias(
    broker: Mosquitto, node: SparkplugNode
) -> None:
    async with running(broker) as one:
        await asyncio.to_thread(node.connect, node=[ON], pump=[MINUS, TEMP, STATE])
        by_alias = {"alias": 1, "type": "Int16", "value": -6, "timestamp": 1_790_000_000_123}
        await asyncio.to_thread(node.data, by_alias, device="pump")
        old = {"alias": 2, "type": "Float", "value": 22.5, "isHistorical": True}
        await asyncio.to_thread(node.data, old, device="pump")
        await asyncio.to_thread(node.data, {"alias": 4, "value": False, "type": "Boolean"})
        await asyncio.to_thread(node.death, "pump")
        # What takes the connection down has the broker publish the death of the node.
        await until(lambda: (PUMP, "sparkplug_online", False) in told(one.core, PUMP), "the pump is dead")
        node.kill()
        await until(lambda: (NODE, "sparkplug_online", False) in told(one.core, NODE), "the node is dead")
        assert told(one.core, NODE) == [
            (NODE, "sparkplug_online", True),
            (NODE, "on", True),
            (NODE, "on", False),
            (NODE, "sparkplug_online", False),
        ]
        assert told(one.core, PUMP) == [
            (PUMP, "sparkplug_online", True),
            (PUMP, "minus", -5),
            (PUMP, "oil/temp", 21.5),
            (PUMP, "state", ""),
            (PUMP, "minus", -6),
            (PUMP, "oil/temp", 22.5),
            (PUMP, "sparkplug_online", False),
        ]
        rows = {(row["metric"], row["value"]): row for row in one.core.rows()}
        assert rows["minus", -6]["ts"] == 1_790_000_000.123
        assert rows["state", ""]["tags"] == {"is_null": "true"}
        assert rows["oil/temp", 22.5]["tags"] == {"is_historical": "true"}
        assert one.core.letters == []


async def test_a_gap_in_the_numbers_is_a_reading_and_the_node_is_asked_for_its_births_once(
    broker: Mosquitto, node: SparkplugNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "FIRST_ASK", 600.0)  # however slow the machine is
    async with running(broker) as one:
        await asyncio.to_thread(node.connect, pump=[MINUS])
        await asyncio.to_thread(node.skip, 3)
        await asyncio.to_thread(node.data, {"alias": 1, "value": 7, "type": "Int16"}, device="pump")
        births = (PUMP, "sparkplug_online", True)
        await until(lambda: told(one.core, PUMP).count(births) == 2, "the node has repeated its births")
        await asyncio.to_thread(node.skip, 1)
        await asyncio.to_thread(node.data, {"alias": 1, "value": 8, "type": "Int16"}, device="pump")
        await until(lambda: (PUMP, "minus", 8) in told(one.core, PUMP), "data goes on")
        assert node.rebirths == 1, "it is not asked again before its time"
        gaps = [row for row in one.core.rows() if row["metric"] == "sparkplug_gap"]
        assert [(row["device"], row["value"], row["tags"]) for row in gaps] == [
            (NODE, 3, {"reason": "seq", "expected": "2", "received": "5"}),
            (NODE, 1, {"reason": "seq", "expected": "2", "received": "3"}),
        ]
        assert one.value("petiole_source_gaps_total") == 2
        tagged = {row["value"]: row.get("tags") for row in one.core.rows() if row["metric"] == "minus"}
        assert tagged == {-5: None, 7: {"after_gap": "true"}, 8: {"after_gap": "true"}}


async def test_an_agent_that_knows_no_birth_asks_for_it_and_names_what_it_cannot_resolve(
    broker: Mosquitto, node: SparkplugNode
) -> None:
    await asyncio.to_thread(node.connect, pump=[MINUS])
    async with running(broker) as one:
        named = {"name": "extra", "value": 9, "type": "UInt32"}
        await asyncio.to_thread(node.data, {"alias": 1, "value": -7, "type": "Int16"}, named, device="pump")
        await until(lambda: (PUMP, "minus", -5) in told(one.core, PUMP), "the births are there")
        await asyncio.to_thread(node.data, {"alias": 1, "value": -8, "type": "Int16"}, device="pump")
        await until(lambda: (PUMP, "minus", -8) in told(one.core, PUMP), "data is resolved")
        (letter,) = one.core.letters
        assert letter.at == "spBv1.0/plant/DDATA/edge/pump"
        (metric,) = json.loads(letter.received)["metrics"]
        assert (metric["alias"], metric["int_value"]) == (1, 2**32 - 7)
        assert one.invalid("unknown_alias") == 1
        gap = next(row for row in one.core.rows() if row["metric"] == "sparkplug_gap")
        assert (gap["device"], gap["value"], gap["tags"]["reason"]) == (NODE, 0, "no_birth")
        assert (PUMP, "extra", 9) in told(one.core, PUMP), "a metric with name and type needs no birth"


async def test_all_that_came_with_qos_1_while_the_agent_was_down_is_a_reading_or_named_once(
    broker: Mosquitto, node: SparkplugNode
) -> None:
    async with running(broker) as one:
        await asyncio.to_thread(node.connect, pump=[MINUS])
        await until(lambda: (PUMP, "minus", -5) in told(one.core, PUMP), "the births are there")
    sent = range(60)
    for value in sent:
        by_alias = {"alias": 1, "value": value, "type": "Int16"}
        await asyncio.to_thread(node.data, by_alias, device="pump", qos=1)

    def seen(core: Burying) -> list[int]:
        resolved = [row["value"] for row in core.rows() if row["metric"] == "minus"]
        metrics = [metric for letter in core.letters for metric in json.loads(letter.received)["metrics"]]
        return [value for value in resolved if value != -5] + [metric["int_value"] for metric in metrics]

    async with running(broker) as one:
        await until(lambda: (PUMP, "minus", -5) in told(one.core, PUMP), "the births are there again")
        await until(lambda: len(seen(one.core)) >= len(sent), "all is there")
        assert sorted(seen(one.core)) == list(sent)
        assert one.invalid("unknown_alias") == len(one.core.letters) > 0


async def test_what_is_no_payload_or_no_value_is_a_dead_letter_and_the_rest_goes_on(
    broker: Mosquitto, node: SparkplugNode
) -> None:
    wave = {"name": "wave", "type": "Bytes", "value": [1, 2]}
    async with running(broker) as one:
        await asyncio.to_thread(node.connect, pump=[MINUS, wave])
        for topic in ("spBv1.0/plant/NDATA/edge", "spBv1.0/plant/NOPE/edge"):
            await asyncio.to_thread(publish, broker.port, topic, b"\xff\xff")
        await asyncio.to_thread(node.data, {"alias": 1, "value": 3, "type": "Int16"}, device="pump")
        await until(lambda: (PUMP, "minus", 3) in told(one.core, PUMP), "the rest goes on")
        # A broker takes what comes over two connections in any order.
        await until(lambda: len(one.core.letters) == 3, "the rest is named")
        assert one.invalid("unsupported_type") == 1
        assert one.invalid("bad_message") == 2
        reasons = [letter.reason for letter in one.core.letters]
        assert "Bytes is not a value of a reading: wave" in reasons


async def test_what_comes_while_nothing_can_be_stored_is_kept_in_its_order(
    broker: Mosquitto, node: SparkplugNode
) -> None:
    async with running(broker) as one:
        one.core.open.clear()
        await asyncio.to_thread(node.connect, pump=[MINUS])
        for value in range(300):
            await asyncio.to_thread(node.data, {"alias": 1, "value": value, "type": "Int16"}, device="pump")
        await until(lambda: one.core.waiting == 1, "something waits")
        one.core.open.set()
        await until(lambda: (PUMP, "minus", 299) in told(one.core, PUMP), "all is stored")
        assert [value for _, metric, value in told(one.core, PUMP) if metric == "minus"] == [-5, *range(300)]
        assert one.value("petiole_source_gaps_total") == 0, "the numbers went over 255"


async def test_a_death_that_comes_after_the_births_of_the_next_connection_kills_nothing(
    broker: Mosquitto, node: SparkplugNode, tmp_path: Path
) -> None:
    """Each connection of the client has the bdSeq 0, and the will of a silent connection comes late."""
    again = SparkplugNode(broker.port, tmp_path / "again", "node-again")
    async with running(broker) as one:
        await asyncio.to_thread(node.connect, pump=[MINUS])
        await until(lambda: (PUMP, "minus", -5) in told(one.core, PUMP), "the births are there")
        node.signal(signal.SIGSTOP)
        try:
            await asyncio.to_thread(again.connect, pump=[MINUS])
            # The broker gives up a silent client after one and a half keepalives of 5 s.
            await until(lambda: again.rebirths == 1, "the node is asked whether it lives")
            await asyncio.to_thread(again.data, {"alias": 1, "value": 7, "type": "Int16"}, device="pump")
            await until(lambda: (PUMP, "minus", 7) in told(one.core, PUMP), "its data is resolved")
            assert (PUMP, "sparkplug_online", False) not in told(one.core, PUMP)
            again.kill()
            await until(lambda: (NODE, "sparkplug_online", False) in told(one.core, NODE), "it is dead")
        finally:
            again.kill()
        assert one.core.letters == []


async def test_a_restarted_agent_knows_the_births_unless_messages_are_missing(
    broker: Mosquitto, node: SparkplugNode, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    async with running(broker, state) as one:
        await asyncio.to_thread(node.connect, pump=[MINUS])
        await until(lambda: (PUMP, "minus", -5) in told(one.core, PUMP), "the births are there")
    async with running(broker, state) as one:
        await asyncio.to_thread(node.data, {"alias": 1, "value": 7, "type": "Int16"}, device="pump")
        await until(lambda: (PUMP, "minus", 7) in told(one.core, PUMP), "its data is resolved")
        assert node.rebirths == 0
    await asyncio.to_thread(node.data, {"alias": 1, "value": 8, "type": "Int16"}, device="pump")
    async with running(broker, state) as one:
        await asyncio.to_thread(node.data, {"alias": 1, "value": 9, "type": "Int16"}, device="pump")
        await until(lambda: (PUMP, "minus", -5) in told(one.core, PUMP), "the births are there again")
        assert node.rebirths == 1
        assert one.invalid("unknown_alias") == 1


async def test_arrays_datasets_and_templates_are_readings(broker: Mosquitto, node: SparkplugNode) -> None:
    table = {"numOfColumns": 2, "types": ["Int32", "String"], "columns": ["n", "text"]}
    births = [
        {"name": "table", "type": "DataSet", "value": {**table, "rows": [[1, "a"], [2, "b"]]}},
        {
            "name": "motor",
            "type": "Template",
            "value": {
                "version": "",
                "templateRef": "motor",
                "isDefinition": False,
                "metrics": [{"name": "speed", "type": "Int32", "value": -5}],
                "parameters": [],
            },
        },
    ]
    async with running(broker) as one:
        await asyncio.to_thread(node.connect, pump=births)
        await until(lambda: (PUMP, "motor/speed", -5) in told(one.core, PUMP), "the births are there")
        assert told(one.core, PUMP)[1:] == [
            (PUMP, "table/n", [1, 2]),
            (PUMP, "table/text", '["a","b"]'),
            (PUMP, "motor/speed", -5),
        ]
        assert one.core.letters == []
