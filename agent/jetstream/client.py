"""Calls the JetStream API over nats-py, without retries and within timeouts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import msgspec
import nats.errors
from msgspec.structs import replace
from nats.aio.client import Client
from nats.aio.msg import Msg

from agent.base.nats_server import merged
from agent.contract import H_MESSAGE_ID
from agent.jetstream.info import (
    CONSUMER_NOT_FOUND,
    MESSAGE_NOT_FOUND,
    STREAM_NOT_FOUND,
    ApiError,
    ConsumerInfo,
    PubAck,
    RawMessage,
    StreamInfo,
    TooLargeError,
    UnavailableError,
    check_refusal,
    covers,
    headers_of,
    pub_ack,
    reason_of,
)
from agent.jetstream.info import consumer_info as read_consumer
from agent.jetstream.info import stream_info as read_stream


class JetStream:
    """A domain's API; `prefix` for another domain, `timeout` in seconds per call."""

    def __init__(self, nc: Client, prefix: str = "$JS.API", timeout: float = 5.0) -> None:
        self._nc = nc
        self._prefix = prefix
        self._timeout = timeout
        self._continued: dict[tuple[str, str], str] = {}

    def continues(self, stream: str, made: str, created: str) -> None:
        """Report a stream recreated at `made` as the earlier one of `created`."""
        self._continued[stream, made] = created

    def _read(self, answer: Mapping[str, Any]) -> StreamInfo:
        info = read_stream(answer)
        created = self._continued.get((info.name, info.created), info.created)
        return info if created == info.created else replace(info, created=created, made=info.created)

    @property
    def nc(self) -> Client:
        """The connection."""
        return self._nc

    @property
    def connected(self) -> bool:
        """Whether the connection is up."""
        return bool(self._nc.is_connected)

    @property
    def max_payload(self) -> int:
        """The server's message limit in bytes."""
        return int(self._nc.max_payload)

    async def api(
        self, verb: str, request: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """Send a request such as `STREAM.INFO.X`. Raises `ApiError` or `UnavailableError`."""
        return await self._request(f"{self._prefix}.{verb}", _encoded(request), verb, timeout=timeout)

    async def publish(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Store a message and return its sequence. Raises `ApiError`, `TooLargeError`
        or `UnavailableError`.
        """
        return (await self.publish_ack(subject, data, headers, timeout)).seq

    async def publish_ack(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> PubAck:
        """Store a message and return the whole answer; raises as `publish`."""
        answer = await self._request(subject, data, f"a message on {subject}", headers, timeout)
        return pub_ack(answer)

    async def stream_info(self, name: str) -> StreamInfo:
        """Return a stream's state. Raises `ApiError` (`STREAM_NOT_FOUND`) or `UnavailableError`."""
        return self._read(await self.api(f"STREAM.INFO.{name}"))

    async def find_stream(self, name: str) -> StreamInfo | None:
        """Return a stream's state, or None. Raises `ApiError` or `UnavailableError`."""
        with unless_refused(STREAM_NOT_FOUND):
            return await self.stream_info(name)
        return None

    async def ensure_stream(self, config: Mapping[str, Any]) -> StreamInfo:
        """Create a stream, or update it where `config` differs, keeping other fields. Raises `ApiError` or
        `UnavailableError`.
        """
        info = await self.find_stream(config["name"])
        if info is None:
            return await self._create_stream(config)
        if covers(info.config, config):
            return info
        return await self.update_stream(merged(info.config, config))

    async def get_or_create_stream(self, config: Mapping[str, Any]) -> StreamInfo:
        """Return a stream unchanged, or create it. Raises `ApiError` or `UnavailableError`."""
        return await self.find_stream(config["name"]) or await self._create_stream(config)

    async def _create_stream(self, config: Mapping[str, Any]) -> StreamInfo:
        return self._read(await self.api(f"STREAM.CREATE.{config['name']}", config))

    async def stream_names(self, subject: str = "") -> AsyncIterator[str]:
        """Yield stream names, optionally by subject, page by page. Raises `ApiError`
        or `UnavailableError`.
        """
        async for name in self._listed("STREAM.NAMES", "streams", subject):
            yield name

    async def streams(self, subject: str = "") -> AsyncIterator[StreamInfo]:
        """Yield stream states as `stream_names`."""
        async for row in self._listed("STREAM.LIST", "streams", subject):
            yield self._read(row)

    async def update_stream(self, config: Mapping[str, Any], timeout: float | None = None) -> StreamInfo:
        """Replace a stream's configuration. Raises `ApiError` or `UnavailableError`."""
        return self._read(await self.api(f"STREAM.UPDATE.{config['name']}", config, timeout))

    async def purge(self, stream: str, up_to_seq: int) -> int:
        """Delete messages up to and including a sequence; returns their number. Raises `ApiError` or
        `UnavailableError`.

        `up_to_seq` must not exceed the last one, or sequences continue there
        (`findings/nats-purge-beyond-the-end-moves-the-sequence.sh`).
        """
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
        """Return the message at a sequence, the first of a subject from a sequence, or a subject's last; None
        if missing.

        Raises `ApiError` or `UnavailableError`.
        """
        request: dict[str, Any] = (
            {"seq": seq} if last_by_subject is None else {"last_by_subj": last_by_subject}
        )
        if next_by_subject is not None:
            request["next_by_subj"] = next_by_subject
        with unless_refused(MESSAGE_NOT_FOUND):
            message = (await self.api(f"STREAM.MSG.GET.{stream}", request))["message"]
            return RawMessage(
                seq=message["seq"],
                subject=message["subject"],
                headers=headers_of(base64.b64decode(message.get("hdrs", ""))),
                data=base64.b64decode(message.get("data", "")),
                time=message["time"],
            )
        return None

    async def consumer_info(self, stream: str, name: str) -> ConsumerInfo:
        """Return a consumer's state. Raises `ApiError` (`CONSUMER_NOT_FOUND`) or `UnavailableError`."""
        return read_consumer(await self.api(f"CONSUMER.INFO.{stream}.{name}"))

    async def find_consumer(self, stream: str, name: str) -> ConsumerInfo | None:
        """Return a consumer's state, or None. Raises `ApiError` or `UnavailableError`."""
        with unless_refused(CONSUMER_NOT_FOUND):
            return await self.consumer_info(stream, name)
        return None

    async def create_consumer(self, stream: str, config: Mapping[str, Any]) -> ConsumerInfo:
        """Create or update a consumer. Raises `ApiError` or `UnavailableError`."""
        parts = ["CONSUMER.CREATE", stream, config["name"]]
        if config.get("filter_subject"):
            parts.append(config["filter_subject"])
        return read_consumer(await self.api(".".join(parts), {"stream_name": stream, "config": config}))

    async def pause_consumer(self, stream: str, name: str, seconds: float) -> None:
        """Pause a consumer for seconds by this clock, which the server compares; 0 resumes.

        Raises `ApiError` (`CONSUMER_NOT_FOUND`) or `UnavailableError`.
        """
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        request = {"pause_until": until.isoformat()} if seconds else None
        await self.api(f"CONSUMER.PAUSE.{stream}.{name}", request)

    async def delete_consumer(self, stream: str, name: str) -> bool:
        """Delete a consumer; False if missing. Raises `ApiError` or `UnavailableError`."""
        with unless_refused(CONSUMER_NOT_FOUND):
            await self.api(f"CONSUMER.DELETE.{stream}.{name}")
            return True
        return False

    async def consumer_names(self, stream: str) -> list[str]:
        """Return a stream's consumer names. Raises `ApiError` or `UnavailableError`."""
        return [name async for name in self._listed(f"CONSUMER.NAMES.{stream}", "consumers")]

    async def consumers(self, stream: str) -> AsyncIterator[ConsumerInfo]:
        """Yield consumer states as `stream_names`."""
        async for row in self._listed(f"CONSUMER.LIST.{stream}", "consumers"):
            yield read_consumer(row)

    async def _listed(self, verb: str, what: str, subject: str = "") -> AsyncIterator[Any]:
        """Yield a listing's rows; pages have 1,024 names or 256 states."""
        offset = 0
        while True:
            query = {"offset": offset} | ({"subject": subject} if subject else {})
            page = await self.api(verb, query)
            rows = page.get(what) or []
            for row in rows:
                yield row
            offset += len(rows)
            if not rows or offset >= page["total"]:
                return

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
            raise UnavailableError(f"JetStream did not answer {what}: {reason_of(error)}") from error
        try:
            answer = msgspec.json.decode(message.data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise UnavailableError(f"what answered {what} is not JetStream")
        check_refusal(answer, what)
        return answer


@contextlib.contextmanager
def unless_refused(err_code: int) -> Iterator[None]:
    """End the body silently on this `err_code`."""
    try:
        yield
    except ApiError as error:
        if error.err_code != err_code:
            raise


async def request(
    nc: Client, subject: str, data: bytes, timeout: float, headers: Mapping[str, str] | None = None
) -> Msg:
    """Return a request's answer; raises as nats-py. Keeps cancellations that `asyncio.wait_for` of Python
    3.11 swallows.
    """
    try:
        return await nc.request(
            subject, data, timeout=timeout, headers=None if headers is None else dict(headers)
        )
    finally:
        end_if_cancelled()


async def respond(msg: Msg, data: bytes) -> None:
    """Answer a request if wanted."""
    if not msg.reply:
        return
    try:
        await msg.respond(data)
    except nats.errors.Error:
        return  # the connection is gone; the one who asked may ask again


def end_if_cancelled() -> None:
    """Raise a swallowed cancellation."""
    if (task := asyncio.current_task()) is not None and task.cancelling():
        raise asyncio.CancelledError


async def publish_own(
    js: JetStream,
    stream: str,
    subject: str,
    data: bytes,
    ident: str,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Store an agent's message once under an id, or a random one if taken; returns its sequence.

    Raises `ApiError`, `TooLargeError` or `UnavailableError`.
    """
    ack = await js.publish_ack(subject, data, {**headers, H_MESSAGE_ID: ident})
    if not ack.duplicate:
        return ack.seq
    message = await js.get_message(stream, seq=ack.seq)
    if message is not None and (message.subject, message.data) == (subject, data):
        return ack.seq
    return await js.publish(subject, data, {**headers, H_MESSAGE_ID: f"{ident}-{secrets.token_hex(16)}"})


def _encoded(request: Mapping[str, Any] | None) -> bytes:
    return b"" if request is None else json.dumps(request, separators=(",", ":")).encode()
