"""Looks at the local server through its system account and tells `ServerHealth`; starts a server of our own
anew where only that helps, and never one that is not ours.

A fault is seen within `LOOK_SECONDS` of its first failed write. Asks nothing of the streams themselves.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog
from nats.aio.client import Client

from agent.base.files import Room, room
from agent.base.nats_server_version import ServerError
from agent.base.wait import Backoff, event_within, loop_time
from agent.jetstream.connection import EXPECTED, OpenConnection, connected
from agent.server.health import ServerHealth, Trouble, TroubleKind, diagnose, unsynced

LOOK_SECONDS: Final = 2.0
CONFIRM_SECONDS: Final = 5.0
"""For so long a server says of itself that it is unhealthy before that is an error, unless it says that it
does not write."""
ANSWER_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0
_FIRST_DELAY, _LONGEST_DELAY = 1.0, 600.0
_MIB: Final = 2**20

log = structlog.get_logger("server")


class Restarts:
    """When a broken server may be started anew: pure. As soon as there is room again, or, where room is not
    what it lacks, at once; each further time in a row after twice as long."""

    def __init__(self) -> None:
        self._next = 0.0
        self._backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)

    def due(self, trouble: Trouble, left: Room | None, now: float) -> bool:
        """Whether to start it anew now (seconds of a monotonic clock); says so once for each delay."""
        if left is not None and _short(trouble, left):
            return False
        if now < self._next:
            return False
        self._next = now + self._backoff.next()
        return True

    def well(self, now: float) -> None:
        """Nothing is wrong; what lasts as long as the longest delay begins anew with the first."""
        if now > self._next + _LONGEST_DELAY:
            self._backoff.reset()


class Doubts:
    """What a server says of itself in general words, believed once it has said so for a while: pure. One such
    answer also comes while a stream is made, or when the server is short of processor time."""

    def __init__(self) -> None:
        self._since: float | None = None

    def confirmed(self, trouble: Trouble | None, now: float) -> Trouble | None:
        """The trouble that this look showed, None while it is doubted (`now` is of a monotonic clock)."""
        if trouble is None or trouble.kind is not TroubleKind.OTHER:
            self._since = None
            return trouble
        self._since = now if self._since is None else self._since
        return trouble if now - self._since >= CONFIRM_SECONDS else None


class ServerWatch:
    """Looks at one server. `restart` ends a server of our own, which its supervisor then starts again; None
    for one that is not ours. `store` is where its streams are, asked of the server when it is None."""

    def __init__(
        self,
        url: str,
        seed_file: Path,
        identity: str,
        health: ServerHealth,
        *,
        restart: Callable[[], Awaitable[None]] | None = None,
        store: Path | None = None,
    ) -> None:
        self._url, self._seed_file, self._identity, self._health = url, seed_file, identity, health
        self._restart, self._store = restart, store
        self._restarts, self._doubts = Restarts(), Doubts()
        self._low = False

    async def run(self) -> None:
        """Look until cancelled, over one connection after the other."""
        while True:
            try:
                async with connected(self._url, self._seed_file, self._identity) as link:
                    await self._follow(link)
            except (*EXPECTED, ServerError, ValueError, KeyError) as error:
                log.debug("the server cannot be looked at", error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _follow(self, link: OpenConnection) -> None:
        server = link.nc._server_info  # the client tells no name of the server otherwise
        self._health.admit(str(server["version"]))
        await self._ask_settings(link.nc, server["server_name"])
        while not link.over.is_set():
            await self._look(link.nc, server["server_name"])
            await event_within(link.over, LOOK_SECONDS)

    async def _ask_settings(self, nc: Client, name: str) -> None:
        varz = await _ask(nc, "VARZ", name)
        if varz is None:
            unknown = "its system user may not ask $SYS.REQ.SERVER.PING.VARZ"
            self._health.synced(f"whether acknowledged means synced is not known: {unknown}", known=False)
            return
        self._health.synced(unsynced(varz))
        if self._store is None:
            where = ((varz.get("jetstream") or {}).get("config") or {}).get("store_dir")
            self._store = Path(where) if where else None

    async def _look(self, nc: Client, name: str) -> None:
        healthz = await _ask(nc, "HEALTHZ", name, details=True)
        if healthz is None:
            return
        self._health.answers += 1
        now = loop_time()
        left = self._health.room = None if self._store is None else room(self._store)
        said = diagnose(healthz)
        trouble = self._doubts.confirmed(said, now) or self._lack(left)
        if trouble is None and said is not None:
            return  # until it is believed, all is as it was
        if trouble is not None and trouble.kind is TroubleKind.SHUT_DOWN and left is not None and left.low:
            trouble = dataclasses.replace(trouble, why="its disk is full")
        self._health.found(trouble, "" if trouble is None else self._remedy(trouble, left))
        if trouble is None:
            self._restarts.well(now)
        elif self._restart is not None and trouble.needs_start and self._restarts.due(trouble, left, now):
            log.warning("nats-server is ended, so that it is started anew", why=trouble.why)
            await self._restart()

    def _lack(self, left: Room | None) -> Trouble | None:
        if left is None:
            return None
        self._low = left.low or (self._low and not left.enough)
        if not self._low:
            return None
        wanted = 2 * left.reserve / _MIB
        return Trouble(
            TroubleKind.LOW,
            f"the disk of the NATS server's store is full: {wanted:.0f} MiB of it are kept free",
        )

    def _remedy(self, trouble: Trouble, left: Room | None) -> str:
        place = f"free some room on {self._store}" if self._store is not None else "free some room there"
        if trouble.kind is TroubleKind.LOW:
            return f"nothing is taken in until there is room again: {place}"
        if not trouble.needs_start:
            return "see its log"
        short = trouble.wants_room if left is None else _short(trouble, left)
        if self._restart is not None:
            return f"it is started anew as soon as there is room: {place}" if short else "it is started anew"
        return f"{place}, then restart it" if short else "restart it"


def _short(trouble: Trouble, left: Room) -> bool:
    return left.low or (trouble.wants_room and not left.enough)


async def _ask(nc: Client, question: str, name: str, **more: Any) -> Mapping[str, Any] | None:
    """What one server of its cluster answers; None when this user may not ask."""
    request = json.dumps({"server_name": name, "exact_match": True, **more}).encode()
    try:
        answer = await nc.request(f"$SYS.REQ.SERVER.PING.{question}", request, timeout=ANSWER_SECONDS)
    except EXPECTED:
        return None
    found = json.loads(answer.data).get("data")
    return found if isinstance(found, dict) else None
