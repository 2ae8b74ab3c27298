"""The registrar: answers what leaves announce, keeps the aggregates' sources and the fleet, and purges what
is safe in the table. The one writer of the hub's streams; no reading passes through it, and links that are
made go on flowing without it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from structlog.typing import FilteringBoundLogger
from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential

from agent.base.files import room
from agent.base.metrics import Metrics
from agent.base.nats_server_version import ServerError, check_version
from agent.base.wait import loop_time
from agent.config import Config, aggregates, members_digest, readers
from agent.contract import (
    ACCOUNT,
    VERSION,
    ContractError,
    announce_subject,
    committed_subject,
    cursor_subject,
    tenant_account,
    user_account,
    verify_subject,
)
from agent.hub.registrar.active_problems import ActiveProblems
from agent.hub.registrar.aggregate import AggregateSettings, commands_config
from agent.hub.registrar.aggregates import Aggregates
from agent.hub.registrar.announce_service import PENDING, AnnounceService, about, respond
from agent.hub.registrar.announcements import Announcements
from agent.hub.registrar.command_consumers import CommandConsumers
from agent.hub.registrar.cursors import Cursors
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.fleet_store import FleetStore
from agent.hub.registrar.fleet_watch import FleetWatch
from agent.hub.registrar.link_cutter import LinkCutter
from agent.hub.registrar.metrics import RegistrarMetrics
from agent.hub.registrar.purging import Purging
from agent.hub.registrar.quota import Quota
from agent.hub.registrar.records import REVOKED
from agent.hub.registrar.status import fleet_status
from agent.hub.registrar.time_to_full import HubHorizon
from agent.hub.registrar.verify import Verifier
from agent.jetstream import JetStream, JetStreamError
from agent.jetstream.readers import keep_readers
from agent.server.setup import store_directory

_LOOK_SECONDS: Final = 0.2
_SERVER: Final = "server"
_REGISTRAR: Final = "registrar"


class Registrar:
    """The registrar of one hub, over a connection in the account and one in the system account; without the
    latter it learns of links only from announcements. Both connections reconnect by themselves, for ever."""

    def __init__(
        self,
        config: Config,
        nc: Client,
        system_nc: Client | None,
        metrics: Metrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._nc = nc
        self._log = log
        self._replicas = config.registrar.replicas
        self._classes = {leaf.domain: frozenset(leaf.classes) for leaf in config.leaf}
        self._metrics = RegistrarMetrics(metrics.registry)
        self._problems = ActiveProblems(log)
        self._js = js = JetStream(nc)
        self._book = FleetState({leaf.domain for leaf in config.leaf if not leaf.key})
        self._store = FleetStore(js, self._replicas, self._problems)
        self._aggregates = Aggregates(
            js,
            aggregates(config),
            AggregateSettings(config.registrar.max_bytes, self._replicas),
            config.registrar.max_sources,
            self._classes,
            self._book,
            self._problems,
            self._metrics,
            log,
        )
        self._announcements = Announcements(
            js, self._book, self._store, self._aggregates, self._classes, self._problems
        )
        self._readers = {name: readers(config, name) for name in aggregates(config) if config.user}
        self._configured = members_digest(config.leaf)
        self._cutter = LinkCutter(
            system_nc,
            self._store,
            frozenset(key for leaf in config.leaf if leaf.key for key in (leaf.key, *leaf.users.values())),
            {key: leaf.domain for leaf in config.leaf for key in leaf.revoked},
            log,
        )
        limit = config.registrar.bytes_per_hour
        self._watch = FleetWatch(
            system_nc,
            {leaf.key: leaf.domain for leaf in config.leaf if leaf.key},
            self._book,
            self._aggregates,
            self._problems,
            self._cutter,
            [ACCOUNT, *sorted({tenant_account(leaf.tenant) for leaf in config.leaf if leaf.tenant})],
            self._replicas,
            None if limit is None else Quota(limit),
            [user_account(user.name) for user in config.user],
        )
        self._reception = AnnounceService(
            self._announcements,
            CommandConsumers(js, self._problems, self._replicas),
            self._book,
            self._watch,
            self._classes,
            self._ready,
            lambda: self._reconnects,
            lambda: self._problems.of(_SERVER),
            self._problems,
            self._metrics,
            log,
        )
        self._cursors = Cursors(
            self._announcements,
            self._book,
            self._aggregates,
            self._classes,
            self._ready,
            lambda: self._reconnects,
        )
        self._purging = Purging(
            js,
            config.registrar.keep,
            self._book,
            self._store,
            self._aggregates,
            self._announcements,
            self._metrics,
            log,
        )
        self._verifier = Verifier(nc, js, self._classes, lambda: list(self._aggregates.keepers), log)
        self._horizon = HubHorizon()
        embedded = config.nats.server == "embedded"
        self._disk = store_directory(config) if embedded else config.nats.store_dir
        self._generation: int | None = None
        self._beginning = asyncio.Lock()

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until `stopping` is set, whatever the hub's server does meanwhile."""
        async with asyncio.TaskGroup() as group:
            services = [self._keep_ready(), self._aggregates.run(), self._watch.run()]
            tasks = [group.create_task(service) for service in services]

            async def announce(msg: Msg) -> None:
                await self._reception.receive(msg, group)

            async def cursor(msg: Msg) -> None:
                await self._cursors.receive(msg, group)

            async def verify(msg: Msg) -> None:
                await self._verifier.take(msg, group)

            subscriptions = [
                await self._nc.subscribe(announce_subject("*"), cb=announce, pending_msgs_limit=PENDING),
                await self._nc.subscribe(
                    committed_subject("*"), cb=self._on_committed, pending_msgs_limit=PENDING
                ),
                await self._nc.subscribe(cursor_subject("*"), cb=cursor, pending_msgs_limit=PENDING),
                await self._nc.subscribe(verify_subject("*"), cb=verify, pending_msgs_limit=PENDING),
            ]
            await stopping.wait()
            if not self._nc.is_closed:
                for one in subscriptions:
                    await one.unsubscribe()
            for task in tasks:
                task.cancel()

    def status(self) -> dict[str, Any]:
        """The aggregates, and every configured leaf with its state in one sentence."""
        linked = self._watch.links.domains()
        troubles = {domain: words for domain in self._classes if (words := self._trouble(domain))}
        now, free = loop_time(), self._free()
        ahead = {name: self._horizon.words(name, free, now) for name in self._horizon.names()}
        fleet = fleet_status(
            self._classes,
            self._book.leaves,
            self._book.announced,
            linked,
            troubles,
            self._aggregates.seen(),
            ahead,
            self.trouble(),
            self._book.revoked,
            self._book.silent(now),
        )
        return {**fleet, "configured": self._configured, "links_settled": self._cutter.settled}

    def trouble(self) -> str | None:
        """Why no leaf can be taken in, None where they can."""
        return next((words for key in (_SERVER, _REGISTRAR) if (words := self._problems.of(key))), None)

    def _trouble(self, domain: str) -> str | None:
        """What is wrong with a leaf, in one sentence; the gravest where there are several."""
        if domain in self._book.revoked:
            return REVOKED.format(domain=domain)
        keys = (f"rival of {domain}", about(domain), f"quota of {domain}", f"links of {domain}")
        said = next((words for key in keys if (words := self._problems.of(key))), None)
        return said or self._aggregates.trouble(domain)

    async def _keep_ready(self) -> None:
        """Begin anew after each reconnect. The library calls only whoever made the connection, so the count
        of its reconnects is looked at."""
        while True:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(JetStreamError),
                wait=wait_exponential(multiplier=0.1, max=5.0),
            ):
                with attempt:
                    await self._ready()
            self._look_ahead()
            for domain in self._book.claims.settled(loop_time()):
                self._problems.end(f"rival of {domain}", f"{domain} is announced by one machine only")
            self._metrics.leaves.set(len(self._book.leaves))
            linked = self._watch.links.domains()
            self._metrics.linked.set(len(linked))
            self._metrics.silent.set(len(linked & self._book.silent(loop_time()).keys()))
            await asyncio.sleep(_LOOK_SECONDS)

    def _look_ahead(self) -> None:
        """See how long until the hub is full."""
        now, free = loop_time(), self._free()
        seen = self._aggregates.seen()
        self._horizon.see((one.info for one in seen.values()), now)
        for name in seen:
            self._metrics.seconds_to_full.labels(name).set(self._horizon.seconds(name, free))
            self._metrics.since_commit.labels(name).set(self._horizon.since_commit(name, now))

    def _free(self) -> int | None:
        """Bytes that are free on the disk of the hub's server, None where that is not this machine's."""
        left = None if self._disk is None else room(self._disk)
        return None if left is None else left.free

    async def _ready(self) -> int:
        """Return once the streams are there and the fleet is read back since the last reconnect; what was in
        memory may be newer than a store that was put back meanwhile. Returns the number of that reconnect.
        Raises `JetStreamError`."""
        async with self._beginning:
            generation = self._reconnects
            if self._generation == generation:
                return generation
            try:
                await self._begin()
            except JetStreamError as error:
                self._problems.begin(_REGISTRAR, f"the hub's streams cannot be made ready: {error}", hub=True)
                raise
            self._problems.end(_REGISTRAR, "the hub's streams are ready")
            self._generation = generation
            return generation

    async def _begin(self) -> None:
        self._check_server()
        await self._store.ensure()
        await self._js.ensure_stream(commands_config(self._replicas))
        leaves = await self._store.load(self._classes)
        noted = await self._store.load_noted(self._aggregates.keepers)
        self._announcements.begin()
        seen = await self._aggregates.begin()
        for name, wanted in self._readers.items():
            await keep_readers(self._js, name, wanted)
        self._book.begin(leaves, noted, seen, loop_time())
        self._aggregates.want_all()
        self._watch.look()
        for name, one in seen.items():
            self._log.info("ready", stream=name, first=one.info.first, last=one.info.last, leaves=len(leaves))

    def _check_server(self) -> None:
        """An old server loses messages without a word, so no leaf is taken in on one."""
        version = self._nc.connected_server_version
        try:
            check_version(f"{version.major}.{version.minor}.{version.patch}", "the hub's server")
        except ServerError as error:
            self._problems.begin(_SERVER, f"no leaf is taken in: {error}", hub=True)
        else:
            self._problems.end(_SERVER, "the hub's server is new enough")

    @property
    def _reconnects(self) -> int:
        return int(self._nc.stats["reconnects"])

    async def _on_committed(self, msg: Msg) -> None:
        row: dict[str, Any] = {"v": VERSION, "purged": 0}
        try:
            await self._ready()
            stream = msg.subject.rpartition(".")[2]
            row["purged"] = await self._purging.committed(stream, msg.data)
            self._horizon.committed(stream, loop_time())
        except (ContractError, JetStreamError) as error:
            self._log.warning("what was committed is not purged", reason=str(error))
            row["refused"] = str(error)
        await respond(msg, json.dumps(row).encode())
