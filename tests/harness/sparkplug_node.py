"""A real edge node of Sparkplug B that is not Python, sparkplug-client, at some broker; and payloads as a
test needs them, also such as no honest node would send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.demo.plan import Member
from agent.leaf.inputs.mqtt.sparkplug.payload import METRIC, PAYLOAD
from agent.testing.agent_process import AgentProcess
from tests.harness.mqtt_broker import broker_beside, broker_port, publish
from tests.harness.plant_servers import NodeServer


def metric(name: str | bytes | None = None, **fields: Any) -> dict[str, Any]:
    """A metric with these fields of the message type."""
    if name is not None:
        fields["name"] = name.encode() if isinstance(name, str) else name
    return fields


def payload(seq: int | None, *metrics: dict[str, Any], **fields: Any) -> bytes:
    """A payload of metrics, of the time 1,790,000,000 s."""
    packed_metrics = [METRIC(**fields).SerializeToString() for fields in metrics]
    message = PAYLOAD(timestamp=1_790_000_000_000, metrics=packed_metrics, **fields)
    if seq is not None:
        message.seq = seq
    packed: bytes = message.SerializeToString()
    return packed


Metrics = list[dict[str, Any]]
"""As the client takes them: `name`, `alias`, `type`, `value`, …"""
ADDED = frozenset({"sparkplug_gap", "sparkplug_online", "bdSeq", "Node Control/Rebirth"})
"""The metrics of what stands in the stream besides what is reported."""
_NODES: dict[Path, SparkplugNode] = {}


class SparkplugNode(NodeServer):
    """The node `plant/edge`. It answers a request for its births with them."""

    def __init__(self, port: int, directory: Path, client_id: str = "node-edge") -> None:
        super().__init__("sparkplug_node.js", "sparkplug-client", directory)
        self._port, self._client_id = port, client_id

    def connect(self, **births: Metrics) -> None:
        """Run it; returns when the broker has its births: of devices by name, `node` is its own."""
        self.run(f"mqtt://127.0.0.1:{self._port}", "plant", "edge", self._client_id)
        assert self.order(births=_named(births)) == "done"
        assert self.order(connect=True) == "done"

    def data(self, *metrics: dict[str, Any], device: str = "", qos: int = 0) -> None:
        """Publish data of the node or a device; returns when the broker has it."""
        assert self.order(data=metrics, device=device, qos=qos) == "done"

    def skip(self, messages: int) -> None:
        """Leave out so many numbers, as if messages were lost."""
        assert self.order(skip=messages) == "done"

    def death(self, device: str) -> None:
        """Publish the death of a device."""
        assert self.order(death=device) == "done"

    @property
    def rebirths(self) -> int:
        """How often it was asked for its births."""
        return int(self.order(rebirths=True))


def _named(births: dict[str, Metrics]) -> dict[str, Metrics]:
    return {"" if name == "node" else name: metrics for name, metrics in births.items()}


@contextmanager
def node_beside(member: Member) -> Iterator[SparkplugNode]:
    """That broker and node, as long as the scope lasts. The births of the node name nothing."""
    with broker_beside(member, "sparkplug", "spBv1.0/#", "spBv1.0/STATE/host") as broker:
        node = _NODES[member.directory] = SparkplugNode(broker.port, member.directory / "node")
        try:
            node.connect()
            yield node
        finally:
            node.kill()
            del _NODES[member.directory]


def sparkplug_toml(member: Member) -> str:
    """An input for that broker."""
    topics = '[{ filter = "spBv1.0/#", format = "sparkplug" }]'
    url = f"mqtt://127.0.0.1:{broker_port(member)}"
    return f'type = "mqtt"\nname = "sparkplug"\nurl = "{url}"\ntopics = {topics}\n'


def report(agent: AgentProcess, numbers: range) -> None:
    """Publish numbers, with a name and type, which need no birth, and with QoS 1, so that none is lost."""
    for number in numbers:
        _NODES[agent.member.directory].data({"name": "n", "type": "Double", "value": number}, qos=1)


def report_once(agent: AgentProcess, body: bytes) -> None:
    """Publish a reading that does not fit as a text, a metric of bytes, or what is no payload."""
    if body == b"bytes":
        _NODES[agent.member.directory].data({"name": "wave", "type": "Bytes", "value": [1]}, qos=1)
    elif body.startswith(b"{"):
        noise = json.loads(body)["tags"]["padding"]
        _NODES[agent.member.directory].data({"name": "noise", "type": "String", "value": noise}, qos=1)
    else:
        publish(broker_port(agent.member), "spBv1.0/plant/NDATA/edge", body)
