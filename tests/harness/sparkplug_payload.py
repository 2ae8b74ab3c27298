"""Payloads of Sparkplug B as a test needs them: also such as no honest node would send."""

from __future__ import annotations

from typing import Any

from agent.leaf.inputs.mqtt.sparkplug.payload import METRIC, PAYLOAD


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
