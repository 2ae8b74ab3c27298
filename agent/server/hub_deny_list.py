"""What a leaf's server keeps from its hub. Rendered into the leaf's own remote, for permissions at the hub do
not hold against the hub. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.contract import api_prefix, inbox_prefix
from agent.server.permissions import DEVICE, MQTT_READINGS

_STREAM_CHANGES = (
    *("CREATE", "UPDATE", "DELETE", "PURGE", "SNAPSHOT", "RESTORE", "MSG.DELETE", "TEMPLATE"),
    *("PEER", "LEADER", "CANCEL_MOVE"),
)
_CONSUMER_CHANGES = ("DURABLE", "DELETE", "NAMES", "LIST", "MSG", "PAUSE", "UNPIN", "LEADER", "PEER")


def kept_from_hub(domain: str, heard: Iterable[str] = ()) -> tuple[str, ...]:
    """What a leaf's server takes in from no hub, and lets none listen to, whatever that hub lets itself do:
    readings, acknowledgements of local programs and answers to them, what the agent has `heard` from them,
    questions to the server, and every call of JetStream that changes a stream or takes messages away. What
    stays is what a source needs: to look, to read through a consumer, to start that anew."""
    api = api_prefix(domain)
    return (
        "tel.>",
        "$MQTT.>",
        MQTT_READINGS,
        "$JS.ACK.>",
        "$SYS.>",
        "$KV.>",
        "cmd.>",
        f"{inbox_prefix(DEVICE)}.>",
        *heard,
        f"{api}.INFO",
        *(f"{api}.{part}.>" for part in ("META", "SERVER", "ACCOUNT", "DIRECT")),
        *(f"{api}.STREAM.{verb}" for verb in ("NAMES", "LIST")),
        *(f"{api}.STREAM.{verb}.>" for verb in _STREAM_CHANGES),
        *(f"{api}.CONSUMER.{verb}.>" for verb in _CONSUMER_CHANGES),
    )
