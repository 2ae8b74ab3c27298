"""Observes the demonstration from outside."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import nats
from nats.errors import Error as NatsError

from agent import contract
from agent.demo.plan import Member
from agent.demo.processes import DemoError
from agent.jetstream import JetStream, JetStreamError
from agent.leaf.inputs.file.positions import parse_position
from agent.leaf.publish.pull_progress import parse_progress

_POLL_SECONDS = 0.05
_ANSWER_SECONDS = 5.0
_CONNECT_SECONDS = 2


class Observer:
    """Reads servers over short connections with an identity's seed."""

    def __init__(self, urls: list[str], seed_file: Path, identity: str) -> None:
        self._urls, self._seed_file, self._identity = urls, seed_file, identity

    async def _ask(self, question: Callable[[JetStream], Awaitable[Any]]) -> Any:
        nc = await nats.connect(
            self._urls,
            nkeys_seed=str(self._seed_file),
            inbox_prefix=contract.inbox_prefix(self._identity).encode(),
            allow_reconnect=False,
            connect_timeout=_CONNECT_SECONDS,
            error_cb=_quiet,
        )
        try:
            return await question(JetStream(nc, timeout=_CONNECT_SECONDS))
        finally:
            await nc.close()

    async def last(self, stream: str) -> int:
        """Return a stream's last sequence. Raises `DemoError`."""
        try:
            return int((await self._ask(lambda js: js.stream_info(stream))).last)
        except (NatsError, JetStreamError, OSError, TimeoutError) as error:
            raise DemoError(f"{self._urls} do not answer: {error}") from None

    async def cursors(self) -> dict[str, int] | None:
        """Return the aggregate's position per leaf stream, None without answer."""
        try:
            info = await self._ask(lambda js: js.stream_info(contract.aggregate(0)))
        except (NatsError, JetStreamError, OSError, TimeoutError):
            return None
        return {source["name"]: int(source.get("seq", 0)) for source in info.sources}

    async def newest(self, stream: str, subject: str) -> bytes | None:
        """Return a subject's newest message. Raises client and server errors."""
        message = await self._ask(lambda js: js.get_message(stream, last_by_subject=subject))
        return None if message is None else bytes(message.data)

    async def until_file_is_stored(self, domain: str, size: int, seconds: float) -> None:
        """Wait until the leaf stored `size` bytes of the file. Raises `DemoError`."""
        stream = contract.leaf_stream(domain, contract.DEFAULT_CLASS)
        subject = contract.batch_subject(domain, contract.DEFAULT_CLASS, "file")

        async def stored() -> bool:
            message = await self._ask(lambda js: js.get_message(stream, last_by_subject=subject))
            if message is None:
                return False
            position = parse_position(parse_progress(message.headers[contract.H_POSITION]).position)
            return sum(one.offset for one in position.generations().values()) == size

        await until(stored, f"the followed file of {domain} is stored to its end", seconds)

    async def until_beyond(self, streams: dict[str, int], what: str, seconds: float) -> None:
        """Wait until the aggregate passes these sequences. Raises `DemoError`."""

        async def beyond() -> bool:
            cursors = await self.cursors()
            return cursors is not None and all(cursors.get(name, 0) > seq for name, seq in streams.items())

        await until(beyond, what, seconds)


async def _quiet(_error: Exception) -> None:
    """Ignore the callback; reads raise their errors."""


async def until(true: Callable[[], Awaitable[bool]], what: str, seconds: float) -> None:
    """Wait for `true()`. Raises `DemoError` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not await true():
        if time.monotonic() > deadline:
            raise DemoError(f"timed out after {seconds:.0f} s: {what}")
        await asyncio.sleep(_POLL_SECONDS)


async def leads(member: Member) -> bool:
    status = await _admin_answer(member, "/status")
    return bool(status and json.loads(status).get("fleet", {}).get("aggregates"))


async def ready(member: Member) -> bool:
    return await _admin_answer(member, "/readyz") is not None


async def _admin_answer(member: Member, path: str) -> bytes | None:
    def ask() -> bytes | None:
        try:
            with urlopen(member.admin_url + path, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310 - an own address
                return bytes(answer.read())
        except OSError:
            return None

    return await asyncio.to_thread(ask)
