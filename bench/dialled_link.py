"""A link as a leaf's nats-server 2.15.1 dials it, without the server: how long it waits for what, when it
dials again, and the gate of its agent. Seen in `server/leafnode.go` and `client.go` of that version. Once it
is up, it answers for its leaf's stream, so that the hub's source is at rest."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Final

from agent.base.wait import loop_time
from agent.contract import inbox_prefix
from agent.leaf.link.gate import LOOK_SECONDS, DialSpread
from agent.leaf.link.observation import UplinkStatus
from agent.server.values import PING_SECONDS, address_of
from bench.fleet_leaves import SmallLeaf
from bench.fleet_wire import Wire

_INBOXES: Final = 5
"""Subscriptions beside that of its API: a leaf of one class has seven at its hub with its commands."""
_DIAL_SECONDS: Final = 10.0
_INFO_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 2.0
_REDIAL_SECONDS: Final = 1.0
_FIRST_PING_SECONDS: Final = 1.0
_PINGS_OUT: Final = 2


class _Attempt(Wire):
    """One connection to the hub, given up as the leaf's server would; `taken` is called when it is up."""

    def __init__(self, leaf: SmallLeaf, taken: Callable[[], None]) -> None:
        super().__init__(leaf.received, key=leaf.key)
        self._taken, self._pings = taken, 0
        self._timer: asyncio.TimerHandle | None = None
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._after(_INFO_SECONDS, self.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._timer is not None:
            self._timer.cancel()
        self.lost.set()

    def close(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    def _control(self, line: bytes) -> None:
        greeted = self._greeted
        super()._control(line)
        if line.startswith(b"PONG"):
            self._pings = 0
        elif line.startswith(b"INFO") and not greeted:
            self._after(_CONNECT_SECONDS, self.close)
        elif line.startswith(b"INFO") and json.loads(line[5:]).get("connect_info"):
            self._taken()
            self._after(_FIRST_PING_SECONDS, self._ping)

    def _ping(self) -> None:
        if self._pings == _PINGS_OUT:
            self.close()
            return
        self._pings += 1
        self._write(b"PING\r\n")
        self._after(PING_SECONDS, self._ping)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, act)


class DialledLink:
    """One link, which begins to dial within two seconds. Where `spread` is not 0, its gate is closed for a
    part of that."""

    def __init__(self, listen: str, leaf: SmallLeaf, spread: float) -> None:
        self._leaf = leaf
        self._address, self._spread = address_of(listen), spread
        self._status = UplinkStatus(False, loop_time())
        self._open = asyncio.Event()
        self._open.set()
        self._attempt: _Attempt | None = None
        self.dials = 0

    @property
    def up(self) -> bool:
        """Whether the hub has taken the link."""
        return self._status.up

    async def dial(self) -> None:
        """Keep the link until cancelled, as a leaf's server does."""
        await asyncio.sleep(random.uniform(0.0, 2 * _REDIAL_SECONDS))
        try:
            while True:
                await self._open.wait()
                self.dials += 1
                try:
                    attempt = await self._connect()
                except (OSError, TimeoutError):
                    await asyncio.sleep(random.uniform(_REDIAL_SECONDS, 2 * _REDIAL_SECONDS))
                    continue
                await attempt.lost.wait()
                if self.up:
                    self._status = UplinkStatus(False, loop_time())
                await asyncio.sleep(_REDIAL_SECONDS)
        finally:
            self._close()

    async def _connect(self) -> _Attempt:
        self._attempt = attempt = _Attempt(self._leaf, self._taken)
        async with asyncio.timeout(_DIAL_SECONDS):
            await asyncio.get_running_loop().create_connection(lambda: attempt, *self._address)
        return attempt

    async def follow(self) -> None:
        """Open and close the gate until cancelled, of a hub that always answers."""
        gate = DialSpread()
        await asyncio.sleep(random.uniform(0.0, LOOK_SECONDS))
        while self._spread:
            now = loop_time()
            if gate.is_waiting(self._status, now):
                pass
            elif self._open.is_set() and gate.is_late(self._status, now) and gate.answered(True, now):
                gate.wait(self._spread, now)
                self._open.clear()
                self._close()
            else:
                self._open.set()
            await asyncio.sleep(LOOK_SECONDS)

    def _taken(self) -> None:
        assert self._attempt is not None
        self._status = UplinkStatus(True, loop_time())
        self._leaf.serve(self._attempt)
        for number in range(_INBOXES):
            self._attempt.subscribe(f"{inbox_prefix(self._leaf.domain)}.{number}")

    def _close(self) -> None:
        if self._attempt is not None:
            self._attempt.close()
