"""Watches the server's hub link by the local system account: events, and LEAFZ each second.

A server redials after at least a second, which leaves time to act.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from agent.base.wait import event_within, loop_time
from agent.contract import ACCOUNT
from agent.jetstream import request
from agent.jetstream.connection import EXPECTED, connected, listening_again
from agent.leaf.link.observation import UplinkStatus

POLL_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 0.2
_LEAFZ: Final = "$SYS.REQ.SERVER.PING.LEAFZ"

log = structlog.get_logger("link")


class UplinkMonitor:
    """Updates `status` (None: unknown) and calls `changed`."""

    def __init__(
        self,
        url: str,
        seed_file: Path,
        identity: str,
        changed: Callable[[], None],
        sent: Callable[[int], None],
    ) -> None:
        self._url, self._seed_file, self._identity, self._changed = url, seed_file, identity, changed
        self._look = asyncio.Event()
        self._events = 0
        self._sent, self._counted = sent, 0
        self.status: UplinkStatus | None = None

    async def run(self) -> None:
        """Watch until cancelled, with reconnects; an unreachable server has no link."""
        while True:
            try:
                async with connected(self._url, self._seed_file, self._identity) as connection:
                    for event in ("CONNECT", "DISCONNECT"):
                        await connection.nc.subscribe(f"$SYS.ACCOUNT.{ACCOUNT}.{event}", cb=self._receive)
                    await self._poll(connection.nc)
            except EXPECTED as error:
                log.debug("no system events", error=str(error))
            self._update("")
            await listening_again(self._url, _RETRY_SECONDS)

    async def _poll(self, nc: Client) -> None:
        while not nc.is_closed:
            self._look.clear()
            events = self._events
            answer = await request(nc, _LEAFZ, b"", _ANSWER_SECONDS)
            if events == self._events:  # an answer from before an event is out of date
                listed = json.loads(answer.data)
                self._count(sum(leaf["out_bytes"] for leaf in _links(listed)))
                self._update(_key(listed))
                await event_within(self._look, POLL_SECONDS)

    async def _receive(self, msg: Msg) -> None:
        event = json.loads(msg.data)
        if event.get("client", {}).get("kind") != "Leafnode":
            return
        self._events += 1
        if msg.subject.endswith(".DISCONNECT"):
            self._count(event["sent"]["bytes"])
            self._counted = 0
            self._update("")
        self._look.set()

    def _count(self, sent: int) -> None:
        """Count what this link has been given; a smaller number is that of another link."""
        self._sent(sent - self._counted if sent >= self._counted else sent)
        self._counted = sent

    def _update(self, key: str) -> None:
        if self.status is None or self.status.key != key:
            self.status = UplinkStatus(bool(key), loop_time(), key)
            self._changed()


def _key(answer: dict[str, Any]) -> str:
    """Return the server's start and link number."""
    links = _links(answer)
    return f"{answer['data']['server_id']}/{max(leaf['id'] for leaf in links)}" if links else ""


def _links(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the links of Petiole's account."""
    return [leaf for leaf in answer["data"].get("leafs") or [] if leaf.get("account") == ACCOUNT]
