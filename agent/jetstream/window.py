"""Publishes to JetStream with many acknowledgements in flight, each of which ends.

For programs that use a domain without the agent. nats-py has the same, but its futures wait for ever for an
acknowledgement that does not come, and occupy the window meanwhile. Nothing is retried: what is not
acknowledged in time may be stored nevertheless, so a further attempt needs the same `Nats-Msg-Id`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from agent.jetstream.info import ApiError, MaxAckPendingError, PubAck, UnavailableError


class _Pending(NamedTuple):
    future: asyncio.Future[PubAck]
    timer: asyncio.TimerHandle


class AckWindow:
    """Publishes with at most `max_ack_inflight` acknowledgements in flight. A publish above that waits for
    one to arrive or to time out, or with `wait=False` fails. `ack_timeout` is in seconds. Use it as a
    context; what is still in flight at its end fails."""

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
        """How many acknowledgements are in flight."""
        return len(self._pending)

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None
    ) -> asyncio.Future[PubAck]:
        """Send one message and return the future of its acknowledgement, which need not be awaited: a
        `PubAck`, `ApiError`, or `UnavailableError` if no stream listens or answers in time. Raises
        `MaxAckPendingError`, or what nats-py raises for a message that it cannot send."""
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
        """Free the slot of a message; returns its future unless that is done."""
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
        if refusal := answer.get("error"):
            raise ApiError(
                refusal.get("code", 0),
                refusal.get("err_code", 0),
                refusal.get("description", ""),
                "a message",
            )
        return PubAck(
            answer["stream"], answer["seq"], answer.get("domain", ""), bool(answer.get("duplicate"))
        )
    except (ValueError, KeyError, AttributeError) as error:
        raise UnavailableError(f"what answered is not JetStream: {message.data[:80]!r}") from error
