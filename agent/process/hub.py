"""The agent of the hub: the registrar over its two connections."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog
import tenacity
from nats.aio.client import Client
from nats.errors import Error as NatsError

from agent import contract
from agent.base import logs
from agent.base.metrics import Metrics
from agent.base.nats_server import ServerError
from agent.base.supervisor import keep_serving
from agent.config import Config
from agent.hub.registrar.service import Registrar
from agent.jetstream.connection import CancellableClient, abort, end, server_version
from agent.mirrors import mirror_controller
from agent.process.reload import Applied
from agent.server.health import ServerHealth
from agent.server.setup import identities

_IDENTITY = "registrar"
_RECONNECT_SECONDS = 0.1
_PING_SECONDS = 5
_CONNECT_SECONDS = 2.0
_LONGEST_WAIT = 5.0

log = structlog.get_logger("hub")


class HubAgent:
    """One run of the hub's agent."""

    def __init__(self, config: Config, metrics: Metrics, health: ServerHealth) -> None:
        self._config, self._metrics, self._health = config, metrics, health
        self._registrar: Registrar | None = None
        self._declared = mirror_controller(config, _IDENTITY, metrics)
        self._nc: Client | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        """Run the registrar until `stopping` is set."""
        mine = identities(self._config)
        clients: list[Client] = []
        try:
            for seed in (mine.account, mine.system):
                client = None if seed is None else await self._connect(seed, stopping)
                if client is not None:
                    clients.append(client)
            if stopping.is_set():
                return
            self._nc = clients[0]
            system = clients[1] if len(clients) > 1 else None
            self._registrar = Registrar(self._config, self._nc, system, self._metrics)
            await self._serve(self._registrar, stopping)
        finally:
            for client in clients:
                await end(client)

    async def _serve(self, registrar: Registrar, stopping: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            links = None
            if self._declared is not None:
                links = group.create_task(keep_serving("declared links", self._declared.run))
            await registrar.run(stopping)
            if links is not None:
                links.cancel()

    async def apply(self, new: Applied) -> None:
        """Let a configuration hold of which only logging is another."""
        self._config = new.config
        logs.set_up(new.config.log.level, new.config.log.format)

    def status(self) -> Mapping[str, Any]:
        """What `/status` shows."""
        fleet = self._registrar.status() if self._registrar is not None else {}
        links = self._declared.status() if self._declared is not None else []
        return {
            "domain": self._config.domain,
            "role": "hub",
            "fleet": fleet,
            "links": links,
            "users": self._registrar.users if self._registrar is not None else "",
        }

    def ready(self) -> tuple[bool, str]:
        """Whether announcements are answered, and why not."""
        if self._registrar is None or self._nc is None or not self._nc.is_connected:
            return False, self._health.unstarted or "the hub's NATS server does not answer"
        if trouble := self._registrar.trouble():
            return False, trouble
        return True, "the registrar answers"

    def sentence(self) -> str:
        """How the registrar is."""
        return self.ready()[1]

    def stalled(self) -> float:
        """The hub's agent publishes no readings."""
        return 0.0

    async def _connected(self) -> None:
        self._metrics.connected.set(1)

    async def _disconnected(self) -> None:
        self._metrics.connected.set(0)

    async def _connect(self, seed: Path, stopping: asyncio.Event) -> Client | None:
        """A connection that reconnects for ever; the first one is tried until it is made, or `stopping` is
        set: then None."""
        async for attempt in tenacity.AsyncRetrying(
            wait=tenacity.wait_exponential(multiplier=_RECONNECT_SECONDS, max=_LONGEST_WAIT),
            retry=tenacity.retry_if_exception_type((NatsError, OSError, TimeoutError, ServerError)),
            stop=lambda _state: stopping.is_set(),
            retry_error_callback=lambda _state: None,
        ):
            with attempt:
                client = await self._open(seed)
                try:
                    self._health.admit(server_version(client))
                except ServerError:
                    await end(client)
                    raise
                await self._connected()
                return client
        return None

    async def _open(self, seed: Path) -> Client:
        client = CancellableClient()
        try:
            # The library itself would try for ever, even while the agent stops.
            async with asyncio.timeout(_CONNECT_SECONDS):
                await client.connect(
                    f"nats://{self._config.nats.listen}",
                    name=f"petiole {_IDENTITY}",
                    nkeys_seed=str(seed),
                    inbox_prefix=contract.inbox_prefix(_IDENTITY).encode(),
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=_RECONNECT_SECONDS,
                    ping_interval=_PING_SECONDS,
                    max_outstanding_pings=2,
                    error_cb=_note,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._connected,
                )
        except BaseException:
            abort(client)
            raise
        return client


async def _note(error: Exception) -> None:
    log.debug("connection", error=str(error))
