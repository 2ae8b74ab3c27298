"""Streams, consumers and messages as their server reports them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as its server reports it: `created` and `last_time`, when its last message was stored, are
    RFC 3339 as the server wrote it, `bytes` what it holds, `first` and `last` are sequences (an empty stream
    has `messages` 0), `sources` the state of each one."""

    name: str
    created: str
    first: int
    last: int
    messages: int
    bytes: int
    config: dict[str, Any]
    sources: list[dict[str, Any]]
    last_time: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer as its server reports it; `delivered` and `ack_floor` are sequences of the stream, `start`
    is the one it begins at, `pause_remaining` is in seconds, 0 when it is not paused. `deliveries` is how
    often it has delivered since it was last reset, `waiting` how many requests for messages wait at it,
    `redelivered` how many of its messages were delivered more than once and are not acknowledged, and
    `delivered_at` when it last delivered (RFC 3339, empty where it never did)."""

    name: str
    created: str
    delivered: int
    deliveries: int
    ack_floor: int
    pending: int
    ack_pending: int
    start: int
    pause_remaining: float
    push_bound: bool
    config: dict[str, Any]
    waiting: int = 0
    redelivered: int = 0
    delivered_at: str = ""


@dataclass(frozen=True, slots=True)
class RawMessage:
    """A stored message; `time` is RFC 3339 as the server wrote it."""

    seq: int
    subject: str
    headers: dict[str, str]
    data: bytes
    time: str


@dataclass(frozen=True, slots=True)
class PubAck:
    """What a stream answers when it holds a message; `duplicate` when it held one of this id before."""

    stream: str
    seq: int
    domain: str
    duplicate: bool


def nanoseconds(time: str) -> int:
    """Nanoseconds since 1970 of a time as the server writes it (RFC 3339 in UTC, up to nine decimals)."""
    whole, _, fraction = time.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(f"{whole}+00:00").timestamp()) * 10**9 + int(f"{fraction:0<9}")


def stream_info(answer: Mapping[str, Any]) -> StreamInfo:
    """Read the answer to STREAM.INFO, CREATE or UPDATE."""
    state = answer["state"]
    return StreamInfo(
        name=answer["config"]["name"],
        created=answer["created"],
        first=state["first_seq"],
        last=state["last_seq"],
        messages=state["messages"],
        bytes=state["bytes"],
        config=answer["config"],
        sources=answer.get("sources") or [],
        last_time=state["last_ts"],
    )


def consumer_info(answer: Mapping[str, Any]) -> ConsumerInfo:
    """Read the answer to CONSUMER.INFO or CREATE."""
    return ConsumerInfo(
        name=answer["name"],
        created=answer["created"],
        delivered=answer["delivered"]["stream_seq"],
        deliveries=answer["delivered"]["consumer_seq"],
        ack_floor=answer["ack_floor"]["stream_seq"],
        pending=answer["num_pending"],
        ack_pending=answer["num_ack_pending"],
        start=answer["config"].get("opt_start_seq", 1),
        pause_remaining=answer.get("pause_remaining", 0) / 1e9 if answer.get("paused") else 0.0,
        push_bound=bool(answer.get("push_bound")),
        config=answer["config"],
        waiting=answer.get("num_waiting", 0),
        redelivered=answer.get("num_redelivered", 0),
        delivered_at=answer["delivered"].get("last_active", ""),
    )


def headers_of(block: bytes) -> dict[str, str]:
    """The headers of a message as the server stores them: a status line, then `Name: value` lines."""
    lines = block.decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name: value.strip() for name, _, value in pairs}
