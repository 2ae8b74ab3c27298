"""Pulls messages from a consumer: those available now, or an endless sequence.

For programs that read a domain without the agent. nats-py has a `fetch` that waits for the first message and
not for the rest, and no endless iterator. The caller acknowledges, by the message's own methods and `term`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from agent.jetstream.client import end_if_cancelled
from agent.jetstream.info import JetStreamError, UnavailableError

_HEARTBEAT: Final = "100"
_OVER: Final = frozenset({"404", "408"})
_NO_RESPONDERS: Final = "503"
_PENDING: Final = "Nats-Pending-Messages"
_PASSING: Final = ("leadership change", "server shutdown", "batch completed", "message size exceeds maxbytes")
"""Descriptions of status 409 that end a request while the consumer still works."""
_MISSED: Final = 2


class ConsumerGoneError(JetStreamError):
    """The consumer ended the pull: it was deleted, or it is not a pull consumer."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A pull consumer."""

    stream: str
    name: str
    prefix: str = "$JS.API"
    """The prefix of its API: another domain's, such as `$JS.hub.API`, or one imported from another
    account."""

    @property
    def next(self) -> str:
        """The subject of requests for messages."""
        return f"{self.prefix}.CONSUMER.MSG.NEXT.{self.stream}.{self.name}"


async def fetch(
    nc: Client,
    consumer: Consumer,
    batch: int,
    *,
    max_bytes: int = 0,
    wait: float = 0.0,
    timeout: float = 5.0,
) -> list[Msg]:
    """Up to `batch` messages and, if given, `max_bytes`: those available now, and with `wait` also those that
    arrive within so many seconds; an empty list for none. Raises `ConsumerGoneError`, or `UnavailableError`
    if nothing arrived and there was no answer for `timeout` seconds more."""
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
    """An endless iterator of messages, within the context. At most `batch` of them wait here or are in
    transit; a request ends after `expires` seconds and another follows. It raises `ConsumerGoneError`, and
    `UnavailableError` if nothing, not even a heartbeat, arrives for twice `heartbeat` seconds; a new iterator
    resumes after what was acknowledged."""
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
    """The status if a message is not one of the stream."""
    return None if message.data or not message.headers else message.headers.get("Status")


def _ended(status: str, message: Msg) -> int | None:
    """How many messages, at most, the request that this status ends still lacked; None if it goes on. Raises
    `ConsumerGoneError` or `UnavailableError`."""
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
    """End the delivery of a message for good; the server's advisory has the reason. nats-py has `Msg.term`,
    without a reason."""
    await nc.publish(message.reply, f"+TERM {reason}".encode())
