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
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from agent.connection import connect
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
            over = asyncio.Event()
            nc: Client | None = None
            try:
                nc = await connect(self._url, self._seed_file, self._identity, over.set)
                for event in ("CONNECT", "DISCONNECT"):
                    await nc.subscribe(f"$SYS.ACCOUNT.{ACCOUNT}.{event}", cb=self._take)
                await over.wait()
            except (NatsError, OSError, TimeoutError) as error:
                log.debug("no system events", error=str(error))
            finally:
                if nc is not None:
                    await nc.close()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _take(self, msg: Msg) -> None:
        if json.loads(msg.data).get("client", {}).get("kind") == "Leafnode":
            self._changed()
