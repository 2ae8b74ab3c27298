"""A link as a leaf's nats-server 2.15.1 dials it, without the server: how long it waits for what, when it
dials again, and the gate of its agent. Seen in `server/leafnode.go` and `client.go` of that version."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any, Final, cast

from agent.base.wait import loop_time
from agent.contract import inbox_prefix
from agent.leaf.link.gate import LOOK_SECONDS, DialSpread
from agent.leaf.link.observation import UplinkStatus
from agent.server.values import PING_SECONDS, address_of
from bench.fleet_wire import LinkKey

_INTEREST: Final = 7
"""Subscriptions that a leaf of one class has at its hub."""
_DIAL_SECONDS: Final = 10.0
_INFO_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 2.0
_REDIAL_SECONDS: Final = 1.0
_FIRST_PING_SECONDS: Final = 1.0
_PINGS_OUT: Final = 2


class DialledLink(asyncio.Protocol):
    """One link, which begins to dial within two seconds. Where `spread` is not 0, its gate is closed for a
    part of that."""

    def __init__(self, listen: str, key: LinkKey, spread: float) -> None:
        self._address, self._key, self._spread = address_of(listen), key, spread
        self._transport: asyncio.Transport | None = None
        self._held, self._greeted, self._pings = b"", False, 0
        self._status = UplinkStatus(False, loop_time())
        self._open, self._lost = asyncio.Event(), asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._open.set()
        self.dials = 0

    @property
    def up(self) -> bool:
        """Whether the hub has taken the link."""
        return self._status.up

    async def dial(self) -> None:
        """Keep the link until cancelled, as a leaf's server does."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(random.uniform(0.0, 2 * _REDIAL_SECONDS))
        try:
            while True:
                await self._open.wait()
                self.dials += 1
                self._lost.clear()
                try:
                    async with asyncio.timeout(_DIAL_SECONDS):
                        await loop.create_connection(lambda: self, *self._address)
                except (OSError, TimeoutError):
                    await asyncio.sleep(random.uniform(_REDIAL_SECONDS, 2 * _REDIAL_SECONDS))
                else:
                    await self._lost.wait()
                    await asyncio.sleep(_REDIAL_SECONDS)
        finally:
            self._close()

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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._held, self._greeted = b"", False
        self._after(_INFO_SECONDS, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self.up:
            self._status = UplinkStatus(False, loop_time())
        self._lost.set()

    def data_received(self, data: bytes) -> None:
        *lines, self._held = (self._held + data).split(b"\r\n")
        for line in lines:
            if line.startswith(b"INFO"):
                self._greet(json.loads(line[5:]))
            elif line.startswith(b"PING"):
                self._write(b"PONG\r\n")
            elif line.startswith(b"PONG"):
                self._pings = 0

    def _greet(self, info: dict[str, Any]) -> None:
        if not self._greeted:
            self._greeted = True
            said = self._key.hello(info) | {"isolate": True}
            self._write(b"CONNECT " + json.dumps(said).encode() + b"\r\nPING\r\n")
            self._after(_CONNECT_SECONDS, self._close)
        elif info.get("connect_info") and not self.up:
            inbox = inbox_prefix(self._key.domain)
            self._write("".join(f"LS+ {inbox}.{number}\r\n" for number in range(_INTEREST)).encode())
            self._status, self._pings = UplinkStatus(True, loop_time()), 0
            self._after(_FIRST_PING_SECONDS, self._ping)

    def _ping(self) -> None:
        if self._pings == _PINGS_OUT:
            self._close()
            return
        self._pings += 1
        self._write(b"PING\r\n")
        self._after(PING_SECONDS, self._ping)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, act)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
