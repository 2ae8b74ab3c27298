"""Whether the leaf's server has its link to the hub, from the local server's system account.

An event tells it within milliseconds; the list of links (LEAFZ), asked each second, is the net below. The
server redials after a second at the earliest, so what is to be done before data flows again can be done.
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
from agent.jetstream.connection import EXPECTED, connected
from agent.leaf.link.observation import UplinkStatus

POLL_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 0.2
_LEAFZ: Final = "$SYS.REQ.SERVER.PING.LEAFZ"

log = structlog.get_logger("link")


class LinkEvents:
    """Keeps `seen` true and calls `changed` when it changes. None until something is known."""

    def __init__(self, url: str, seed_file: Path, identity: str, changed: Callable[[], None]) -> None:
        self._url, self._seed_file, self._identity, self._changed = url, seed_file, identity, changed
        self._look = asyncio.Event()
        self._events = 0
        self.seen: UplinkStatus | None = None

    async def run(self) -> None:
        """Watch until cancelled, over one connection after the other. A server that is away has no link."""
        while True:
            try:
                async with connected(self._url, self._seed_file, self._identity) as link:
                    for event in ("CONNECT", "DISCONNECT"):
                        await link.nc.subscribe(f"$SYS.ACCOUNT.{ACCOUNT}.{event}", cb=self._take)
                    await self._poll(link.nc)
            except EXPECTED as error:
                log.debug("no system events", error=str(error))
            self._is("")
            await asyncio.sleep(_RETRY_SECONDS)

    async def _poll(self, nc: Client) -> None:
        while not nc.is_closed:
            self._look.clear()
            events = self._events
            answer = await request(nc, _LEAFZ, b"", _ANSWER_SECONDS)
            if events == self._events:  # an answer that was made before an event tells what is over
                self._is(_key(json.loads(answer.data)))
                await event_within(self._look, POLL_SECONDS)

    async def _take(self, msg: Msg) -> None:
        event = json.loads(msg.data)
        if event.get("client", {}).get("kind") != "Leafnode":
            return
        self._events += 1
        if msg.subject.endswith(".DISCONNECT"):
            self._is("")
        self._look.set()

    def _is(self, key: str) -> None:
        if self.seen is None or self.seen.key != key:
            self.seen = UplinkStatus(bool(key), loop_time(), key)
            self._changed()


def _key(answer: dict[str, Any]) -> str:
    """What tells this link from any other one: the server's start and the number it gave the link."""
    data = answer["data"]
    links = [one for one in data.get("leafs") or [] if one.get("account") == ACCOUNT]
    return f"{data['server_id']}/{max(one['id'] for one in links)}" if links else ""
