"""The JetStream API as raw JSON over a connection of nats-py, for the leaf and the hub.

nats-py's own models drop fields that they do not know (a source's `consumer`, `external` and `seq` among
them), and an update made from such a model would lose them at the server; so configurations are plain
mappings here, as the server writes them. This module keeps no state, decides nothing and retries nothing;
every call ends within its timeout.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

STREAM_NOT_FOUND: Final = 10059
CONSUMER_NOT_FOUND: Final = 10014
MESSAGE_NOT_FOUND: Final = 10037


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


class UnavailableError(JetStreamError):
    """No answer: the server is away, has no JetStream, or the permissions of this user let nothing through.
    Whether the request was carried out is not known."""


class TooLargeError(JetStreamError):
    """The request is above what this connection's server takes in a message, and was not sent."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as its server reports it: `created` is RFC 3339 as the server wrote it, `bytes` what it holds,
    `first` and `last` are sequences (an empty stream has `messages` 0), `sources` the state of each one."""

    name: str
    created: str
    first: int
    last: int
    messages: int
    bytes: int
    config: dict[str, Any]
    sources: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer as its server reports it; `delivered` and `ack_floor` are sequences of the stream, `start`
    is the one it begins at, `pause_remaining` is in seconds, 0 when it is not paused."""

    name: str
    created: str
    delivered: int
    ack_floor: int
    pending: int
    ack_pending: int
    start: int
    pause_remaining: float
    push_bound: bool
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RawMessage:
    """A stored message; `time` is RFC 3339 as the server wrote it."""

    seq: int
    subject: str
    headers: dict[str, str]
    data: bytes
    time: str


class JetStream:
    """The API of one JetStream domain; `prefix` names another domain than the server's own, `timeout` is in
    seconds and holds for every call."""

    def __init__(self, nc: Client, prefix: str = "$JS.API", timeout: float = 5.0) -> None:
        self._nc = nc
        self._prefix = prefix
        self._timeout = timeout

    @property
    def connected(self) -> bool:
        """Whether the connection is up now."""
        return bool(self._nc.is_connected)

    async def api(
        self, verb: str, request: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """One request, such as `STREAM.INFO.X`, and its answer. Raises `ApiError` or `UnavailableError`."""
        return await self._request(f"{self._prefix}.{verb}", _encoded(request), verb, timeout=timeout)

    async def publish(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Store one message and return its sequence. Raises `ApiError`, `TooLargeError` or
        `UnavailableError`."""
        answer = await self._request(subject, data, f"a message on {subject}", headers, timeout)
        return int(answer["seq"])

    async def stream_info(self, name: str) -> StreamInfo:
        """The state of a stream. Raises `ApiError` (`STREAM_NOT_FOUND`) or `UnavailableError`."""
        return _stream_info(await self.api(f"STREAM.INFO.{name}"))

    async def ensure_stream(self, config: Mapping[str, Any]) -> StreamInfo:
        """Make the stream, or change it where it differs in a field that `config` sets; other fields stay as
        they are. Raises `ApiError` or `UnavailableError`."""
        name = config["name"]
        try:
            info = await self.stream_info(name)
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise
            return _stream_info(await self.api(f"STREAM.CREATE.{name}", config))
        if covers(info.config, config):
            return info
        return await self.update_stream(merged(info.config, config))

    async def update_stream(self, config: Mapping[str, Any], timeout: float | None = None) -> StreamInfo:
        """Replace the whole configuration of a stream. Raises `ApiError` or `UnavailableError`."""
        return _stream_info(await self.api(f"STREAM.UPDATE.{config['name']}", config, timeout))

    async def purge(self, stream: str, up_to_seq: int) -> int:
        """Delete every message up to and with this sequence; returns how many. The caller keeps `up_to_seq`
        at or below the last one, for otherwise the server goes on counting from there (seen on 2.15.1).
        Raises `ApiError` or `UnavailableError`."""
        answer = await self.api(f"STREAM.PURGE.{stream}", {"seq": up_to_seq + 1})
        return int(answer["purged"])

    async def get_message(
        self,
        stream: str,
        *,
        seq: int | None = None,
        last_by_subject: str | None = None,
        next_by_subject: str | None = None,
    ) -> RawMessage | None:
        """The message at a sequence, the first one of a subject from a sequence on, or the last one of a
        subject (wildcards allowed); None where there is none. Raises `ApiError` or `UnavailableError`."""
        request: dict[str, Any] = (
            {"seq": seq} if last_by_subject is None else {"last_by_subj": last_by_subject}
        )
        if next_by_subject is not None:
            request["next_by_subj"] = next_by_subject
        try:
            answer = await self.api(f"STREAM.MSG.GET.{stream}", request)
        except ApiError as error:
            if error.err_code != MESSAGE_NOT_FOUND:
                raise
            return None
        message = answer["message"]
        return RawMessage(
            seq=message["seq"],
            subject=message["subject"],
            headers=_headers(base64.b64decode(message.get("hdrs", ""))),
            data=base64.b64decode(message.get("data", "")),
            time=message["time"],
        )

    async def consumer_info(self, stream: str, name: str) -> ConsumerInfo:
        """The state of a consumer. Raises `ApiError` (`CONSUMER_NOT_FOUND`) or `UnavailableError`."""
        return _consumer_info(await self.api(f"CONSUMER.INFO.{stream}.{name}"))

    async def create_consumer(self, stream: str, config: Mapping[str, Any]) -> ConsumerInfo:
        """Make a consumer, or change the one of that name. Raises `ApiError` or `UnavailableError`."""
        parts = ["CONSUMER.CREATE", stream, config["name"]]
        if config.get("filter_subject"):
            parts.append(config["filter_subject"])
        return _consumer_info(await self.api(".".join(parts), {"stream_name": stream, "config": config}))

    async def pause_consumer(self, stream: str, name: str, seconds: float) -> None:
        """Pause a consumer for so long from now by this machine's clock, which the server compares with its
        own; 0 lets it flow. Raises `ApiError` (`CONSUMER_NOT_FOUND`) or `UnavailableError`."""
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        request = {"pause_until": until.isoformat()} if seconds else None
        await self.api(f"CONSUMER.PAUSE.{stream}.{name}", request)

    async def delete_consumer(self, stream: str, name: str) -> bool:
        """Delete a consumer; False where there was none. Raises `ApiError` or `UnavailableError`."""
        try:
            await self.api(f"CONSUMER.DELETE.{stream}.{name}")
        except ApiError as error:
            if error.err_code != CONSUMER_NOT_FOUND:
                raise
            return False
        return True

    async def consumer_names(self, stream: str) -> list[str]:
        """The names of all consumers of a stream. Raises `ApiError` or `UnavailableError`."""
        names: list[str] = []
        while True:
            page = await self.api(f"CONSUMER.NAMES.{stream}", {"offset": len(names)})
            found = page.get("consumers") or []
            names += found
            if not found or len(names) >= page["total"]:
                return names

    async def _request(
        self,
        subject: str,
        data: bytes,
        what: str,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        seconds = self._timeout if timeout is None else timeout
        try:
            message = await request(self._nc, subject, data, seconds, headers)
        except nats.errors.MaxPayloadError as error:
            raise TooLargeError(
                f"{what} has {len(data)} bytes, the server takes {self._nc.max_payload} in a message"
            ) from error
        except nats.errors.Error as error:
            raise UnavailableError(f"JetStream did not answer {what}: {_reason(error)}") from error
        answer = json.loads(message.data)
        if not isinstance(answer, dict):
            raise UnavailableError(f"what answered {what} is not JetStream")
        if refusal := answer.get("error"):
            raise ApiError(
                refusal.get("code", 0), refusal.get("err_code", 0), refusal.get("description", ""), what
            )
        return answer


async def request(
    nc: Client, subject: str, data: bytes, timeout: float, headers: Mapping[str, str] | None = None
) -> Msg:
    """The answer to one request; raises what nats-py does. A cancellation is never lost: `asyncio.wait_for`
    of Python 3.11, in the client, swallows one that comes together with the answer or the end of the
    connection, and a service that is cancelled once would go on for ever."""
    try:
        return await nc.request(
            subject, data, timeout=timeout, headers=None if headers is None else dict(headers)
        )
    finally:
        end_if_cancelled()


def end_if_cancelled() -> None:
    """Raise the cancellation of this task where it was swallowed."""
    if (task := asyncio.current_task()) is not None and task.cancelling():
        raise asyncio.CancelledError


def covers(have: Mapping[str, Any], want: Mapping[str, Any]) -> bool:
    """Whether `have` holds all that `want` sets. The server leaves out fields that are zero or empty, and
    adds entries of its own to mappings such as `metadata`; lists must be equal."""
    return all(_same(have.get(key), value) for key, value in want.items())


def merged(have: Mapping[str, Any], want: Mapping[str, Any]) -> dict[str, Any]:
    """`have` with all that `want` sets; mappings within are merged, lists replaced."""
    result = dict(have)
    for key, value in want.items():
        old = have.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def _same(have: Any, want: Any) -> bool:
    if isinstance(want, Mapping) and isinstance(have, Mapping):
        return covers(have, want)
    return bool(have == want) or (not have and not want)


def _encoded(request: Mapping[str, Any] | None) -> bytes:
    return b"" if request is None else json.dumps(request, separators=(",", ":")).encode()


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _stream_info(answer: Mapping[str, Any]) -> StreamInfo:
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
    )


def _consumer_info(answer: Mapping[str, Any]) -> ConsumerInfo:
    return ConsumerInfo(
        name=answer["name"],
        created=answer["created"],
        delivered=answer["delivered"]["stream_seq"],
        ack_floor=answer["ack_floor"]["stream_seq"],
        pending=answer["num_pending"],
        ack_pending=answer["num_ack_pending"],
        start=answer["config"].get("opt_start_seq", 1),
        pause_remaining=answer.get("pause_remaining", 0) / 1e9 if answer.get("paused") else 0.0,
        push_bound=bool(answer.get("push_bound")),
        config=answer["config"],
    )


def _headers(block: bytes) -> dict[str, str]:
    """The headers of a message as the server stores them: a status line, then `Name: value` lines."""
    lines = block.decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name: value.strip() for name, _, value in pairs}
