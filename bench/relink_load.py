"""The load of the benchmarks of the link: numbered messages at a steady rate, each sent again until it is
acknowledged, as a careful sender does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
import nats.errors
from nats.aio.client import Client

DEVICE = "bench"
"""The device of the readings that are sent."""

_ATTEMPT_SECONDS = 5.0
_AGAIN_SECONDS = 0.05
_UNDER_WAY = 500
_CONNECTIONS = 64


class NotStoredError(Exception):
    """What was sent is not known to be stored."""


Send = Callable[[int], Awaitable[None]]
"""Sends the message of this number once. Raises `NotStoredError`."""


@dataclass(slots=True)
class Load:
    """Sends the numbers from 1 until it is stopped. Beyond `_UNDER_WAY` unacknowledged messages it waits.
    What is not answered in `attempt` seconds is sent again, and so is what is refused."""

    send: Send
    rate: float
    attempt: float = _ATTEMPT_SECONDS
    sent: int = 0
    acknowledged: set[int] = field(default_factory=set)
    _stopping: bool = False

    async def run(self) -> None:
        """Send until `stop` and until all that was sent is acknowledged."""
        places = asyncio.Semaphore(_UNDER_WAY)
        loop = asyncio.get_running_loop()
        due = loop.time()
        async with asyncio.TaskGroup() as group:
            while not self._stopping:
                await places.acquire()
                self.sent += 1
                group.create_task(self._insist(self.sent, places))
                due = max(due + 1 / self.rate, loop.time() - 1.0)
                await asyncio.sleep(due - loop.time())

    def stop(self) -> None:
        """Send no new number."""
        self._stopping = True

    async def _insist(self, number: int, places: asyncio.Semaphore) -> None:
        while True:
            try:
                async with asyncio.timeout(self.attempt):
                    await self.send(number)
            except (NotStoredError, TimeoutError):
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                break
        self.acknowledged.add(number)
        places.release()


def over_http(session: aiohttp.ClientSession, port: int) -> Send:
    """One reading a request, under an Idempotency-Key."""
    url = f"http://127.0.0.1:{port}/v1/readings"

    async def send(number: int) -> None:
        reading = json.dumps({"ts": 1, "device": DEVICE, "metric": "number", "value": number})
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"n{number}"}
        try:
            async with session.post(url, data=reading, headers=headers) as answer:
                if answer.status != 204:
                    raise NotStoredError(answer.status)
        except aiohttp.ClientError as error:
            raise NotStoredError from error

    return send


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_CONNECTIONS))


def over_nats(nc: Client, subject: str) -> Send:
    """One message a number, under a message id."""

    async def send(number: int) -> None:
        try:
            answer = await nc.request(
                subject, str(number).encode(), timeout=_ATTEMPT_SECONDS, headers={"Nats-Msg-Id": f"n{number}"}
            )
        except (nats.errors.Error, OSError) as error:
            raise NotStoredError from error
        if "error" in json.loads(answer.data):
            raise NotStoredError

    return send
