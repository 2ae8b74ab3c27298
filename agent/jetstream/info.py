"""Defines streams, consumers, messages and errors as servers report them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct


class StreamInfo(Struct, frozen=True):
    """A stream's state."""

    name: str
    created: str
    """RFC 3339 by the server, or the earlier one (`JetStream.continues`)."""
    first: int
    """First sequence; `messages` is 0 if empty."""
    last: int
    messages: int
    bytes: int
    config: dict[str, Any]
    sources: list[dict[str, Any]]
    """State of each source."""
    last_time: str = ""
    """Storage time of the last message (RFC 3339)."""
    consumers: int = 0
    """Number of consumers."""
    leader: str = ""
    """Leading server and since when, "" for none."""
    made: str = ""
    """The server's creation time where `created` is earlier, else ""."""


class ConsumerInfo(Struct, frozen=True):
    """A consumer's state; `delivered` and `ack_floor` are stream sequences."""

    name: str
    created: str
    delivered: int
    deliveries: int
    """Deliveries since the last reset."""
    ack_floor: int
    pending: int
    ack_pending: int
    start: int
    """First sequence."""
    pause_remaining: float
    """Seconds, 0 if not paused."""
    push_bound: bool
    """Whether its deliver subject has a subscriber."""
    config: dict[str, Any]
    waiting: int = 0
    """Waiting pull requests."""
    redelivered: int = 0
    """Redelivered unacknowledged messages."""
    delivered_at: str = ""
    """Last delivery (RFC 3339), "" for never."""


class CopyStatus(Struct, frozen=True):
    """A mirror's or source's state."""

    seq: int
    """Stored origin sequence, 0 if unknown."""
    active: float | None
    """Seconds since a sign of life, None for none since start or creation."""
    error: str = ""
    """The server's error."""
    error_code: int = 0
    consumer: str = ""
    """Its configured consumer."""

    def alive(self, within: float) -> bool:
        """Tell whether a sign of life came within so many seconds."""
        return self.active is not None and self.active < within


class RawMessage(Struct, frozen=True):
    """A stored message."""

    seq: int
    subject: str
    headers: dict[str, str]
    data: bytes
    time: str
    """RFC 3339 by the server."""


class PubAck(Struct, frozen=True):
    """A stored message's acknowledgement."""

    stream: str
    seq: int
    domain: str
    duplicate: bool
    """Whether the id was stored before."""


def nanoseconds(time: str) -> int:
    """Convert a server's time (RFC 3339 UTC, up to nine decimals) to ns since 1970."""
    whole, _, fraction = time.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(f"{whole}+00:00").timestamp()) * 10**9 + int(f"{fraction:0<9}")


def stream_info(answer: Mapping[str, Any]) -> StreamInfo:
    """Parse an answer of STREAM.INFO, CREATE or UPDATE."""
    state, cluster = answer["state"], answer.get("cluster") or {}
    leader = cluster.get("leader") or ""
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
        consumers=state["consumer_count"],
        leader=leader and f"{leader} since {cluster.get('leader_since', '')}",
    )


def copy_status(row: Mapping[str, Any], consumer: str = "") -> CopyStatus:
    """Parse a mirror or source."""
    error = row.get("error") or {}
    return CopyStatus(
        seq=row.get("seq", 0),
        active=None if row["active"] < 0 else row["active"] / 1e9,
        error=error.get("description", ""),
        error_code=error.get("err_code", 0),
        consumer=consumer,
    )


def consumer_info(answer: Mapping[str, Any]) -> ConsumerInfo:
    """Parse an answer of CONSUMER.INFO or CREATE."""
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


def pub_ack(answer: Mapping[str, Any]) -> PubAck:
    """Parse a PubAck. Raises `KeyError` for others."""
    return PubAck(
        answer.get("stream", ""), int(answer["seq"]), answer.get("domain", ""), bool(answer.get("duplicate"))
    )


def headers_of(block: bytes) -> dict[str, str]:
    """Parse stored headers: a status line, then `Name: value`."""
    lines = block.decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name: value.strip() for name, _, value in pairs}


def covers(have: Mapping[str, Any], want: Mapping[str, Any]) -> bool:
    """Tell whether `have` contains all of `want`. Servers omit empty fields and extend mappings; lists must
    be equal.
    """
    return all(_same(have.get(key), value) for key, value in want.items())


def _same(have: Any, want: Any) -> bool:
    if isinstance(want, Mapping) and isinstance(have, Mapping):
        return covers(have, want)
    return bool(have == want) or (not have and not want)


STREAM_NOT_FOUND: Final = 10059
CONSUMER_NOT_FOUND: Final = 10014
MESSAGE_NOT_FOUND: Final = 10037
STALLED: Final = 10228
"""Error of a mirror or source whose `$JS.FC` acks can't return (2.15.1)."""
WRITE_IN_FLIGHT: Final = 10164
"""Another message with the same expected sequence is pending; nothing was compared."""


class JetStreamError(Exception):
    """A JetStream request failed."""


class ApiError(JetStreamError):
    """A refusal: `code` is HTTP-like, `err_code` the server's reason."""

    def __init__(self, code: int, err_code: int, description: str, verb: str) -> None:
        super().__init__(f"JetStream refused {verb}: {description} (error {err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description
        self.verb = verb


def check_refusal(answer: Mapping[str, Any], what: str) -> None:
    """Raise the `ApiError` of an answer to a request for `what`."""
    if refusal := answer.get("error"):
        code, err_code = refusal.get("code", 0), refusal.get("err_code", 0)
        raise ApiError(code, err_code, refusal.get("description", ""), what)


def reason_of(error: BaseException) -> str:
    """Return an error's text, or its meaning if it has none."""
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)


class UnavailableError(JetStreamError):
    """No answer: server unreachable, no JetStream, or no permission. The request may have been executed."""


class TooLargeError(JetStreamError):
    """The request exceeds the server's limit and was not sent."""


class MaxAckPendingError(JetStreamError):
    """The ack window is full; the message was not sent."""
