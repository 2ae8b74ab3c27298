"""Streams, consumers and messages as their server reports them, the errors of requests to it, and
configurations as plain mappings, to which a server adds fields and from which it leaves out what is empty.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct


class StreamInfo(Struct, frozen=True):
    """A stream as its server reports it."""

    name: str
    created: str
    """RFC 3339 as the server wrote it, or the earlier one of the same messages (`JetStream.continues`)."""
    first: int
    """The first sequence; `messages` is 0 in an empty stream."""
    last: int
    messages: int
    bytes: int
    config: dict[str, Any]
    sources: list[dict[str, Any]]
    """The state of each source."""
    last_time: str = ""
    """When its last message was stored (RFC 3339)."""
    consumers: int = 0
    """How many consumers it has."""
    leader: str = ""
    """The server that leads it and since when, "" while none does."""
    made: str = ""
    """When the server says that it was created, where `created` is the earlier one; otherwise empty."""


class ConsumerInfo(Struct, frozen=True):
    """A consumer as its server reports it; `delivered` and `ack_floor` are sequences of the stream."""

    name: str
    created: str
    delivered: int
    deliveries: int
    """How often it has delivered since it was last reset."""
    ack_floor: int
    pending: int
    ack_pending: int
    start: int
    """The sequence at which it begins."""
    pause_remaining: float
    """Seconds, 0 if it is not paused."""
    push_bound: bool
    """Whether a program or stream listens at its deliver subject."""
    config: dict[str, Any]
    waiting: int = 0
    """How many requests for messages wait at it."""
    redelivered: int = 0
    """How many of its messages were delivered more than once and are not acknowledged."""
    delivered_at: str = ""
    """When it last delivered (RFC 3339), empty if never."""

    @property
    def in_memory(self) -> bool:
        """Whether its server keeps it in memory, so that a restart ends it."""
        return bool(self.config.get("mem_storage"))


class CopyStatus(Struct, frozen=True):
    """A mirror or source as its server reports it."""

    seq: int
    """The origin's sequence up to which it has stored, 0 if it is unknown."""
    active: float | None
    """Seconds since its last sign of life, None if none came since the server started or it was added."""
    error: str = ""
    """The server's error."""
    error_code: int = 0
    consumer: str = ""
    """The consumer from which it reads, where its configuration names one."""

    def alive(self, within: float) -> bool:
        """Whether a message or a heartbeat came within so many seconds."""
        return self.active is not None and self.active < within


class RawMessage(Struct, frozen=True):
    """A stored message."""

    seq: int
    subject: str
    headers: dict[str, str]
    data: bytes
    time: str
    """RFC 3339 as the server wrote it."""


class PubAck(Struct, frozen=True):
    """The acknowledgement of a stored message."""

    stream: str
    seq: int
    domain: str
    duplicate: bool
    """Whether the stream held a message of this id before."""


def nanoseconds(time: str) -> int:
    """Nanoseconds since 1970 of a time as the server writes it (RFC 3339 in UTC, up to nine decimals)."""
    whole, _, fraction = time.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(f"{whole}+00:00").timestamp()) * 10**9 + int(f"{fraction:0<9}")


def stream_info(answer: Mapping[str, Any]) -> StreamInfo:
    """Read the answer to STREAM.INFO, CREATE or UPDATE."""
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
    """Read a mirror or source of a stream's info."""
    error = row.get("error") or {}
    return CopyStatus(
        seq=row.get("seq", 0),
        active=None if row["active"] < 0 else row["active"] / 1e9,
        error=error.get("description", ""),
        error_code=error.get("err_code", 0),
        consumer=consumer,
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


def pub_ack(answer: Mapping[str, Any]) -> PubAck:
    """Read the answer to a message that a stream stored. Raises `KeyError` for another answer."""
    return PubAck(
        answer.get("stream", ""), int(answer["seq"]), answer.get("domain", ""), bool(answer.get("duplicate"))
    )


def headers_of(block: bytes) -> dict[str, str]:
    """The headers of a message as the server stores them: a status line, then `Name: value` lines."""
    lines = block.decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name: value.strip() for name, _, value in pairs}


def covers(have: Mapping[str, Any], want: Mapping[str, Any]) -> bool:
    """Whether `have` holds all that `want` sets. The server leaves out fields that are zero or empty, and
    adds entries of its own to mappings such as `metadata`; lists must be equal."""
    return all(_same(have.get(key), value) for key, value in want.items())


def _same(have: Any, want: Any) -> bool:
    if isinstance(want, Mapping) and isinstance(have, Mapping):
        return covers(have, want)
    return bool(have == want) or (not have and not want)


STREAM_NOT_FOUND: Final = 10059
CONSUMER_NOT_FOUND: Final = 10014
MESSAGE_NOT_FOUND: Final = 10037
STALLED: Final = 10228
"""The error of a mirror or source whose acknowledgements on `$JS.FC` can't travel back."""
WRITE_IN_FLIGHT: Final = 10164
"""Another message under the same expected sequence is on its way; nothing was compared."""


class JetStreamError(Exception):
    """A request to JetStream was refused or not answered."""


class ApiError(JetStreamError):
    """The server refused: `code` is HTTP-like, `err_code` the server's own number of the reason."""

    def __init__(self, code: int, err_code: int, description: str, verb: str) -> None:
        super().__init__(f"JetStream refused {verb}: {description} (error {err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description
        self.verb = verb


def check_refusal(answer: Mapping[str, Any], what: str) -> None:
    """Raise the `ApiError` of an answer to a request for `what` that the server refused."""
    if refusal := answer.get("error"):
        code, err_code = refusal.get("code", 0), refusal.get("err_code", 0)
        raise ApiError(code, err_code, refusal.get("description", ""), what)


def reason_of(error: BaseException) -> str:
    """The text of an error; where it has none, as a timeout, what it means."""
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)


class UnavailableError(JetStreamError):
    """No answer: the server is unreachable, has no JetStream, or does not permit this user the request.
    Whether the request was carried out is unknown."""


class TooLargeError(JetStreamError):
    """The request is larger than the server accepts in a message, and was not sent."""


class MaxAckPendingError(JetStreamError):
    """The window of acknowledgements in flight is full; the message was not sent."""
