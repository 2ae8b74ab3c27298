"""Pulling from a consumer: what is there now, or one message after the other for as long as somebody asks.

For programs that read a domain without the agent. nats-py has a `fetch` that waits for
the first message and not for the rest, and nothing that goes on. To acknowledge is the caller's, by the
message's own methods and `term`.
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

from agent.jetstream.errors import JetStreamError, UnavailableError
from agent.jetstream.requests import end_if_cancelled

_HEARTBEAT: Final = "100"
_OVER: Final = frozenset({"404", "408"})
_NO_RESPONDERS: Final = "503"
_PENDING: Final = "Nats-Pending-Messages"
_PASSING: Final = ("leadership change", "server shutdown", "batch completed", "message size exceeds maxbytes")
"""What a request may be ended with while the consumer is well, below the status 409."""
_MISSED: Final = 2


class ConsumerGoneError(JetStreamError):
    """The consumer ended the pull: it was deleted, or is none to pull from."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A pull consumer, and below which prefix of the API it is reached: another domain's, such as
    `$JS.hub.API`, or one that was imported from another account."""

    stream: str
    name: str
    prefix: str = "$JS.API"

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
    """Up to so many messages and, where it is given, bytes: those that are there now, and with `wait` also
    those that come within so many seconds; an empty list for none. Raises `ConsumerGoneError`, or
    `UnavailableError` when nothing came and there was no answer for `timeout` seconds more."""
    request = {"expires": round(wait * 1e9)} if wait else {"no_wait": True}
    request |= {"batch": batch} | ({"max_bytes": max_bytes} if max_bytes else {})
    found: list[Msg] = []
    async with _requested(nc) as answers:
        await _ask(nc, consumer, answers, request)
        while len(found) < batch:
            try:
                message = await _heard(answers, wait + timeout)
            except UnavailableError:
                if found:  # delivered, so they count; the server is silent where too many are unacknowledged
                    break
                raise
            if (status := _status(message)) is None:
                found.append(message)
            elif _ended(status, message) is not None:
                break
    return found


@asynccontextmanager
async def messages(
    nc: Client, consumer: Consumer, *, batch: int = 200, expires: float = 30.0, heartbeat: float = 5.0
) -> AsyncIterator[AsyncIterator[Msg]]:
    """An endless iterator of messages, within the context. At most `batch` of them wait here or are under
    way; a request ends after `expires` seconds and another follows. It raises `ConsumerGoneError`, and
    `UnavailableError` when nobody answers or nothing, not even a heartbeat, was heard for twice `heartbeat`
    seconds; to begin again goes on after what was acknowledged."""
    async with _requested(nc) as answers:
        yield _endless(nc, consumer, answers, batch, expires, heartbeat)


async def _endless(
    nc: Client, consumer: Consumer, answers: Subscription, batch: int, expires: float, heartbeat: float
) -> AsyncIterator[Msg]:
    request = {"expires": round(expires * 1e9), "idle_heartbeat": round(heartbeat * 1e9)}
    wanted = 0
    while True:
        if wanted <= batch // 2:
            await _ask(nc, consumer, answers, {"batch": batch - wanted, **request})
            wanted = batch
        message = await _heard(answers, _MISSED * heartbeat)
        if (status := _status(message)) is None:
            wanted -= 1
            yield message
        elif (unmet := _ended(status, message)) is not None:
            wanted -= min(unmet, wanted)


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


async def _heard(answers: Subscription, seconds: float) -> Msg:
    try:
        return await answers.next_msg(timeout=seconds)
    except TimeoutError as error:
        raise UnavailableError(f"nothing was heard of the consumer for {seconds} s") from error
    finally:
        end_if_cancelled()


def _status(message: Msg) -> str | None:
    """The status that a message is instead of one of the stream."""
    return None if message.data or not message.headers else message.headers.get("Status")


def _ended(status: str, message: Msg) -> int | None:
    """How many messages, at most, the request that this ends still had to come; None where it goes on.
    Raises `ConsumerGoneError` or `UnavailableError`."""
    headers = message.headers or {}
    why = headers.get("Description", "")
    if status == _HEARTBEAT:
        return None
    if status == _NO_RESPONDERS:
        raise UnavailableError("nobody answers for the consumer: no such domain, or the link is down")
    if status in _OVER or why.lower().startswith(_PASSING):
        return int(headers.get(_PENDING, sys.maxsize))
    raise ConsumerGoneError(f"the pull was ended: {why} ({status})")


async def term(nc: Client, message: Msg, reason: str) -> None:
    """End the delivery of a message for good and say why; the reason stands in the server's advisory. nats-py
    has `Msg.term`, without a reason."""
    await nc.publish(message.reply, f"+TERM {reason}".encode())
