"""Runs the registrar: answers announcements, keeps sources and fleet, purges. Existing links flow
without it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from prometheus_client import CollectorRegistry
from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential

from agent.base.wait import loop_time
from agent.config import Config, aggregates, members_digest, readers, users_digest
from agent.contract import (
    HOME,
    VERSION,
    ContractError,
    announce_subject,
    audited_subject,
    cell_account,
    committed_subject,
    cursor_subject,
    lake_subject,
    tenant_account,
    user_account,
    verify_subject,
)
from agent.hub.cells import CellStreams
from agent.hub.leadership import Leadership, LeadJetStream, Take, while_leading
from agent.hub.registrar.aggregates import Aggregates, settings_of
from agent.hub.registrar.announce_service import PENDING, AnnounceService, about
from agent.hub.registrar.announcements import Announcements
from agent.hub.registrar.audits import Audits
from agent.hub.registrar.command_consumers import CellCommands
from agent.hub.registrar.durability import durability_of
from agent.hub.registrar.exchanges import StandingAnswers
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.fleet_store import FleetStore
from agent.hub.registrar.fleet_watch import FleetWatch, LinkedAccounts
from agent.hub.registrar.gaps import GapSearch
from agent.hub.registrar.held_messages import Cursors, HeldMessages
from agent.hub.registrar.lake_keeper import LakeKeeper
from agent.hub.registrar.link_cutter import LinkCutter
from agent.hub.registrar.metrics import LeafCollector, RegistrarMetrics, shown_leaves
from agent.hub.registrar.problems import ActiveProblems, Readiness
from agent.hub.registrar.purging import Purging
from agent.hub.registrar.quota import Quota
from agent.hub.registrar.status import KnownFleet, fleet_status
from agent.hub.registrar.upkeep import Upkeep
from agent.hub.registrar.verify import Verifier
from agent.jetstream import JetStream, JetStreamError, respond
from agent.jetstream.readers import keep_readers
from agent.server.setup import store_directory

_READY_SECONDS: Final = 0.2

log = structlog.get_logger("registrar")


class Registrar:
    """One hub's registrar over account and system connections (or announcements alone), both reconnecting.

    With `leadership` it acts only while leading, and runs once.
    """

    def __init__(
        self,
        config: Config,
        nc: Client,
        system_nc: Client | None,
        registry: CollectorRegistry,
        leadership: Leadership | None = None,
        cells: Mapping[str, Client] | None = None,
    ) -> None:
        self._clients = {HOME: nc, **(cells or {})}
        self._leadership = leadership
        self._replicas = config.registrar.replicas
        self._classes = {leaf.domain: frozenset(leaf.classes) for leaf in config.leaves}
        self._metrics = RegistrarMetrics(registry)
        self._problems = ActiveProblems()
        make = JetStream if leadership is None else partial(LeadJetStream, leadership=leadership)
        self._streams = streams = CellStreams(self._clients, make)
        js = streams.home
        self._fleet = FleetState(
            {leaf.domain for leaf in config.leaves if not leaf.key},
            {leaf.domain: leaf.cell_name for leaf in config.leaves if leaf.cell},
        )
        self._store = FleetStore(nc, js, self._replicas, self._problems)
        self._aggregates = Aggregates(
            streams,
            aggregates(config),
            settings_of(config),
            self._classes,
            self._fleet,
            self._problems,
            self._metrics,
        )
        self._durability = durability_of(config, self._aggregates.seen)
        self._gaps = GapSearch(
            streams, lambda domain: self._watch.linked_at(domain), self._aggregates.observe
        )
        held = HeldMessages(streams, self._fleet, self._gaps)
        self._announcements = Announcements(
            js,
            self._fleet,
            self._store,
            self._aggregates,
            self._classes,
            self._problems,
            self._durability,
            held,
        )
        self._readers = {name: readers(config, name) for name in aggregates(config) if config.user}
        self._configured, self._users = members_digest(config.leaf), users_digest(config.user)
        self.users = ""
        """Digest of users with consumers, or ""."""
        self._cutter = LinkCutter(
            system_nc,
            self._store,
            frozenset(
                key
                for leaf in config.leaf
                if leaf.key
                for key in (f"{leaf.key}{f'@{leaf.cell_name}' if leaf.cell else ''}", *leaf.users.values())
            ),
            {key: leaf.domain for leaf in config.leaf for key in leaf.revoked},
            (lambda: True) if leadership is None else leadership.holds,
        )
        self._quota = None if (limit := config.registrar.bytes_per_hour) is None else Quota(limit)
        self._watch = FleetWatch(
            system_nc,
            LinkedAccounts(
                {leaf.key: leaf.domain for leaf in config.leaf if leaf.key},
                [
                    *map(cell_account, self._clients),
                    *sorted({tenant_account(leaf.tenant) for leaf in config.leaf if leaf.tenant}),
                ],
                [user_account(user.name) for user in config.users],
                self._replicas,
            ),
            self._fleet,
            self._aggregates,
            self._problems,
            self._cutter,
            self._quota,
        )
        self._readiness = Readiness(tuple(self._clients.values()), self._begin, self._problems)
        self._commands = CellCommands(streams, self._replicas, self._problems, self._fleet.cell)
        self._announce_service = AnnounceService(
            self._announcements,
            self._commands,
            self._fleet,
            self._watch,
            StandingAnswers(
                self._fleet, self._store, self._aggregates, held.proven, self._announcements.proposals
            ),
            self._readiness,
            self._problems,
            self._metrics,
        )
        self.lake = LakeKeeper(self._store, self._readiness)
        """The lake behind which it purges."""
        self._cursors = Cursors(held, self._fleet, self._aggregates, self._classes, self._readiness)
        self._purging = Purging(
            streams,
            config.registrar.keep,
            self._store,
            self._aggregates,
            held,
            self._metrics,
            self._durability,
            self.lake,
        )
        self._verifier = Verifier(streams, self._classes, self._fleet)
        self._upkeep = Upkeep(
            self._fleet,
            self._store,
            self._aggregates,
            self._watch,
            self._problems,
            self._metrics,
            store_directory(config) if config.nats.server == "embedded" else config.nats.store_dir,
            self._gaps,
        )
        at_work = self._classes.keys() - self._fleet.revoked
        self._shown = shown_leaves(at_work, config.registrar.metrics, config.registrar.metrics_leaves)
        self._metrics.unshown.set(len(at_work) - len(self._shown))
        registry.register(LeafCollector(lambda: self._known(self._shown)))
        self.audits = Audits(self._store, self._readiness, self._shown)
        """The newest audit."""
        registry.register(self.audits)

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until `stopping`."""
        async with asyncio.TaskGroup() as group:
            services = (
                self._keep_ready,
                self._upkeep.run,
                self._aggregates.run,
                self._watch.run,
                self._commands.run,
                self._durability.run,
            )
            tasks = [group.create_task(service()) for service in services]
            of_leaves: dict[str, Take] = {
                announce_subject("*"): partial(self._announce_service.receive, group=group),
                cursor_subject("*"): partial(self._cursors.receive, group=group),
                verify_subject("*"): partial(self._verifier.take, group=group),
            }
            of_jobs: dict[str, Take] = {
                committed_subject("*"): self._on_committed,
                audited_subject(): self.audits.receive,
                lake_subject(): self.lake.receive,
            }
            subscriptions = [
                (nc, await self._subscribed(nc, subject, answer))
                for cell, nc in self._clients.items()
                for subject, answer in (
                    *((subject, partial(self._in_cell, cell, take)) for subject, take in of_leaves.items()),
                    *(() if cell else of_jobs.items()),
                )
            ]
            await stopping.wait()
            for nc, subscription in subscriptions:
                if not nc.is_closed:
                    await subscription.unsubscribe()
            for task in tasks:
                task.cancel()

    async def _subscribed(self, nc: Client, subject: str, answer: Take) -> Subscription:
        return await nc.subscribe(
            subject, cb=while_leading(self._leadership, answer), pending_msgs_limit=PENDING
        )

    async def _in_cell(self, cell: str, take: Take, msg: Msg) -> None:
        """Take what a leaf asks in its cell. A link that came up before its leaf moved from this one is not
        answered: it is going to be cut."""
        domain = msg.subject.rpartition(".")[2]
        if domain not in self._classes or self._fleet.cell(domain) == cell:
            await take(msg)

    def status(self) -> dict[str, Any]:
        """Return aggregates and leaves, a sentence each."""
        known = self._known(tuple(self._classes))
        fleet = fleet_status(known, self._upkeep.ahead(), self.trouble(), self.audits.head)
        lake = None if self.lake.known is None else self.lake.known.as_row()
        return {**fleet, "lake": lake, "configured": self._configured, "links_settled": self._cutter.settled}

    def _known(self, domains: Sequence[str]) -> KnownFleet:
        """Return present knowledge to show."""
        return KnownFleet(
            domains,
            dict(self._fleet.leaves),
            dict(self._fleet.announced),
            self._fleet.ownership.heard_at(),
            self._watch.links.domains(),
            self._fleet.revoked,
            set(self._fleet.resting),
            self._aggregates.seen(),
            self._troubles(),
            self.audits.rows,
            loop_time(),
            datetime.now(UTC),
            {} if self._quota is None else dict(self._quota.totals),
            self._problems.among(about("{}")),
            self._problems.among("quota of {}"),
        )

    def trouble(self) -> str | None:
        """Return why no leaf is admitted, or None."""
        return self._readiness.trouble()

    def _troubles(self) -> dict[str, str]:
        """Return each leaf's gravest problem."""
        found = self._aggregates.troubles()
        for key in ("links of {}", "rival of {}"):
            found |= self._problems.among(key)
        return found

    async def _keep_ready(self) -> None:
        """Begin after each reconnect."""
        while True:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(JetStreamError),
                wait=wait_exponential(multiplier=0.1, max=5.0),
            ):
                with attempt:
                    await self._readiness.wait()
            await asyncio.sleep(_READY_SECONDS)

    async def _begin(self) -> None:
        await self._store.ensure()
        leaves = await self._store.load(self._classes)
        noted = await self._store.load_noted(self._aggregates.controllers)
        self._announcements.begin()
        await self._commands.begin()
        seen = await self._aggregates.begin()
        await self._durability.begin()
        await self.lake.begin()
        await self.audits.begin()
        for name, wanted in self._readers.items():
            await keep_readers(self._streams.of(name), name, wanted)
        await self._store.save_aggregates(self._aggregates.controllers)
        self.users = self._users
        self._fleet.server = str(
            self._clients[HOME]._server_info.get("server_id", "")
        )  # the client does not tell it
        await self._fleet.begin(leaves, noted, seen, loop_time())
        await self._gaps.begin(self._fleet.leaves.values(), loop_time())
        await self._aggregates.want_all()
        self._watch.look()
        for name, observation in seen.items():
            info = observation.info
            log.info("ready", stream=name, first=info.first, last=info.last, leaves=len(leaves))

    async def _on_committed(self, msg: Msg) -> None:
        row: dict[str, Any] = {"v": VERSION, "purged": 0}
        try:
            await self._readiness.wait()
            stream = msg.subject.rpartition(".")[2]
            row |= await self._purging.answer(stream, msg.data)
            if "synced" not in row:
                self._upkeep.committed(stream)
        except (ContractError, JetStreamError) as error:
            log.warning("committed messages not purged", reason=str(error))
            row["refused"] = str(error)
        except Exception:  # ingest waits half a minute for an answer
            log.exception("purge failed")
            row["refused"] = "the registrar failed on this purge; its log says how"
        await respond(msg, json.dumps(row).encode())
