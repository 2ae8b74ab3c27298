"""What the local server's system account tells of its leaf link: a connect or a disconnect within
milliseconds.

The events carry no more than a hint (on the leaf's side they name no user), so they only make the uplink
look.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import structlog
from nats.aio.msg import Msg

from agent.connection import EXPECTED, connected
from agent.contract import ACCOUNT

_RETRY_SECONDS = 1.0

log = structlog.get_logger("link")


class LinkEvents:
    """Calls `changed` whenever a leaf connection of the account comes or goes."""

    def __init__(self, url: str, seed_file: Path, identity: str, changed: Callable[[], None]) -> None:
        self._url, self._seed_file, self._identity, self._changed = url, seed_file, identity, changed

    async def run(self) -> None:
        """Listen until cancelled, over one connection after the other."""
        while True:
            try:
                async with connected(self._url, self._seed_file, self._identity) as link:
                    for event in ("CONNECT", "DISCONNECT"):
                        await link.nc.subscribe(f"$SYS.ACCOUNT.{ACCOUNT}.{event}", cb=self._take)
                    self._changed()
                    await link.ended()
            except EXPECTED as error:
                log.debug("no system events", error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _take(self, msg: Msg) -> None:
        if json.loads(msg.data).get("client", {}).get("kind") == "Leafnode":
            self._changed()
