"""Raw JetStream beside the product: a leaf's stream and the hub's stream that sources it, as the documents of
nats-server show them, made once and left alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from nats.aio.client import Client

from agent.contract import api_prefix
from agent.jetstream import JetStream

Kind = Literal["durable", "classic"]
_BYTES = 256 * 2**20
_HEARTBEAT_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class RawStream:
    """One stream of a leaf; `durable` is sourced over a consumer of its own, `classic` over one that the hub
    makes and makes again."""

    domain: str
    name: str
    kind: Kind

    @property
    def subject(self) -> str:
        """Where its messages are published."""
        return f"{self.name}.n"

    def source(self) -> dict[str, Any]:
        """It as a source of the hub's stream."""
        found: dict[str, Any] = {
            "name": self.name,
            "external": {"api": api_prefix(self.domain), "deliver": ""},
        }
        if self.kind == "durable":
            found["consumer"] = {"name": "hub", "deliver_subject": f"deliver.{self.name}"}
        return found


async def make_at_leaf(nc: Client, streams: list[RawStream]) -> None:
    """The streams of one leaf, and their consumers."""
    js = JetStream(nc, timeout=30.0)
    for one in streams:
        await js.api(f"STREAM.CREATE.{one.name}", _stream(one.name) | {"subjects": [one.subject]})
        if one.kind == "durable":
            await js.create_consumer(
                one.name,
                {
                    "name": "hub",
                    "durable_name": "hub",
                    "deliver_subject": f"deliver.{one.name}",
                    "deliver_policy": "all",
                    "ack_policy": "flow_control",
                    "max_ack_pending": 10_000,
                    "flow_control": True,
                    "idle_heartbeat": _HEARTBEAT_NS,
                },
            )


async def make_at_hub(nc: Client, name: str, streams: list[RawStream]) -> None:
    """The stream that sources them all."""
    sources = [one.source() for one in streams]
    await JetStream(nc, timeout=30.0).api(
        f"STREAM.CREATE.{name}", _stream(name, 4) | {"sources": sources, "allow_direct": True}
    )


def _stream(name: str, times: int = 1) -> dict[str, Any]:
    return {
        "name": name,
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_bytes": _BYTES * times,
        "compression": "s2",
    }
