"""The registrar: answers what leaves announce, keeps the aggregate's sources and the fleet, and purges what
is safe in the table. The one writer of the hub's streams; no reading passes through it, and links that are
made go on flowing without it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from structlog.typing import FilteringBoundLogger
from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential

from agent.config import Config
from agent.contract import (
    VERSION,
    Answer,
    ContractError,
    aggregate,
    announce_subject,
    committed_subject,
    leaf_stream,
    parse_announce,
    parse_committed,
    verify_subject,
)
from agent.jetstream import JetStream, JetStreamError, UnavailableError
from agent.metrics import Metrics
from agent.registrar.aggregate import commands_config, purge_up_to
from agent.registrar.aggregate_keeper import AggregateKeeper
from agent.registrar.announcements import Announcements
from agent.registrar.command_consumers import CommandConsumers
from agent.registrar.fleet_book import FleetBook
from agent.registrar.fleet_store import FleetStore
from agent.registrar.fleet_watch import FleetWatch
from agent.registrar.metrics import RegistrarMetrics
from agent.registrar.problems import Problems
from agent.registrar.status import fleet_status
from agent.registrar.verify import Verifier

MAX_ANNOUNCE: Final = 64 * 1024
_PENDING: Final = 4096
_AT_ONCE: Final = 64
_LOOK_SECONDS: Final = 0.2
_ANSWER_SECONDS: Final = 4.0
"""A leaf waits five seconds for an answer."""


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
        self._keep = config.registrar.keep
        self._classes = {leaf.domain: frozenset(leaf.classes) for leaf in config.leaf}
        self._metrics = RegistrarMetrics(metrics.registry)
        self._problems = Problems(log)
        self._js = js = JetStream(nc)
        self._book = FleetBook()
        self._store = FleetStore(js, self._problems)
        self._keeper = AggregateKeeper(
            js,
            aggregate(0),
            config.registrar.max_bytes,
            frozenset(leaf_stream(domain, cls) for domain, all_ in self._classes.items() for cls in all_),
            self._book.note,
            self._problems,
            self._metrics,
            log,
        )
        self._announcements = Announcements(
            js, self._book, self._store, self._keeper, self._classes, self._problems
        )
        self._commands = CommandConsumers(js, self._problems)
        self._watch = FleetWatch(
            system_nc,
            {leaf.key: leaf.domain for leaf in config.leaf},
            self._book,
            self._keeper,
            self._problems,
        )
        self._verifier = Verifier(nc, js, self._classes, lambda: (aggregate(0),), log)
        self._generation: int | None = None
        self._beginning = asyncio.Lock()
        self._busy: set[str] = set()
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until `stopping` is set, whatever the hub's server does meanwhile."""
        async with asyncio.TaskGroup() as group:
            services = [self._keep_ready(), self._keeper.run(), self._watch.run()]
            tasks = [group.create_task(service) for service in services]

            async def announce(msg: Msg) -> None:
                await self._on_announce(msg, group)

            async def verify(msg: Msg) -> None:
                await self._verifier.take(msg, group)

            subscriptions = [
                await self._nc.subscribe(announce_subject("*"), cb=announce, pending_msgs_limit=_PENDING),
                await self._nc.subscribe(
                    committed_subject("*"), cb=self._on_committed, pending_msgs_limit=_PENDING
                ),
                await self._nc.subscribe(verify_subject("*"), cb=verify, pending_msgs_limit=_PENDING),
            ]
            await stopping.wait()
            if not self._nc.is_closed:
                for one in subscriptions:
                    await one.unsubscribe()
            for task in tasks:
                task.cancel()

    def status(self) -> dict[str, Any]:
        """The aggregate, and every configured leaf with its state in one sentence."""
        linked = self._watch.links.domains()
        troubles = {
            domain: sentence
            for domain in self._classes
            for key in (_about(domain), f"rival of {domain}", f"links of {domain}")
            if (sentence := self._problems.of(key)) is not None
        }
        return fleet_status(
            self._classes, self._book.leaves, self._book.announced, linked, troubles, self._keeper.seen
        )

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
            for domain in self._book.gone_rivals(_now()):
                self._problems.end(f"rival of {domain}", f"{domain} is announced by one machine only")
            self._metrics.leaves.set(len(self._book.leaves))
            self._metrics.linked.set(len(self._watch.links.domains()))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _ready(self) -> None:
        """Return once the streams are there and the fleet is read back since the last reconnect; what was in
        memory may be newer than a store that was put back meanwhile. Raises `JetStreamError`."""
        async with self._beginning:
            if self._generation == self._reconnects:
                return
            generation = self._reconnects
            try:
                await self._begin()
            except JetStreamError as error:
                self._problems.begin("registrar", f"the hub's streams cannot be made ready: {error}")
                raise
            self._problems.end("registrar", "the hub's streams are ready")
            self._generation = generation

    async def _begin(self) -> None:
        await self._store.ensure()
        await self._js.ensure_stream(commands_config())
        leaves = await self._store.load(self._classes)
        self._announcements.begin()
        seen = await self._keeper.begin({})
        self._book.begin(leaves, seen, _now())
        self._keeper.want(self._book.sources())
        self._watch.look()
        info = seen.info
        self._log.info("ready", stream=info.name, first=info.first, last=info.last, leaves=len(leaves))

    @property
    def _reconnects(self) -> int:
        return int(self._nc.stats["reconnects"])

    async def _on_announce(self, msg: Msg, group: asyncio.TaskGroup) -> None:
        domain = msg.subject.rpartition(".")[2]
        refused = self._turned_away(domain, msg.data)
        if refused is None:
            self._busy.add(domain)
            group.create_task(self._answer(domain, msg))
        else:
            await self._respond(domain, msg, Answer(refused=refused))

    def _turned_away(self, domain: str, data: bytes) -> str | None:
        """Why an announcement is not even read."""
        if domain in self._classes and not self._book.may_announce(domain, _now()):
            return f"{domain!r} announces itself too often; one announcement in ten seconds is enough"
        if len(data) > MAX_ANNOUNCE:
            return f"announce: {len(data)} bytes are above the limit of {MAX_ANNOUNCE}"
        if domain in self._busy:
            return f"an announcement of {domain!r} is being answered; announce again"
        if len(self._busy) >= _PENDING:
            return f"{_PENDING} announcements wait for an answer; announce again"
        return None

    async def _answer(self, domain: str, msg: Msg) -> None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS), self._places:
                answer = await self._answered(domain, msg.data)
        except ContractError as error:
            answer = Answer(refused=str(error))
        except JetStreamError as error:
            answer = Answer(refused=f"the hub cannot take this in now: {error}")
        except TimeoutError:
            answer = Answer(refused=f"the hub's server did not answer within {_ANSWER_SECONDS:.0f} s")
        except Exception:  # one announcement must not end the service for all the others
            self._log.exception("an announcement could not be answered", domain=domain)
            answer = Answer(refused="the registrar failed on this announcement; its log says how")
        finally:
            self._busy.discard(domain)
        await self._respond(domain, msg, answer)

    async def _answered(self, domain: str, data: bytes) -> Answer:
        announce = parse_announce(data, domain)
        await self._ready()
        generation = self._generation
        answer = await self._announcements.answer(announce, self._watch.linked_at(domain))
        if generation != self._reconnects:
            raise UnavailableError("its server was restarted meanwhile")
        if answer.refused is None:
            self._watch.announced(domain, announce.machine)
            answer = dataclasses.replace(answer, commands=await self._commands.answer(announce))
        return answer

    async def _respond(self, domain: str, msg: Msg, answer: Answer) -> None:
        self._metrics.announcements.labels("taken_in" if answer.refused is None else "refused").inc()
        if answer.refused is not None:
            self._problems.begin(_about(domain), f"{domain} is refused: {answer.refused}")
        elif self._book.rival(domain, _now()) is None:
            self._problems.end(_about(domain), f"{domain} is taken in")
        await _send(msg, answer.encode())

    async def _on_committed(self, msg: Msg) -> None:
        row: dict[str, Any] = {"v": VERSION, "purged": 0}
        try:
            row["purged"] = await self._purge(msg.subject.rpartition(".")[2], msg.data)
        except (ContractError, JetStreamError) as error:
            self._log.warning("what was committed is not purged", reason=str(error))
            row["refused"] = str(error)
        await _send(msg, json.dumps(row).encode())

    async def _purge(self, stream: str, data: bytes) -> int:
        committed = parse_committed(data)
        if committed.stream != stream:
            raise ContractError(f"committed: {committed.stream!r} came on the subject of {stream!r}")
        await self._ready()
        seen = await self._keeper.observe()
        info = seen.info
        up_to = purge_up_to(committed, info, self._keep)
        if up_to < info.first:
            return 0
        self._book.note(seen)
        purged = await self._js.purge(info.name, up_to)
        self._metrics.purged.labels(info.name).inc(purged)
        self._log.info("purged what is committed", stream=info.name, messages=purged, up_to=up_to)
        return purged


def _about(domain: str) -> str:
    return f"announcement of {domain}"


async def _send(msg: Msg, data: bytes) -> None:
    if not msg.reply:
        return
    try:
        await msg.respond(data)
    except nats.errors.Error:
        return  # the connection went meanwhile; whoever asked asks again


def _now() -> float:
    return asyncio.get_running_loop().time()
