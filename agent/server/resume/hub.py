"""Listens for leaves' relays, and dials the hub's leaf port once a session."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey

from agent.base.listen_sockets import near_host
from agent.base.logs import Sparse
from agent.base.metrics import Metrics
from agent.base.wait import loop_time, timeout
from agent.server.resume.session import SESSION_SECONDS, Pair, Session, put
from agent.server.resume.stream import (
    HELLO_BYTES,
    Answer,
    Budget,
    Hello,
    ProtocolError,
    Verdict,
)

_MOST_SESSIONS: Final = 10_000
_MOST_GREETING: Final = 1_000
_BACKLOG: Final = 1_024
"""Connections that wait to be accepted: all leaves dial at once after a start of the hub's agent."""
_HELD_BYTES: Final = 256 * 2**20
_GREETING_SECONDS: Final = 5.0
_ENDS: Final = (OSError, EOFError, TimeoutError, ProtocolError)

log = structlog.get_logger("link")


class _Served(Session):
    """A session at the hub with its newest connection."""

    def __init__(self, server: Pair, budget: Budget, public: bytes, secret: bytes) -> None:
        super().__init__(server, budget)
        self.public, self.secret, self.newest = public, secret, 0
        self.one_line = asyncio.Lock()
        self.alone: asyncio.TimerHandle | None = None


class HubRelay:
    """Serves `listen`, and dials `leaf_port`."""

    def __init__(self, listen: tuple[str, int], leaf_port: tuple[str, int], metrics: Metrics) -> None:
        self._listen, self._leaf_port = listen, (near_host(leaf_port[0]), leaf_port[1])
        self._metrics = metrics
        self._budget = Budget(_HELD_BYTES)
        self._greeting = 0
        self._sessions: dict[bytes, _Served | None] = {}
        """By id; None while the hub's server is dialled."""
        self._sparse = Sparse()

    async def run(self) -> None:
        """Serve until cancelled. Raises `OSError` if the address cannot be used."""
        async with asyncio.TaskGroup() as group:

            def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                if self._greeting < _MOST_GREETING:
                    self._greeting += 1
                    group.create_task(self._serve((reader, writer), group))
                else:
                    writer.transport.abort()

            server = await asyncio.start_server(begin, *self._listen, backlog=_BACKLOG)
            try:
                await server.serve_forever()
            finally:
                for key in list(self._sessions):
                    self._close(key)

    def status(self) -> dict[str, int]:
        return {"sessions": len(self._sessions)}

    async def _serve(self, line: Pair, group: asyncio.TaskGroup) -> None:
        reader, writer = line
        try:
            try:
                async with timeout(_GREETING_SECONDS):
                    hello = Hello.decode(await reader.readexactly(HELLO_BYTES))
            finally:
                self._greeting -= 1
            verdict = await self._find(hello, group)
            if verdict is Verdict.RESUMED:
                await self._carry(line, hello)
            else:
                put(writer, Answer(verdict).encode())
                async with timeout(_GREETING_SECONDS):
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except _ENDS as error:
            log.debug("relayed connection ended", error=repr(error))
        finally:
            writer.transport.abort()

    async def _find(self, hello: Hello, group: asyncio.TaskGroup) -> Verdict:
        """Find or begin the session of a greeting."""
        session, key = self._sessions.get(hello.key), hello.key
        if session is None and key in self._sessions:
            return Verdict.STALE  # its first connection is still dialling the server
        if session is not None:
            verdict = hello.judge(session.newest, session.secret)
            if verdict is Verdict.RESUMED:
                session.newest = hello.number
                session.drop_line()
            return verdict
        if (verdict := hello.judge(None, b"")) is not Verdict.RESUMED:
            return verdict
        public, secret = agree(PrivateKey.generate(), key)
        if len(self._sessions) >= _MOST_SESSIONS:
            self._sparse.report(log.warning, "relayed link refused", reason="too many sessions")
            return Verdict.FULL
        self._sessions[key] = None
        try:
            async with timeout(_GREETING_SECONDS):
                server = await asyncio.open_connection(*self._leaf_port)
        except (OSError, TimeoutError):
            return Verdict.AWAY
        else:
            session = self._sessions[key] = _Served(server, self._budget, public, secret)
            group.create_task(self._pull(key, session))
            return verdict
        finally:
            if self._sessions.get(key) is None:
                self._sessions.pop(key, None)

    async def _pull(self, key: bytes, session: _Served) -> None:
        await session.pull()
        if session.alone is not None:
            self._close(key)

    async def _carry(self, line: Pair, hello: Hello) -> None:
        key = hello.key
        session = self._sessions[key]
        assert session is not None
        async with session.one_line:
            if session.newest != hello.number or session.closed:
                return
            if session.alone is not None:
                session.alone.cancel()
                session.alone = None
            try:
                session.stream.begin(loop_time())
                again = session.stream.resume(hello.received)
                if hello.number:
                    note_bridged(self._metrics, again)
                put(line[1], Answer(Verdict.RESUMED, session.stream.received, session.public).encode())
                await session.carry(line)
            except ProtocolError as error:
                self._sparse.report(log.warning, "relayed link ended", reason=str(error))
                self._close(key)
            finally:
                if session.over:
                    self._close(key)
                else:
                    loop = asyncio.get_running_loop()
                    session.alone = loop.call_later(SESSION_SECONDS, self._close, key)

    def _close(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            if session.alone is not None:
                session.alone.cancel()
            session.close()


def agree(own: PrivateKey, other: bytes) -> tuple[bytes, bytes]:
    """Return the own public key and the shared secret. Raises `ProtocolError` for a key that gives none."""
    try:
        return own.public_key.encode(), Box(own, PublicKey(other)).shared_key()
    except CryptoError as error:
        raise ProtocolError("the key gives no secret") from error


def note_bridged(metrics: Metrics, again: int) -> None:
    """Count a bridged break and the bytes that are sent again."""
    metrics.link_bridged.inc()
    metrics.link_resent.inc(again)
