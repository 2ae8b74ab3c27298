"""Is the HTTP proxy of a leaf's own server on loopback, and carries its links over breaks of the line.

nats-server asks a proxy for the hub's name and port, and verifies that name in TLS itself
(`establishHTTPProxyTunnel` and `leafClientHandshakeIfNeeded` in `server/leafnode.go` of 2.15). So TLS and
keys remain the servers' own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Any, Final

import structlog
from nacl.public import PrivateKey

from agent.base.listen_sockets import host_and_port
from agent.base.logs import Sparse
from agent.base.metrics import Metrics
from agent.base.wait import Backoff, loop_time, timeout
from agent.server.hub_route import RELAY_REFUSAL, address_of
from agent.server.resume.hub import agree, note_bridged
from agent.server.resume.session import SESSION_SECONDS, Pair, Session, put
from agent.server.resume.stream import ANSWER_BYTES, Answer, Budget, Hello, ProtocolError, Verdict

_MOST_SESSIONS: Final = 100
_HELD_BYTES: Final = 32 * 2**20
_REQUEST_SECONDS: Final = 5.0
_MOST_REQUEST: Final = 8_192
_FIRST_DIAL_SECONDS: Final = 8.0
"""Less than the 10 s that the server waits for its proxy."""
_LEAST_DIAL_SECONDS, _MOST_DIAL_SECONDS, _ROUND_TRIPS, _GROWTH = 0.3, 5.0, 2.0, 1.5
"""A connection that takes more round trips is dialled again, for its first packet may be lost."""
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 0.2
_REASONS: Final = {
    Verdict.UNKNOWN: "session not known",
    Verdict.STALE: "a newer connection has the session",
    Verdict.FULL: "too many sessions",
    Verdict.AWAY: "its server is away",
}
_ENDS: Final = (OSError, EOFError, TimeoutError, ProtocolError)

log = structlog.get_logger("link")


class LeafRelay:
    """Serves `listen` for the local server; dials the hosts of `urls` at `port`."""

    def __init__(self, listen: tuple[str, int], urls: Iterable[str], port: int, metrics: Metrics) -> None:
        self._listen, self._metrics = listen, metrics
        self._targets = {host_and_port(*address_of(url)): (address_of(url)[0], port) for url in urls}
        self._budget = Budget(_HELD_BYTES)
        self._taken = self._bridged = self._again = 0
        self._sparse = Sparse()

    async def run(self, listening: asyncio.Event | None = None) -> None:
        """Serve until cancelled; sets `listening`. Raises `OSError` if the address cannot be used."""
        async with asyncio.TaskGroup() as group:

            def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                if self._taken < _MOST_SESSIONS:
                    self._taken += 1
                    group.create_task(self._serve((reader, writer)))
                else:
                    writer.transport.abort()

            server = await asyncio.start_server(begin, *self._listen, limit=_MOST_REQUEST)
            if listening is not None:
                listening.set()
            await server.serve_forever()

    def status(self) -> dict[str, Any]:
        return {"bridged": self._bridged, "resent_bytes": self._again}

    async def _serve(self, server: Pair) -> None:
        reader, writer = server
        try:
            async with timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            method, _, rest = head.decode("latin-1").partition(" ")
            target = self._targets.get(rest.partition(" ")[0])
            if method != "CONNECT" or target is None:
                await _refuse(writer, "403 Only addresses of nats.hub_urls are relayed")
                return
            link = _Link(server, self._budget, target)
            try:
                async with timeout(_FIRST_DIAL_SECONDS):
                    line = await link.begin()
            except _ENDS as error:
                where = host_and_port(*target)
                await _refuse(writer, f"{RELAY_REFUSAL}{where}: {_words(error)}")
                return
            await self._keep(link, line)
        except (*_ENDS, asyncio.LimitOverrunError) as error:
            log.debug("relayed connection ended", error=repr(error))
        finally:
            self._taken -= 1
            writer.transport.abort()

    async def _keep(self, link: _Link, line: Pair) -> None:
        """Accept the server's request, and carry its session over lines until it is over."""

        async def answered(reader: asyncio.StreamReader) -> None:
            again = await link.continue_after(reader)
            seconds, link.broken_at = loop_time() - link.broken_at, 0.0
            self._bridged += 1
            self._again += again
            note_bridged(self._metrics, again)
            self._sparse.report(log.info, "break bridged", seconds=round(seconds, 2), resent_bytes=again)

        pulling = asyncio.create_task(link.pull())
        try:
            put(link.server, b"HTTP/1.1 200 OK\r\n\r\n")
            await link.carry(line)
            while (again_on := await link.dial_again()) is not None:
                await link.carry(again_on, answered)
            if not link.over:
                raise ProtocolError("the line is away for too long")
        except ProtocolError as error:
            log.info("relayed link ended", reason=str(error))
        finally:
            link.close()
            pulling.cancel()
            await asyncio.gather(pulling, return_exceptions=True)


class _Link(Session):
    """A session at the leaf; `begin` before all else."""

    def __init__(self, server: Pair, budget: Budget, target: tuple[str, int]) -> None:
        super().__init__(server, budget)
        self.server = server[1]
        self._target, self._number, self._own = target, 0, PrivateKey.generate()
        self._secret = b""
        self._round_trip = 0.0
        """Seconds that the last connection took to open: no queue of the line is in it."""
        self.broken_at = 0.0
        """When the last line broke that the hub had answered on, 0 while it is up."""

    async def begin(self) -> Pair:
        """Dial for a new session. Raises `ProtocolError`, `OSError` or `EOFError`."""
        line = await self._dial()
        try:
            answer = await _answer(line[0])
            self._secret = agree(self._own, answer.key)[1]
            self.stream.resume(answer.received)
        except BaseException:
            line[1].transport.abort()
            raise
        # The resolver of the hub's name may be behind the line.
        peer = line[1].get_extra_info("peername")
        self._target = (peer or self._target)[:2]
        return line

    async def dial_again(self) -> Pair | None:
        """Dial at once and send the greeting; None if the session is over, or the line stays away."""
        self.broken_at = self.broken_at or loop_time()
        until, backoff = self.broken_at + SESSION_SECONDS, Backoff(_FIRST_WAIT, _LONGEST_WAIT)
        patience = max(_LEAST_DIAL_SECONDS, _ROUND_TRIPS * self._round_trip)
        while not self.over and loop_time() < until:
            try:
                async with timeout(patience):
                    return await self._dial()
            except TimeoutError:
                patience = min(patience * _GROWTH, _MOST_DIAL_SECONDS)
            except OSError:
                await asyncio.sleep(backoff.next())
        return None

    async def continue_after(self, reader: asyncio.StreamReader) -> int:
        """Read the hub's answer; return how many bytes were sent in vain. Raises `ProtocolError`."""
        return self.stream.resume((await _answer(reader)).received)

    async def _dial(self) -> Pair:
        began = loop_time()
        line = await asyncio.open_connection(*self._target)
        self._round_trip = loop_time() - began
        hello = Hello(self._own.public_key.encode(), self._number, self.stream.received)
        self._number += 1
        self.stream.begin(loop_time())
        put(line[1], hello.encode(self._secret))
        return line


async def _answer(reader: asyncio.StreamReader) -> Answer:
    """Read the hub's answer. Raises `ProtocolError` for a refusal too."""
    answer = Answer.decode(await reader.readexactly(ANSWER_BYTES))
    if answer.verdict is not Verdict.RESUMED:
        raise ProtocolError(_REASONS[answer.verdict])
    return answer


async def _refuse(writer: asyncio.StreamWriter, status: str) -> None:
    put(writer, f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
    async with timeout(_REQUEST_SECONDS):
        await writer.drain()
        writer.close()
        await writer.wait_closed()


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error) or type(error).__name__
