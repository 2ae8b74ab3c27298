"""The listening side of an HTTP input: binding, the bound on connections, looking at their deadlines, and
closing."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from agent.base.listen_sockets import PortServer, cannot_listen
from agent.base.wait import event_within, loop_time
from agent.config import ConfigError, listen_address
from agent.leaf.inputs.http.connection import HttpConnection
from agent.leaf.inputs.http.responses import HttpError, refused
from agent.leaf.inputs.http.service import Service
from agent.leaf.intake import RefusalReason, RefusedError

_CLOSING: Final = 1.0
_HANDSHAKE: Final = 10.0
"""Seconds that a TLS handshake may take; only then a connection counts."""


class Listener:
    """A listening socket and its connections, for a service; made inside a running loop."""

    def __init__(
        self,
        listen: str,
        service: Service,
        *,
        max_connections: int,
        timeout: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listen, self._service = listen, service
        self._limit, self._timeout = max_connections, timeout
        self._tls = tls
        self._connections: set[HttpConnection] = set()
        self._empty = asyncio.Event()
        self._period = min(1.0, timeout / 4)
        self._look: asyncio.TimerHandle | None = None
        self._port: PortServer | None = None

    async def open(self) -> None:
        """Listen; raises `ConfigError` when that is not possible."""
        address = listen_address(self._listen)
        handshake = None if self._tls is None else min(self._timeout, _HANDSHAKE)
        self._port = PortServer(*address, self._make, ssl=self._tls, ssl_handshake_timeout=handshake)
        try:
            await self._port.open()
        except OSError as error:
            raise ConfigError([cannot_listen(address, error)]) from None
        self._look_at_all()

    def hurry(self, grace: float) -> None:
        """What is still coming has `grace` seconds left."""
        deadline = loop_time() + grace
        for connection in self._connections:
            connection.hurry(deadline)

    def close_door(self) -> None:
        """Take no new connection; those that are there go on."""
        if self._port is not None:
            self._port.close()

    async def close(self) -> None:
        """Close all connections; answers under way are sent first, within a second."""
        self.close_door()
        for connection in list(self._connections):
            connection.close()
        self._empty.clear()
        if self._connections and not await event_within(self._empty, _CLOSING):
            for connection in list(self._connections):
                connection.abort()
        if self._look is not None:
            self._look.cancel()

    def _make(self) -> HttpConnection:
        return HttpConnection(self._service, self._timeout, self._opened, self._closed)

    def _opened(self, connection: HttpConnection) -> HttpError | None:
        """Count a connection; the refusal of one too many."""
        self._connections.add(connection)
        if len(self._connections) <= self._limit:
            return None
        return refused(RefusedError(RefusalReason.BUSY, f"all {self._limit} connections are in use", 1.0))

    def _closed(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def _look_at_all(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._connections):
            connection.look(now)
        self._look = loop.call_later(self._period, self._look_at_all)
