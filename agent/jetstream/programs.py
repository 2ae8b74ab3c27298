"""Serves programs without agent: pulls from consumers, and publishes with many acks in flight.

nats-py's `fetch` waits only for the first message, and its publish futures may wait for ever. Nothing is
retried; an unacknowledged message may be stored, so a repeat needs the same `Nats-Msg-Id`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from agent.jetstream.client import end_if_cancelled
from agent.jetstream.info import (
    ApiError,
    JetStreamError,
    MaxAckPendingError,
    PubAck,
    UnavailableError,
    check_refusal,
    pub_ack,
)

_HEARTBEAT: Final = "100"
_OVER: Final = frozenset({"404", "408"})
_NO_RESPONDERS: Final = "503"
_PENDING: Final = "Nats-Pending-Messages"
_PASSING: Final = ("leadership change", "server shutdown", "batch completed", "message size exceeds maxbytes")
"""Status 409 texts after which the consumer still works."""
_MISSED: Final = 2


class ConsumerGoneError(JetStreamError):
    """The consumer was deleted or is no pull consumer."""


class Consumer(Struct, frozen=True):
    """A pull consumer."""

    stream: str
    name: str
    prefix: str = "$JS.API"
    """API prefix, such as `$JS.hub.API` or an imported one."""

    @property
    def next(self) -> str:
        """The subject of pull requests."""
        return f"{self.prefix}.CONSUMER.MSG.NEXT.{self.stream}.{self.name}"


async def fetch(
    nc: Client, consumer: Consumer, batch: int, *, max_bytes: int = 0, wait: float = 0.0, timeout: float = 5.0
) -> list[Msg]:
    """Return up to `batch` messages and `max_bytes`: those available, and with `wait` those within so many
    seconds.

    The server acknowledges a message before its consumers learn of it (nats-server 2.15.1,
    `signalConsumersLoop`): without `wait` the newest may be missing.

    Raises `ConsumerGoneError`, or `UnavailableError` without any answer for `timeout` seconds more.
    """
    request = {"expires": round(wait * 1e9)} if wait else {"no_wait": True}
    request |= {"batch": batch} | ({"max_bytes": max_bytes} if max_bytes else {})
    received: list[Msg] = []
    async with _requested(nc) as answers:
        await _ask(nc, consumer, answers, request)
        while len(received) < batch:
            try:
                message = await _receive(answers, wait + timeout)
            except UnavailableError:
                if received:  # the server is silent if too many are unacknowledged
                    break
                raise
            if (status := _status(message)) is None:
                received.append(message)
            elif _ended(status, message) is not None:
                break
    return received


@asynccontextmanager
async def messages(
    nc: Client, consumer: Consumer, *, batch: int = 200, expires: float = 30.0, heartbeat: float = 5.0
) -> AsyncIterator[AsyncIterator[Msg]]:
    """Provide an endless message iterator with at most `batch` pending; requests renew after `expires`
    seconds.

    It raises `ConsumerGoneError`, and `UnavailableError` after twice `heartbeat` seconds of silence; a new
    one resumes.
    """
    async with _requested(nc) as answers:
        yield _endless(nc, consumer, answers, batch, expires, heartbeat)


async def _endless(
    nc: Client, consumer: Consumer, answers: Subscription, batch: int, expires: float, heartbeat: float
) -> AsyncIterator[Msg]:
    request = {"expires": round(expires * 1e9), "idle_heartbeat": round(heartbeat * 1e9)}
    requested = 0
    while True:
        if requested <= batch // 2:
            await _ask(nc, consumer, answers, {"batch": batch - requested, **request})
            requested = batch
        message = await _receive(answers, _MISSED * heartbeat)
        if (status := _status(message)) is None:
            requested -= 1
            yield message
        elif (unmet := _ended(status, message)) is not None:
            requested -= min(unmet, requested)


@asynccontextmanager
async def _requested(nc: Client) -> AsyncIterator[Subscription]:
    answers = await nc.subscribe(nc.new_inbox())
    try:
        yield answers
    finally:
        if not nc.is_closed:
            await answers.unsubscribe()


async def _ask(nc: Client, consumer: Consumer, answers: Subscription, request: dict[str, Any]) -> None:
    await nc.publish(consumer.next, json.dumps(request).encode(), answers.subject)


async def _receive(answers: Subscription, seconds: float) -> Msg:
    try:
        return await answers.next_msg(timeout=seconds)
    except TimeoutError as error:
        raise UnavailableError(f"no answer of the consumer for {seconds} s") from error
    finally:
        end_if_cancelled()


def _status(message: Msg) -> str | None:
    """Return a status message's code, else None."""
    return None if message.data or not message.headers else message.headers.get("Status")


def _ended(status: str, message: Msg) -> int | None:
    """Return how many messages an ended request lacked, None if it continues. Raises `ConsumerGoneError` or
    `UnavailableError`.
    """
    headers = message.headers or {}
    description = headers.get("Description", "")
    if status == _HEARTBEAT:
        return None
    if status == _NO_RESPONDERS:
        raise UnavailableError("no answer for the consumer: no such domain, or the link is down")
    if status in _OVER or description.lower().startswith(_PASSING):
        return int(headers.get(_PENDING, sys.maxsize))
    raise ConsumerGoneError(f"the pull was ended: {description} ({status})")


async def term(nc: Client, message: Msg, reason: str) -> None:
    """End a message's delivery with a reason, which nats-py's `Msg.term` lacks."""
    await nc.publish(message.reply, f"+TERM {reason}".encode())


class _Pending(NamedTuple):
    future: asyncio.Future[PubAck]
    timer: asyncio.TimerHandle


class AckWindow:
    """Publishes with at most `max_ack_inflight` pending acks; more wait, or with `wait=False` fail.

    `ack_timeout` in seconds. At the scope's end pending ones fail.
    """

    def __init__(
        self, nc: Client, *, max_ack_inflight: int = 5000, wait: bool = True, ack_timeout: float = 30.0
    ) -> None:
        self._nc, self._wait, self._ack_timeout = nc, wait, ack_timeout
        self._slots = asyncio.Semaphore(max_ack_inflight)
        self._serial = itertools.count(1)
        self._inbox = nc.new_inbox()
        self._pending: dict[str, _Pending] = {}
        self._subscription: Subscription | None = None

    async def __aenter__(self) -> AckWindow:
        self._subscription = await self._nc.subscribe(f"{self._inbox}.*", cb=self._answered)
        return self

    async def __aexit__(self, *_: object) -> None:
        for subject in list(self._pending):
            self._fail(subject, "the window was closed")
        if self._subscription is not None and not self._nc.is_closed:
            await self._subscription.unsubscribe()

    @property
    def in_flight(self) -> int:
        """Number of pending acks."""
        return len(self._pending)

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None
    ) -> asyncio.Future[PubAck]:
        """Send a message and return a future: `PubAck`, `ApiError` or `UnavailableError`.

        Raises `MaxAckPendingError`, or as nats-py.
        """
        if not self._wait and self._slots.locked():
            raise MaxAckPendingError(
                f"{self.in_flight} acknowledgements are in flight; wait for some of them"
            )
        await self._slots.acquire()
        reply = f"{self._inbox}.{next(self._serial)}"
        loop = asyncio.get_running_loop()
        future: asyncio.Future[PubAck] = loop.create_future()
        timer = loop.call_later(self._ack_timeout, self._fail, reply, f"no answer in {self._ack_timeout} s")
        self._pending[reply] = _Pending(future, timer)
        future.add_done_callback(lambda _: self._settled(reply))  # it may be cancelled by its waiter
        try:
            await self._nc.publish(subject, data, reply, headers=None if headers is None else dict(headers))
        except BaseException:
            future.cancel()
            raise
        return future

    async def _answered(self, message: Msg) -> None:
        future = self._settled(message.subject)
        if future is None:
            return
        try:
            future.set_result(_read(message))
        except (ApiError, UnavailableError) as error:
            _refuse(future, error)

    def _fail(self, reply: str, why: str) -> None:
        future = self._settled(reply)
        if future is not None:
            _refuse(future, UnavailableError(f"JetStream did not acknowledge a message: {why}"))

    def _settled(self, reply: str) -> asyncio.Future[PubAck] | None:
        """Free a message's slot and return its pending future."""
        pending = self._pending.pop(reply, None)
        if pending is None:
            return None
        pending.timer.cancel()
        self._slots.release()
        return None if pending.future.done() else pending.future


def _refuse(future: asyncio.Future[PubAck], error: Exception) -> None:
    future.set_exception(error)
    future.exception()  # no warning for a future that is not awaited


def _read(message: Msg) -> PubAck:
    if not message.data:
        raise UnavailableError(f"no stream takes this subject: {(message.headers or {}).get('Status', '')}")
    try:
        answer: dict[str, Any] = json.loads(message.data)
        check_refusal(answer, "a message")
        return pub_ack(answer)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnavailableError(f"what answered is not JetStream: {message.data[:80]!r}") from error
