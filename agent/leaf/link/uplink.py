"""Whether the leaf's server has its link to the hub, from the local server's system account.

An event shows it within milliseconds; the list of links (LEAFZ), polled each second, is the fallback. The
server redials after a second at the earliest, which leaves time to act before data flows again.
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
    """Keeps `status` up to date and calls `changed` when it changes; it is None until something is known."""

    def __init__(self, url: str, seed_file: Path, identity: str, changed: Callable[[], None]) -> None:
        self._url, self._seed_file, self._identity, self._changed = url, seed_file, identity, changed
        self._look = asyncio.Event()
        self._events = 0
        self.status: UplinkStatus | None = None

    async def run(self) -> None:
        """Watch until cancelled, over one connection after the other. A server that is unreachable has no
        link."""
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
                self._update(_key(json.loads(answer.data)))
                await event_within(self._look, POLL_SECONDS)

    async def _receive(self, msg: Msg) -> None:
        event = json.loads(msg.data)
        if event.get("client", {}).get("kind") != "Leafnode":
            return
        self._events += 1
        if msg.subject.endswith(".DISCONNECT"):
            self._update("")
        self._look.set()

    def _update(self, key: str) -> None:
        if self.status is None or self.status.key != key:
            self.status = UplinkStatus(bool(key), loop_time(), key)
            self._changed()


def _key(answer: dict[str, Any]) -> str:
    """Identifies this link: the server's start and the number it gave the link."""
    data = answer["data"]
    links = [leaf for leaf in data.get("leafs") or [] if leaf.get("account") == ACCOUNT]
    return f"{data['server_id']}/{max(leaf['id'] for leaf in links)}" if links else ""
