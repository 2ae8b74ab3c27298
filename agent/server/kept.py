"""What a leaf's server keeps from its hub. Rendered into the leaf's own remote, for permissions at the hub do
not hold against the hub. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.contract import api_prefix
from agent.server.permissions import MQTT_READINGS

_STREAM_CHANGES = (
    *("CREATE", "UPDATE", "DELETE", "PURGE", "SNAPSHOT", "RESTORE", "MSG.DELETE", "TEMPLATE"),
    *("PEER", "LEADER"),
)
_CONSUMER_CHANGES = ("DURABLE", "DELETE", "NAMES", "LIST", "MSG", "PAUSE", "UNPIN", "LEADER")


def kept_from_hub(domain: str, heard: Iterable[str] = ()) -> tuple[str, ...]:
    """What a leaf's server takes in from no hub, whatever that hub lets itself do: readings, acknowledgements
    of local programs, what the agent has `heard` from them, and every call of JetStream that changes a stream
    or a consumer or takes messages away. What stays is what a source needs: to look, to read, to start its
    consumer anew."""
    api = api_prefix(domain)
    return (
        "tel.>",
        "$MQTT.>",
        MQTT_READINGS,
        "$JS.ACK.>",
        *heard,
        f"{api}.INFO",
        *(f"{api}.{part}.>" for part in ("META", "SERVER", "ACCOUNT", "DIRECT")),
        *(f"{api}.STREAM.{verb}" for verb in ("NAMES", "LIST")),
        *(f"{api}.STREAM.{verb}.>" for verb in _STREAM_CHANGES),
        *(f"{api}.CONSUMER.{verb}.>" for verb in _CONSUMER_CHANGES),
    )
