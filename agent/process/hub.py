"""Runs the hub's agent: the registrar over its connections."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from nats.aio.client import Client
from nats.errors import ConnectionReconnectingError
from nats.errors import Error as NatsError
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from agent import contract
from agent.base import logs
from agent.base.metrics import Metrics
from agent.base.nats_server import ServerError
from agent.base.supervisor import keep_serving
from agent.base.wait import Backoff, event_within, timeout, unless
from agent.config import Config, aggregates, members_digest, users_digest
from agent.contract import HOME
from agent.hub.leadership import Leadership, LeadJetStream
from agent.hub.registrar.metrics import LeadMetrics
from agent.hub.registrar.service import Registrar
from agent.hub.registrar.upkeep import dissolve
from agent.jetstream.connection import CancellableClient, abort, end, server_version
from agent.mirrors import mirror_controller
from agent.process.reload import Applied
from agent.server.health import ServerHealth
from agent.server.setup import identities

_RECONNECT_SECONDS = 0.1
_PING_SECONDS = 5
_CONNECT_SECONDS = 2.0
_LONGEST_WAIT = 5.0
_COLLECTED = 100
"""Terms between full collections; each leaves about 50 kB."""

log = structlog.get_logger("hub")


class ForgetfulClient(CancellableClient):
    """A client that drops unsent data of an earlier connection, since another agent may lead or the store be
    restored.
    """

    async def _process_connect_init(self) -> None:
        self._pending.clear()
        self._pending_data_size = 0
        for waiting in list(self._resp_map.values()):
            if not waiting.done():
                waiting.set_exception(ConnectionReconnectingError())
        await super()._process_connect_init()


class _TermCollector(Collector):
    """Exposes the current registrar's metrics."""

    def __init__(self) -> None:
        self.registry: CollectorRegistry | None = None

    def collect(self) -> Iterable[Metric]:
        return () if self.registry is None else self.registry.collect()


class HubAgent:
    """One run of the hub's agent in successive terms; with several machines one leads.

    A lost lead or changed leaves begin a new term with new connections.
    """

    def __init__(self, config: Config, metrics: Metrics, health: ServerHealth, machine: str = "") -> None:
        self._config, self._metrics, self._health = config, metrics, health
        self._identity = f"{machine}:{config.state_dir.resolve()}"
        self._of_term = _TermCollector()
        metrics.registry.register(self._of_term)
        self._lead_metrics = LeadMetrics(metrics.registry) if config.registrar.replicas > 1 else None
        self._leadership: Leadership | None = None
        self._registrar: Registrar | None = None
        self._ended: Registrar | None = None
        self._declared = mirror_controller(config, metrics)
        self._nc: Client | None = None
        self._cells: dict[str, Client] = {}
        self._term_over = asyncio.Event()

    async def run(self, stopping: asyncio.Event) -> None:
        """Run the registrar until `stopping`, while leading."""
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(self._end_with(stopping))
            terms = 0
            while not stopping.is_set():
                self._term_over.clear()
                await self._run(self._term_over)
                terms += 1
                if terms % _COLLECTED == 0:
                    gc.unfreeze()
                    gc.collect()
                    gc.freeze()
            ending.cancel()

    async def _end_with(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._term_over.set()

    async def _run(self, stopping: asyncio.Event) -> None:
        mine = identities(self._config)
        seeds = {HOME: mine.account, **mine.cells}
        clients: dict[str | None, Client] = {}
        try:
            for cell, seed in (*seeds.items(), (None, mine.system)):
                client = None if seed is None else await self._connect(seed, stopping)
                if client is not None:
                    clients[cell] = client
            if stopping.is_set():
                return
            self._nc, system = clients[HOME], clients.get(None)
            self._cells = {cell: clients[cell] for cell in mine.cells}
            if self._lead_metrics is None:
                await self._serve(system, None, stopping)
            else:
                await self._stand_by(system, self._lead_metrics, stopping)
        finally:
            for client in clients.values():
                await end(client)
            ended, self._ended = self._ended, None
            if ended is not None:
                await dissolve(ended)

    async def _stand_by(self, system: Client | None, metrics: LeadMetrics, stopping: asyncio.Event) -> None:
        """Wait for the lead, then serve until it is lost."""
        assert self._nc is not None
        replicas, streams = self._config.registrar.replicas, aggregates(self._config)
        lead = Leadership(self._nc, system, self._identity, replicas, streams, metrics, self._cells)
        self._leadership = lead
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(keep_serving("lead", lead.run))
            await unless(stopping, lead.taken.wait())
            if lead.taken.is_set():
                serving = group.create_task(self._serve(system, lead, stopping))
                losing = group.create_task(lead.lost.wait())
                await asyncio.wait((serving, losing), return_when=asyncio.FIRST_COMPLETED)
                losing.cancel()
                serving.cancel()
                await asyncio.wait((serving,))
            keeping.cancel()
        await lead.release()

    async def _serve(self, system: Client | None, lead: Leadership | None, stopping: asyncio.Event) -> None:
        assert self._nc is not None
        self._of_term.registry = registry = CollectorRegistry()
        self._registrar = Registrar(self._config, self._nc, system, registry, lead, self._cells)
        try:
            async with asyncio.TaskGroup() as group:
                links = None
                if self._declared is not None:
                    if lead is not None:
                        self._declared.jetstream = partial(LeadJetStream, leadership=lead)
                    links = group.create_task(keep_serving("declared links", self._declared.run))
                await self._registrar.run(stopping)
                if links is not None:
                    links.cancel()
        finally:
            self._ended, self._registrar, self._of_term.registry = self._registrar, None, None

    async def apply(self, new: Applied) -> None:
        """Apply changed logging, leaves or users."""
        self._config = new.config
        logs.set_up(new.config.log.level, new.config.log.format)
        if new.change.live & {"leaf", "user"}:
            self._term_over.set()

    def status(self) -> Mapping[str, Any]:
        standby = self._standby()
        fleet: dict[str, Any] = {}
        if self._registrar is not None:
            fleet = self._registrar.status()
        elif standby is not None:
            fleet = {
                "state": standby,
                "standby": bool(self._leadership and self._leadership.holder),
                "aggregates": {},
                "leaves": {},
                "configured": members_digest(self._config.leaf),
                "links_settled": True,
            }
        links = self._declared.status() if self._declared is not None else []
        return {
            "domain": self._config.domain,
            "role": "hub",
            "fleet": fleet,
            "links": links,
            "users": self._users(standby),
            **({} if standby is None else {"standby": standby}),
        }

    def audited(self, domain: str) -> contract.AuditedLeaf | None:
        """Return the newest audit of a leaf, or None."""
        return None if self._registrar is None else self._registrar.audits.leaf(domain)

    def accepts(self) -> tuple[bool, str]:
        """Return as `ready`; a full hub lets leaves wait."""
        return self.ready()

    def ready(self) -> tuple[bool, str]:
        """Return whether announcements are answered, here or by the leader, and why not."""
        if self._nc is None or not self._nc.is_connected:
            return False, self._health.unstarted or "the hub's NATS server does not answer"
        if (standby := self._standby()) is not None:
            return bool(self._leadership and self._leadership.holder), standby
        if self._registrar is None:
            return False, "the registrar is not started yet"
        if trouble := self._registrar.trouble():
            return False, trouble
        return True, "the registrar answers"

    def sentence(self) -> str:
        return self.ready()[1]

    def _users(self, standby: str | None) -> str:
        """Return the digest of admitted users; a standby's are its configuration's."""
        if self._registrar is not None:
            return self._registrar.users
        return "" if standby is None else users_digest(self._config.user)

    def _standby(self) -> str | None:
        """Return the standby sentence, or None."""
        if self._registrar is not None or self._leadership is None:
            return None
        holder = self._leadership.holder
        return f"standby: {holder} leads the hub" if holder else "standby: no agent leads the hub"

    def stalled(self) -> float:
        return 0.0

    def certificates(self) -> Mapping[str, bytes]:
        return {}

    def uplink(self) -> None:
        pass

    async def _connected(self) -> None:
        self._metrics.connected.set(1)

    async def _disconnected(self) -> None:
        self._metrics.connected.set(0)

    async def _connect(self, seed: Path, stopping: asyncio.Event) -> Client | None:
        """Return a reconnecting connection, retried until `stopping` (then None)."""
        backoff = Backoff(_RECONNECT_SECONDS, _LONGEST_WAIT)
        while not stopping.is_set():
            try:
                client = await self._open(seed)
                try:
                    self._health.admit(server_version(client))
                except ServerError:
                    await end(client)
                    raise
            except (NatsError, OSError, TimeoutError, ServerError):
                await event_within(stopping, backoff.next())
            else:
                await self._connected()
                return client
        return None

    async def _open(self, seed: Path) -> Client:
        client = ForgetfulClient()
        try:
            # The library itself would try for ever, even while the agent stops.
            async with timeout(_CONNECT_SECONDS):
                await client.connect(
                    self._config.nats.url,
                    name=f"petiole {contract.REGISTRAR}",
                    nkeys_seed=str(seed),
                    inbox_prefix=contract.inbox_prefix(contract.REGISTRAR).encode(),
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
    log.debug("connection error", error=str(error))
