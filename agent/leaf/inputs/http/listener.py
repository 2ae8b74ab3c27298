"""The listening side of an HTTP input: binding, the bound on connections, the bound on time, and closing.
What a request means is its owner's business."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import StreamReader, web
from aiohttp.web import BaseRequest, RequestHandler, StreamResponse

from agent.base.listen_sockets import PortServer, cannot_listen
from agent.base.wait import loop_time
from agent.config import ConfigError, listen_address
from agent.leaf.inputs.http.responses import HttpError, at_fault, refused
from agent.leaf.intake import RefusalReason, RefusedError

_IDLE: Final = 75.0
"""Seconds an idle connection is kept; senders that post once a minute keep theirs."""
_LINGER: Final = 2.0
"""Seconds a refused body is read and thrown away, so that its sender reads the answer before the close."""
_CLOSING: Final = 1.0
_HANDSHAKE: Final = 10.0
"""Seconds that a TLS handshake may take; only then a connection counts."""
_READ_BUFFER: Final = 64 * 1024
_HEADER_LINE: Final = 8 * 1024
_HEADERS: Final = 64

_HTTP2: Final = b"PRI * HTTP/2"
HTTP2_TEXT: Final = (
    "this input speaks HTTP/1.1, and HTTP/2 came, which gRPC needs; send OTLP as http/protobuf, and take "
    "Telegraf's output influxdb_v2 or http, for its output opentelemetry can only do gRPC"
)
_SETTINGS: Final = bytes(3) + b"\x04" + bytes(5)
_REASON: Final = bytes(4) + (13).to_bytes(4, "big") + HTTP2_TEXT.encode()
_GO_AWAY: Final = _SETTINGS + len(_REASON).to_bytes(3, "big") + b"\x07" + bytes(5) + _REASON
"""HTTP_1_1_REQUIRED, with the reason, as a client of HTTP/2 reads it (RFC 9113, 6.8)."""

Handler = Callable[[BaseRequest], Awaitable[StreamResponse]]


class HttpConnection(RequestHandler):
    """One connection. From the first byte of a request its header has a deadline, then its body; they are
    looked at now and then, which costs less than a timer for each."""

    __slots__ = ("_body", "_busy", "_deadline", "_now", "_owner")

    def __init__(self, owner: _Server, **kwargs: Any) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(owner, loop=loop, **kwargs)
        self._owner = owner
        self._now = loop.time
        self._busy = False
        self._body: StreamReader | None = None
        self._deadline: float | None = None

    async def start(self) -> None:
        """Serve requests. One that was refused is lost before this begins, which aiohttp doesn't expect."""
        if self.transport is not None:
            await super().start()

    def data_received(self, data: bytes) -> None:
        if data.startswith(_HTTP2) and not self._busy and self.transport is not None:
            self._owner.on_fault(at_fault(505, "http2", HTTP2_TEXT))
            self.transport.write(_GO_AWAY)
            self.force_close()
            return
        if self._deadline is None and not self._busy:
            self._deadline = self._now() + self._owner.timeout
        super().data_received(data)

    def began(self, body: StreamReader) -> None:
        """The header of a request is here; its body may still be coming."""
        self._busy = True
        self._body = body
        self._deadline = self._now() + self._owner.timeout

    def ended(self) -> None:
        """The request is answered."""
        self._busy = False
        self._body = self._deadline = None

    def hurry(self, deadline: float) -> None:
        """Whatever is coming must be here by then."""
        if self._deadline is not None:
            self._deadline = min(self._deadline, deadline)

    def look(self, now: float) -> None:
        """End a wait whose deadline has passed: 408 for a header, `TimeoutError` to the body's reader."""
        if self._deadline is None or now < self._deadline:
            return
        self._deadline = None
        if self._body is None:
            self.refuse(at_fault(408, "timeout", "the header of the request did not come in time"))
        else:
            self._body.set_exception(TimeoutError())

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        """Answer what is not HTTP in our words and without a traceback in the log."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        words = " ".join((message or "unreadable").split())
        answer = at_fault(status, "not_http", f"the request is not HTTP: {words:.200}")
        self._owner.on_fault(answer)
        return answer.of_attempt(keyed=False).response()

    def refuse(self, answer: HttpError) -> None:
        """Answer without a request, and close."""
        self._owner.on_fault(answer)
        if self.transport is not None:
            self.transport.write(answer.of_attempt(keyed=False).raw())
        self.force_close()


class _Server(web.Server):
    def __init__(
        self, handler: Handler, limit: int, timeout: float, on_fault: Callable[[HttpError], None]
    ) -> None:
        super().__init__(handler)
        self.timeout = timeout
        self.on_fault = on_fault
        self._limit = limit

    def __call__(self) -> RequestHandler:
        return HttpConnection(
            self,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=_IDLE,
            lingering_time=_LINGER,
            read_bufsize=_READ_BUFFER,
            max_line_size=_HEADER_LINE,
            max_field_size=_HEADER_LINE,
            max_headers=_HEADERS,
        )

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self.connections) > self._limit and isinstance(handler, HttpConnection):
            busy = RefusedError(RefusalReason.BUSY, f"all {self._limit} connections are in use", 1.0)
            handler.refuse(refused(busy))


class Listener:
    """A listening socket and its connections; made inside a running loop."""

    def __init__(
        self,
        listen: str,
        handler: Handler,
        *,
        max_connections: int,
        timeout: float,
        on_fault: Callable[[HttpError], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._handshake = min(timeout, _HANDSHAKE)
        self._listen = listen
        self._server = _Server(handler, max_connections, timeout, on_fault)
        self._period = min(1.0, timeout / 4)
        self._look: asyncio.TimerHandle | None = None
        self._port: PortServer | None = None

    async def open(self) -> None:
        """Listen; raises `ConfigError` when that is not possible."""
        address = listen_address(self._listen)
        handshake = None if self._tls is None else self._handshake
        self._port = PortServer(*address, self._server, ssl=self._tls, ssl_handshake_timeout=handshake)
        try:
            await self._port.open()
        except OSError as error:
            raise ConfigError([cannot_listen(address, error)]) from None
        self._look_at_all()

    def hurry(self, grace: float) -> None:
        """What is still coming has `grace` seconds left."""
        deadline = loop_time() + grace
        for connection in self._connections():
            connection.hurry(deadline)

    def _look_at_all(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in self._connections():
            connection.look(loop.time())
        self._look = loop.call_later(self._period, self._look_at_all)

    def _connections(self) -> list[HttpConnection]:
        return [
            connection for connection in self._server.connections if isinstance(connection, HttpConnection)
        ]

    def close_door(self) -> None:
        """Take no new connection; those that are there go on."""
        if self._port is not None:
            self._port.close()

    async def close(self) -> None:
        """Close all connections; answers under way are sent first, within a second."""
        self.close_door()
        self._server.pre_shutdown()
        await self._server.shutdown(_CLOSING)
        if self._look is not None:
            self._look.cancel()
