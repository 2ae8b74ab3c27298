"""The input `http`: programs POST readings and are answered once these are stored. It keeps nothing: what is
not answered with 204 is still its sender's.

`POST /v1/readings`, `Content-Type: application/x-ndjson` (a reading a line) or `application/json` (an array
of at most 1 MiB, or one reading); `Content-Encoding: gzip` or `zstd`; `Idempotency-Key` makes a repeat safe.

204 stored (202 with `ack = "accepted"`, whose body says so); 400 lines that are not readings, each named; 401
token; 403 `Origin`; 404, 405; 408 too slow; 411, 413 length; 415 type or encoding; 421 `Host`; 422 key used
for another request; 429 the stream is full; 503 server away, busy or stopping. With a refusal nothing of the
request is stored, or nothing of this attempt where the answer comes before its key is looked up, save one:
504 says that the outcome is unknown, or that the request is stored and not yet at the hub (`ack = "hub"`), or
that rules gave it to several classes of which one refused; a repeat under the same `Idempotency-Key` finds
out. 429 and
503 carry `Retry-After`.

`POST /write` and `POST /api/v2/write` take Influx line protocol; `precision` is ns (the default), us, ms, s,
m or h; database, bucket and organisation are ignored. Each field is a reading with the metric
`<measurement>_<field>` (`agent.leaf.inputs.formats.line_protocol`). 204 when all lines are stored; 400 with
`error`, `code`, `message`, `line` and `lines` when some could not be taken: the others are stored. What is
answered 429 elsewhere is 503 at `/write`. `GET /ping` (204) and `GET /health` (200) say that this input
answers.

With `remote_write`, `POST /api/v1/write` takes what Prometheus sends, in both versions, as
`agent.leaf.inputs.http.remote_write.parse` describes. 204 when it is stored; 400 when some of it could not be
taken: the rest is stored. The same body is the same request: it needs no key. Prometheus drops what is
answered 4xx, so 408 and 429 elsewhere are 503 here.

With `otlp`, `POST /v1/metrics` and `POST /v1/logs` take exports of OpenTelemetry as protobuf or JSON of up to
1 MiB, as `agent.leaf.inputs.http.otlp.parse` and `logs` describe. 200 when they are stored, with
`partial_success` where some were rejected; the same body is the same request where all of it has times;
otherwise the statuses above, with a `google.rpc.Status`. An export counts 32 times in `buffer`
while it is taken apart, for that is what it may need.
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
"""Seconds that a body which is still coming has left once the agent stops."""


class HttpInput(AccessInput[HttpOptions]):
    """One `http` input."""

    def _mistakes(self) -> Iterator[str]:
        yield from super()._mistakes()
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
        """Serve until `stopping` is set, then answer what is under way. Raises `ConfigError` when the address
        cannot be listened on, `AccessError` when a file cannot be used."""
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
                connection.close(at_once=True)
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
