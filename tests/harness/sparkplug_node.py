"""A real edge node of Sparkplug B that is not Python, sparkplug-client, at some broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.harness.node_server import NodeServer

Metrics = list[dict[str, Any]]
"""As the client takes them: `name`, `alias`, `type`, `value`, `isNull`, …"""


class SparkplugNode(NodeServer):
    """The node `plant/edge`. It answers a request for its births with them."""

    def __init__(self, port: int, directory: Path) -> None:
        super().__init__("sparkplug_node.js", "sparkplug-client", directory)
        self._port = port

    def connect(self, **births: Metrics) -> None:
        """Run it; returns when the broker has its births: of devices by name, `node` is its own."""
        self.run(f"mqtt://127.0.0.1:{self._port}", "plant", "edge")
        assert self.order(births=_named(births)) == "done"
        assert self.order(connect=True) == "done"

    def bears(self, **births: Metrics) -> None:
        """What its births say from now on."""
        assert self.order(births=_named(births)) == "done"

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
