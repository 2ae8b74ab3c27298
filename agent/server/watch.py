"""Watches a server through its system account, reports to `ServerHealth`, and restarts an embedded one if
needed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog
from msgspec import structs
from nats.aio.client import Client

from agent.base.files import Room, room
from agent.base.nats_server import ServerError
from agent.base.wait import Backoff, event_within, loop_time
from agent.jetstream import request
from agent.jetstream.connection import EXPECTED, OpenConnection, connected
from agent.server.health import ServerHealth, Trouble, TroubleKind, diagnose, sync_seconds, unkept, unsynced

LOOK_SECONDS: Final = 2.0
CONFIRM_SECONDS: Final = 5.0
"""Time that unhealthiness must last, except unwritable streams."""
ANSWER_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0
_FIRST_DELAY, _LONGEST_DELAY = 1.0, 600.0
_MIB: Final = 2**20

log = structlog.get_logger("server")


class Restarts:
    """Times restarts: with disk space, at doubling delays. Pure."""

    def __init__(self) -> None:
        self._next = 0.0
        self._backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)

    def due(self, trouble: Trouble, left: Room | None, now: float) -> bool:
        """Tell whether to restart at monotonic `now`; True once per delay."""
        if left is not None and _short(trouble, left):
            return False
        if now < self._next:
            return False
        self._next = now + self._backoff.next()
        return True

    def well(self, now: float) -> None:
        """Note health, which resets the delay in time."""
        if now > self._next + _LONGEST_DELAY:
            self._backoff.reset()


class Doubts:
    """Delays unspecific faults, which also occur during creations and load. Pure."""

    def __init__(self) -> None:
        self._since: float | None = None

    def confirmed(self, trouble: Trouble | None, now: float) -> Trouble | None:
        """Return the fault at monotonic `now`, None while doubted."""
        if trouble is None or trouble.kind is not TroubleKind.OTHER:
            self._since = None
            return trouble
        self._since = now if self._since is None else self._since
        return trouble if now - self._since >= CONFIRM_SECONDS else None


class ServerWatch:
    """Watches one server. `restart` None for external ones; `store` None asks the server; hubs sync each
    `interval`.
    """

    def __init__(
        self,
        url: str,
        seed_file: Path,
        identity: str,
        health: ServerHealth,
        *,
        restart: Callable[[], Awaitable[None]] | None = None,
        store: Path | None = None,
        interval: float = 0.0,
    ) -> None:
        self._url, self._seed_file, self._identity, self._health = url, seed_file, identity, health
        self._restart, self._store, self._interval = restart, store, interval
        self._restarts, self._doubts = Restarts(), Doubts()
        self._low = False

    async def run(self) -> None:
        """Watch until cancelled, with reconnects."""
        while True:
            try:
                async with connected(self._url, self._seed_file, self._identity) as link:
                    await self._follow(link)
            except (*EXPECTED, ServerError, ValueError, KeyError) as error:
                log.debug("server health unknown", error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _follow(self, link: OpenConnection) -> None:
        server = link.nc._server_info  # the client has no other name of the server
        self._health.admit(str(server["version"]))
        await self._ask_settings(link.nc, server["server_name"])
        while not link.over.is_set():
            await self._look(link.nc, server["server_name"])
            await event_within(link.over, LOOK_SECONDS)

    async def _ask_settings(self, nc: Client, name: str) -> None:
        varz = await ask_server(nc, "VARZ", name)
        if varz is None:
            unknown = "its system user may not ask $SYS.REQ.SERVER.PING.VARZ"
            self._health.synced(f"whether acknowledged means synced is not known: {unknown}", known=False)
            return
        if self._store is None:
            where = ((varz.get("jetstream") or {}).get("config") or {}).get("store_dir")
            self._store = Path(where) if where else None
        as_wanted = self._interval > 0 and sync_seconds(varz) == self._interval
        if self._store is not None and (lost := await asyncio.to_thread(unkept, self._store)) is not None:
            self._health.synced(lost)
        else:
            self._health.synced(None if as_wanted else unsynced(varz), known=not as_wanted)

    async def _look(self, nc: Client, name: str) -> None:
        healthz = await ask_server(nc, "HEALTHZ", name)
        if healthz is None:
            return
        self._health.answers += 1
        now = loop_time()
        left = self._health.room = None if self._store is None else room(self._store)
        reported = diagnose(healthz)
        trouble = self._doubts.confirmed(reported, now) or self._lack(left)
        if trouble is None and reported is not None:
            return  # while it is doubted, nothing changes
        if trouble is not None and trouble.kind is TroubleKind.SHUT_DOWN and left is not None and left.low:
            trouble = structs.replace(trouble, why="its disk is full")
        self._health.found(trouble, "" if trouble is None else self._remedy(trouble, left))
        if trouble is None:
            self._restarts.well(now)
        elif self._restart is not None and trouble.needs_start and self._restarts.due(trouble, left, now):
            log.warning("nats-server restarted", why=trouble.why)
            await self._restart()

    def _lack(self, left: Room | None) -> Trouble | None:
        if left is None:
            return None
        self._low = left.low or (self._low and not left.enough)
        if not self._low:
            return None
        wanted = 2 * left.reserve / _MIB
        if left.few_files:
            return Trouble(
                TroubleKind.LOW, f"the file system of the NATS server's store has {left.files} inodes left"
            )
        return Trouble(
            TroubleKind.LOW,
            f"the disk of the NATS server's store is full: {wanted:.0f} MiB of it are kept free",
        )

    def _remedy(self, trouble: Trouble, left: Room | None) -> str:
        place = f"free some room on {self._store}" if self._store is not None else "free some room there"
        if left is not None and left.few_files:
            place = f"remove files on {self._store}"
        if trouble.kind is TroubleKind.LOW:
            return f"nothing is taken in until there is room again: {place}"
        if not trouble.needs_start:
            return "see its log"
        short = trouble.wants_room if left is None else _short(trouble, left)
        if self._restart is not None:
            return f"it is restarted as soon as there is room: {place}" if short else "it is restarted"
        return f"{place}, then restart it" if short else "restart it"


def _short(trouble: Trouble, left: Room) -> bool:
    return left.low or (trouble.wants_room and not left.enough)


async def ask_server(
    nc: Client, question: str, name: str, seconds: float = ANSWER_SECONDS
) -> Mapping[str, Any] | None:
    """Return a server's `VARZ`, `LEAFZ` or `HEALTHZ`, None without answer."""
    details = json.dumps({"server_name": name, "exact_match": True, "details": True}).encode()
    try:
        answer = await request(nc, f"$SYS.REQ.SERVER.PING.{question}", details, seconds)
        data = json.loads(answer.data).get("data")
    except (*EXPECTED, ValueError, AttributeError):
        return None
    return data if isinstance(data, dict) else None
