"""Keeps the agent's connections to its local server.

nats-py's reconnect is unused: it would send buffered messages before the stream is checked, and gives up. Its
reports of closing wait for a server that may hang (nats-py 2.16, `Client._close`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog
from nats.aio.client import Client
from nats.errors import ConnectionClosedError, MaxPayloadError
from nats.errors import Error as NatsError

from agent import contract
from agent.base.logs import LogEdge
from agent.base.metrics import Metrics
from agent.base.nats_server import ServerError
from agent.base.wait import Backoff, event_within, timeout
from agent.jetstream import JetStreamError, end_if_cancelled

_FIRST_DELAY, _LONGEST_DELAY = 0.1, 1.0
_CONNECT_SECONDS = 5
_PREPARE_SECONDS = 60.0
_PING_SECONDS = 5
_LOOK_SECONDS = 1.0
_CLOSE_SECONDS = 1.0
_STEADY_SECONDS = 5.0
_PROBE_SECONDS = 0.05
_PENDING_BYTES = 2**30
"""The client's buffer before `publish` blocks; the publish path stays far below."""

EXPECTED = (NatsError, JetStreamError, OSError, TimeoutError)
"""Errors of an unreachable, hanging or refusing server."""

log = structlog.get_logger("connection")


class CancellableClient(Client):
    """A client whose cancelled tasks end; nats-py 2.16 catches the cancellation (`Client._flush_pending`).

    It also closes failed handshakes' connections (`Client._attempt_reconnect`).
    """

    async def _connect_to_server(self, server: Any) -> None:
        abort(self)
        await super()._connect_to_server(server)

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        try:
            return await super()._flush_pending(force_flush)
        finally:
            end_if_cancelled()

    async def connect(self, *args: Any, **options: Any) -> None:
        try:
            await super().connect(*args, **options)
        finally:
            end_if_cancelled()


class QuickClient(CancellableClient):
    """A client with sends and receives without task, queue and name checks."""

    def __init__(self) -> None:
        super().__init__()
        self._receivers: dict[int, Callable[[str, bytes], None]] = {}

    async def receive(self, subject: str, receiver: Callable[[str, bytes], None]) -> None:
        """Pass each message's subject and data to a function. Raises `NatsError`."""
        subscription = await self.subscribe(subject)
        self._receivers[subscription._id] = receiver

    def send(self, subject: str, payload: bytes, reply: str, headers: Mapping[str, str]) -> None:
        """Publish with headers without newlines; the caller bounds `pending_data_size`.
        Raises `NatsError`.
        """
        if not self.is_connected:
            raise ConnectionClosedError
        if len(payload) > self.max_payload:
            raise MaxPayloadError
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = f"NATS/1.0\r\n{lines}\r\n".encode()
        sizes = f"{len(head)} {len(head) + len(payload)}"
        parts = f"HPUB {subject} {reply} {sizes}\r\n".encode() + head, payload, b"\r\n"
        self._pending += parts
        self._pending_data_size += sum(map(len, parts))
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        receiver = self._receivers.get(sid)
        if receiver is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        try:
            receiver(subject.decode(), data)
        except Exception as error:  # as the library does it: the others are still read
            await self._error_cb(error)


class OpenConnection:
    """A connection and its end."""

    def __init__(self, nc: QuickClient) -> None:
        self.nc = nc
        self.over = asyncio.Event()

    async def ended(self) -> None:
        """Wait for the connection's end or `over`."""
        while not self.over.is_set() and not self.nc.is_closed:
            await event_within(self.over, _LOOK_SECONDS)


@contextlib.asynccontextmanager
async def connected(
    url: str, seed_file: Path, identity: str, refused: Callable[[str], None] | None = None
) -> AsyncIterator[OpenConnection]:
    """Open an identity's connection for the scope; `refused` receives permission errors.

    Raises `NatsError`, `OSError` or `TimeoutError`.
    """
    nc = QuickClient()
    link = OpenConnection(nc)

    async def closed() -> None:
        link.over.set()

    async def problem(error: Exception) -> None:
        if isinstance(error, EXPECTED):
            if refused is not None:
                refused(str(error))
            log.debug("connection error", identity=identity, error=str(error))
        else:
            log.error("message handler failed", identity=identity, exc_info=error)

    try:
        await nc.connect(
            url,
            name=f"petiole {identity}",
            nkeys_seed=str(seed_file),
            inbox_prefix=contract.inbox_prefix(identity).encode(),
            allow_reconnect=False,
            # The library tries a server that refuses again and again before it says so: here that is known
            # after a second try at once.
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=_CONNECT_SECONDS,
            ping_interval=_PING_SECONDS,
            max_outstanding_pings=2,
            pending_size=_PENDING_BYTES,
            closed_cb=closed,
            error_cb=problem,
        )
    except BaseException:
        abort(nc)
        raise
    try:
        yield link
    finally:
        await end(nc)


async def end(nc: Client) -> None:
    """Close a connection, whatever the server does."""
    try:
        # A transport of uvloop that has broken raises RuntimeError where the client sends what is left.
        with contextlib.suppress(*EXPECTED, RuntimeError):
            async with timeout(_CLOSE_SECONDS):
                await nc.close()
    finally:
        abort(nc)


def abort(nc: Client) -> None:
    """Drop a connection in any state."""
    # The client has no public way to drop a connection without sending the rest first, and leaves the socket
    # of a failed connect open. On a transport that is closed already this does nothing.
    writer = getattr(nc._transport, "_io_writer", None)
    if writer is not None:
        writer.transport.abort()


async def listening_again(url: str, seconds: float) -> None:
    """Wait so many seconds, or until a server starts to listen. One that listens at once is the old one, or
    hangs.
    """
    address = urlsplit(url)
    refused = False
    with contextlib.suppress(TimeoutError):
        async with timeout(seconds):
            while not await _listens(address.hostname or "", address.port or 0):
                refused = True
                await asyncio.sleep(_PROBE_SECONDS)
            if not refused:
                await asyncio.sleep(seconds)


async def _listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.transport.abort()
    return True


def server_version(nc: Client) -> str:
    return str(nc._server_info["version"])


class ServerConnection:
    """Keeps a connection; each runs a `session` until its end or `renew`. Sessions raise `ServerError` for
    unusable servers.
    """

    def __init__(
        self,
        url: str,
        seed_file: Path,
        identity: str,
        *,
        session: Callable[[QuickClient], contextlib.AbstractAsyncContextManager[None]],
        metrics: Metrics,
    ) -> None:
        self._url, self._seed_file, self._identity = url, seed_file, identity
        self._session, self._metrics = session, metrics
        self._link: OpenConnection | None = None
        self._failing = LogEdge(log)
        self._connected_before = False

    def renew(self, reason: str) -> None:
        """Replace this connection."""
        if self._link is not None and not self._link.over.is_set():
            log.warning("renewing the connection", reason=reason)
            self._link.over.set()

    async def run(self) -> None:
        """Connect and run sessions until cancelled."""
        backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY, _STEADY_SECONDS)
        while True:
            try:
                await self._once()
            except ServerError as error:
                log.debug("refused", error=str(error))  # shown as the state of the server
            except EXPECTED as error:
                self._complain(f"{type(error).__name__}: {error}")
            except Exception as error:  # what a server answers must not end the agent
                self._complain(f"{type(error).__name__}: {error}", error)
            await listening_again(self._url, backoff.next())

    async def _once(self) -> None:
        try:
            async with connected(self._url, self._seed_file, self._identity) as link:
                self._link = link
                try:
                    async with contextlib.AsyncExitStack() as session:
                        async with timeout(_PREPARE_SECONDS):
                            await session.enter_async_context(self._session(link.nc))
                        self._well()
                        await link.ended()
                finally:
                    self._link = None
        finally:
            self._metrics.connected.set(0)

    def _well(self) -> None:
        self._metrics.connected.set(1)
        self._metrics.reconnects.inc(self._connected_before)
        self._connected_before = True
        self._failing.end()
        log.info("connected to the local NATS server", server=self._url)

    def _complain(self, trouble: str, error: Exception | None = None) -> None:
        self._failing.begin(
            "the local NATS server cannot be used", server=self._url, error=trouble, exc_info=error
        )
