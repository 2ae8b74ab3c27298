"""The agent's connection to its local server, made anew whenever it ends.

The client library's own reconnect is not used: it would send what it had buffered before anybody has looked
at the stream, and gives up for good after some attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from agent import contract
from agent.jetstream import JetStreamError
from agent.metrics import Metrics

_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0
_CONNECT_SECONDS = 5
_PING_SECONDS = 5

log = structlog.get_logger("connection")


async def connect(url: str, seed_file: Path, identity: str, on_closed: Callable[[], None]) -> Client:
    """One connection of an identity (its inbox prefix and name); `on_closed` is called when it has ended for
    whatever reason. Raises `NatsError` or `OSError`."""

    async def closed() -> None:
        on_closed()

    async def problem(error: Exception) -> None:
        log.debug("connection", identity=identity, error=str(error))

    return await nats.connect(
        url,
        name=f"petiole {identity}",
        nkeys_seed=str(seed_file),
        inbox_prefix=contract.inbox_prefix(identity).encode(),
        allow_reconnect=False,
        connect_timeout=_CONNECT_SECONDS,
        ping_interval=_PING_SECONDS,
        max_outstanding_pings=2,
        closed_cb=closed,
        error_cb=problem,
    )


class Connection:
    """Keeps one connection alive. After each connect `prepare` is awaited; when the connection ends, or
    `renew` is called, `ended` is called and a new one is made."""

    def __init__(
        self,
        url: str,
        seed_file: Path,
        identity: str,
        *,
        prepare: Callable[[Client], Awaitable[None]],
        ended: Callable[[], None],
        metrics: Metrics,
    ) -> None:
        self._url, self._seed_file, self._identity = url, seed_file, identity
        self._prepare, self._ended, self._metrics = prepare, ended, metrics
        self._over = asyncio.Event()
        self._trouble: str | None = None

    def renew(self, reason: str) -> None:
        """This connection leads nowhere: make a new one."""
        if not self._over.is_set():
            log.warning("renewing the connection", reason=reason)
            self._over.set()

    async def run(self) -> None:
        """Connect, prepare, wait for the end, again and again until cancelled."""
        failures = 0
        first = True
        while True:
            prepared = await self._once(counted=not first)
            failures = 0 if prepared else failures + 1
            first = first and not prepared
            await asyncio.sleep(min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** min(failures, 10)))

    async def _once(self, *, counted: bool) -> bool:
        self._over = over = asyncio.Event()
        nc: Client | None = None
        prepared = False
        try:
            nc = await connect(self._url, self._seed_file, self._identity, over.set)
            await self._prepare(nc)
            prepared = True
            self._say(None)
            self._metrics.connected.set(1)
            self._metrics.reconnects.inc(counted)
            await over.wait()
        except (NatsError, JetStreamError, OSError, TimeoutError) as error:
            self._say(f"{type(error).__name__}: {error}")
        finally:
            self._metrics.connected.set(0)
            self._ended()
            if nc is not None:
                await nc.close()
        return prepared

    def _say(self, trouble: str | None) -> None:
        if trouble != self._trouble and trouble is not None:
            log.warning("the local NATS server cannot be used", server=self._url, error=trouble)
        if trouble is None:
            log.info("connected to the local NATS server", server=self._url)
        self._trouble = trouble
