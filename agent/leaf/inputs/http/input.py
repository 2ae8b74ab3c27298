"""Accepts POSTed readings and answers once they are stored: the input `http`.

It keeps no data: without 204 (OTLP: 200, `ack = "accepted"`: 202) the sender still owns its readings.
docs/send.md describes the paths, docs/what-to-do.md the statuses.
Routes are in `routes`: own JSON and NDJSON, Influx line protocol (`influx`), Prometheus remote write
(`remote_write`) and OTLP (`otlp`).

- A refused request stores nothing in this attempt. With Influx, remote write and OTLP the valid rest of a
  partly rejected request is stored. 504 means an unknown outcome, stored but not at the hub (`ack = "hub"`),
  or partly refused by rules; a repeat under the same `Idempotency-Key` resolves it.
- 429 and 503 carry `Retry-After`. `/write` and remote write get 503 instead of 429, since their clients drop
  data at 4xx.
- Remote write and dated OTLP exports use the body as key. OTLP counts 32 times its size in `buffer` during
  parsing.
"""

from __future__ import annotations

import asyncio
import importlib.util
import ssl
from collections.abc import Iterator
from typing import Final

from agent import contract
from agent.base.listen_sockets import PortServer, cannot_listen
from agent.base.wait import event_within, loop_time
from agent.config import ConfigError, listen_address
from agent.leaf.inputs.http import HttpOptions
from agent.leaf.inputs.http.connection import HttpConnection, Service
from agent.leaf.inputs.http.handler import Handler
from agent.leaf.inputs.http.request import Guard
from agent.leaf.inputs.http.responses import HttpError, refused
from agent.leaf.inputs.shared.access import AccessInput
from agent.leaf.intake import Intake, RefusalReason, RefusedError

_GRACE: Final = 1.0
"""Seconds left for arriving bodies when the agent stops."""


class HttpInput(AccessInput[HttpOptions]):
    def _mistakes(self) -> Iterator[str]:
        yield from super()._mistakes()
        yield from self._options.map_problems(has_topic=True)
        if self._options.body > contract.MAX_UNPACKED_BYTES:
            limit = contract.MAX_UNPACKED_BYTES
            yield f"body is {self._options.body} bytes, a batch has {limit} at most; make it smaller"
        if self._options.otlp and not _can_read_otlp():
            yield "otlp is on, and opentelemetry-proto is missing; install petiole[otlp]"
        if self._options.remote_write and importlib.util.find_spec("cramjam") is None:
            yield "remote_write is on, and cramjam is missing; install petiole[remote-write]"
        if (device := self._options.remote_write_device) is not None:
            from agent.leaf.inputs.prometheus.exposition import Device  # only where it is used

            try:
                Device(device, "")
            except ValueError as error:
                yield f"remote_write_device {device!r} cannot be used: {error}"

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Serve until `stopping`, then finish pending requests. Raises `ConfigError` for an unusable address,
        `AccessError` for an unusable file.
        """
        options = self._options
        host = listen_address(options.listen)[0]
        self._warn(host)
        guard = Guard(host, options.allowed_hosts, options.allowed_origins, self._token())
        handler = Handler(options, guard, intake, self._metrics, stopping)
        listener = Listener(
            options.listen,
            handler,
            max_connections=options.max_connections,
            timeout=options.timeout,
            tls=self._tls(),
        )
        await listener.open()
        try:
            await stopping.wait()
            listener.close_door()
            listener.hurry(_GRACE)
            await handler.finish()
        finally:
            handler.close()
            await listener.close()


def _can_read_otlp() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.proto") is not None
    except ModuleNotFoundError:
        return False


_CLOSING: Final = 1.0
_HANDSHAKE: Final = 10.0
"""Seconds for a TLS handshake, before a connection counts."""


class Listener:
    """A listening socket with its connections; create it inside a running loop."""

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
        """Listen; raises `ConfigError`."""
        address = listen_address(self._listen)
        handshake = None if self._tls is None else min(self._timeout, _HANDSHAKE)
        self._port = PortServer(*address, self._make, ssl=self._tls, ssl_handshake_timeout=handshake)
        try:
            await self._port.open()
        except OSError as error:
            raise ConfigError([cannot_listen(address, error)]) from None
        self._look_at_all()

    def hurry(self, grace: float) -> None:
        """Give arriving bodies `grace` more seconds."""
        deadline = loop_time() + grace
        for connection in self._connections:
            connection.hurry(deadline)

    def close_door(self) -> None:
        """Stop accepting; existing connections stay."""
        if self._port is not None:
            self._port.close()

    async def close(self) -> None:
        """Close all connections after pending answers, within a second."""
        self.close_door()
        for connection in list(self._connections):
            connection.close()
        self._empty.clear()
        if self._connections and not await event_within(self._empty, _CLOSING):
            for connection in list(self._connections):
                connection.close(at_once=True)
        if self._look is not None:
            self._look.cancel()

    def _make(self) -> HttpConnection:
        return HttpConnection(self._service, self._timeout, self._opened, self._closed)

    def _opened(self, connection: HttpConnection) -> HttpError | None:
        """Count a connection; returns the refusal above the limit."""
        self._connections.add(connection)
        if len(self._connections) <= self._limit:
            return None
        return refused(RefusedError(RefusalReason.BUSY, f"all {self._limit} connections are in use"))

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
