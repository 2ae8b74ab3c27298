"""Takes and renews the hub's lease, and prevents writes without it.

- Records are stored only over the lease's revision.
- Other changes check the lease by a clock that runs on in a stopped process, and only over connections that
  it names.
- A new holder has the old connections cut before its first change.
- The registrar compares streams every second, which undoes the rest.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from agent.base.clock import machine
from agent.base.logs import LogEdge
from agent.base.wait import timeout
from agent.contract import COMMANDS, HOME, ContractError
from agent.hub.cells import CellStreams
from agent.hub.lease import LEASE, RENEW_EVERY, Election, Lease, parse_lease
from agent.hub.registrar.aggregate import fleet_config
from agent.hub.registrar.fleet_store import BUCKET, BucketRoom, in_turn, read_copies
from agent.hub.registrar.metrics import LeadMetrics
from agent.jetstream import STREAM_NOT_FOUND, ApiError, JetStream, JetStreamError, UnavailableError
from agent.jetstream.info import PubAck
from agent.server.permissions import KICK

_LOOK_EVERY: Final = 0.25
_ANSWER_SECONDS: Final = 1.0
_WRITE_SECONDS: Final = 1.5
"""Longest record write, behind which renewals wait."""
_CUT_SECONDS: Final = 0.5
_SETTLE: Final = 0.2
"""Time for data already read from a cut connection."""
_READS: Final = (
    "STREAM.INFO.",
    "STREAM.NAMES",
    "STREAM.LIST",
    "STREAM.MSG.GET.",
    "CONSUMER.INFO.",
    "CONSUMER.NAMES.",
    "CONSUMER.LIST.",
)
_MOVE_EVERY: Final = 5.0
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_EXPECTED_OF: Final = "Nats-Expected-Last-Subject-Sequence-Subject"

Take = Callable[[Msg], Awaitable[None]]
"""Handles one message."""

log = structlog.get_logger("hub")


class NotLeadingError(UnavailableError):
    """Another agent leads or may; nothing was sent."""


class Leadership:
    """An agent's part in the lead, over its connections, also to servers of other `cells`; `me` is its
    identity among the agents of one server.

    The holder moves leaders of `streams` to other servers, which a takeover needs.
    """

    def __init__(
        self,
        nc: Client,
        system_nc: Client | None,
        me: str,
        replicas: int,
        streams: Iterable[str],
        metrics: LeadMetrics,
        cells: Mapping[str, Client] | None = None,
    ) -> None:
        self._nc, self._system_nc, self._cells = nc, system_nc, cells or {}
        self._streams = (BUCKET, *streams)
        self._moved_at = 0.0
        make = partial(JetStream, timeout=_ANSWER_SECONDS)
        self._of_cells = CellStreams({HOME: nc, **self._cells}, make)
        self._js = self._of_cells.home
        self._room = BucketRoom(self._js)
        self._replicas = replicas
        self._metrics = metrics
        name = str(nc._server_info.get("server_name", ""))
        self._election = Election(f"{me}@{name}", name)
        self._turn = asyncio.Lock()
        self._trouble = LogEdge(log, "lease available")
        self.taken, self.lost = asyncio.Event(), asyncio.Event()
        """Set once leading, and once not any more; then useless."""

    @property
    def holder(self) -> str:
        """The leader's server name, if known."""
        lease = self._election.lease
        return "" if lease is None or lease.seconds <= 0 else lease.name

    def holds(self) -> bool:
        """Whether this agent may write over its present connections."""
        lease = self._election.lease
        return (
            self._election.leads(_now())
            and lease is not None
            and self._nc.is_connected
            and lease.connections == self._connections()
        )

    def check(self, what: str) -> None:
        """Raise `NotLeadingError` unless this agent may write."""
        if not self.holds():
            raise NotLeadingError(f"{what} is not sent: this agent does not lead the hub")

    async def run(self) -> None:
        """Take and keep the lease until cancelled or lost."""
        while not self.lost.is_set():
            try:
                await self._step()
                await self._move_streams()
            except (JetStreamError, ContractError) as error:
                self._trouble.begin("lease not available", reason=str(error))
            else:
                self._trouble.end()
            self._look()
            await asyncio.sleep(RENEW_EVERY if self.taken.is_set() and not self._trouble else _LOOK_EVERY)

    async def release(self) -> None:
        """Release the lease early."""
        async with self._turn:
            lease = self._election.released(_now())
            self._metrics.leading.set(0)
            if lease is not None:
                try:
                    await self._put(lease)
                except JetStreamError as error:
                    log.warning("lease not released", reason=str(error))

    async def publish(
        self, js: JetStream, subject: str, data: bytes, headers: Mapping[str, str] | None
    ) -> PubAck:
        """Store a record under the lease, one at a time, as the server orders conditional writes. Raises as
        `JetStream.publish_ack`.
        """

        async def store() -> PubAck:
            self.check(f"a record on {subject}")
            fenced = {**(headers or {}), **self._condition()}
            return await JetStream.publish_ack(js, subject, data, fenced, _WRITE_SECONDS)

        async with self._turn:
            await self._room.take(subject, data)
            return await in_turn(store)

    async def _step(self) -> None:
        async with self._turn:
            election, now = self._election, _now()
            if not self.taken.is_set() or not election.leads(now):
                await self._read()
                if self.taken.is_set() or not election.may_take(_now()):
                    return
            before, sent = election.before, _now()
            lease = election.next(sent, self._connections())
            try:
                revision = await self._put(lease)
            except JetStreamError:
                await self._read()  # whether it is stored or another agent was first
                raise
            election.stored(revision, lease, sent)
        if not self.taken.is_set() and election.leads(_now()):
            await self._cut(() if before is None else before.connections)
            log.info("lead taken", term=lease.term, before="" if before is None else before.name)
            self._moved_at = _now()
            self.taken.set()

    async def _move_streams(self) -> None:
        """Move stream leaders off this machine; elections after its loss would take four to nine seconds."""
        if not self.taken.is_set() or self._replicas == 1 or _now() < self._moved_at + _MOVE_EVERY:
            return
        self._moved_at = _now()
        commands = [(js, COMMANDS) for js in self._of_cells.by_cell.values()]
        for js, stream in [*commands, *((self._of_cells.of(name), name) for name in self._streams)]:
            try:
                cluster = (await js.api(f"STREAM.INFO.{stream}")).get("cluster") or {}
                current = [replica for replica in cluster.get("replicas") or [] if replica.get("current")]
                if cluster.get("leader") == self._election.name and current and self.holds():
                    await js.api(f"STREAM.LEADER.STEPDOWN.{stream}")
                    log.info("stream led elsewhere", stream=stream)
            except JetStreamError as error:
                log.info("stream not led elsewhere", stream=stream, reason=str(error))

    def _look(self) -> None:
        leads = self._election.leads(_now())
        lease = self._election.lease
        self._metrics.leading.set(int(leads and self.taken.is_set()))
        self._metrics.term.set(0 if lease is None else lease.term)
        if self.taken.is_set() and not leads:
            log.warning("lead lost", holder=self.holder)
            self.lost.set()

    async def _read(self) -> None:
        try:
            message = await self._js.get_message(BUCKET, last_by_subject=LEASE)
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise
            await self._js.get_or_create_stream(fleet_config(self._replicas))
            message = None
        if message is None:
            lacked = None if self._replicas == 1 else await self._lacked()
            self._election.observed(0, None, _now(), lacked)
        else:
            self._election.observed(message.seq, parse_lease(message.data), _now())

    async def _lacked(self) -> Lease | None:
        """Return another replica's lease. None if not found in time: then its holder is waited for, and its
        connections are not cut.
        """
        try:
            async with timeout(_ANSWER_SECONDS):
                data = (await read_copies(self._nc, [LEASE])).get(LEASE)
        except (TimeoutError, UnavailableError) as error:
            log.info("copies of the lease not read", reason=str(error) or "no answer in time")
            return None
        return None if data is None else parse_lease(data)

    async def _put(self, lease: Lease) -> int:
        data = msgspec.json.encode(lease)
        return (await in_turn(lambda: self._js.publish_ack(LEASE, data, self._condition()))).seq

    def _condition(self) -> dict[str, str]:
        return {_EXPECTED: str(self._election.revision), _EXPECTED_OF: LEASE}

    def _connections(self) -> tuple[tuple[str, int], ...]:
        """Return this agent's changing connections."""
        own = (self._nc, self._system_nc, *self._cells.values())
        clients = [nc for nc in own if nc is not None and nc.is_connected]
        return tuple((str(nc._server_info["server_id"]), int(nc.client_id or 0)) for nc in clients)

    async def _cut(self, connections: tuple[tuple[str, int], ...]) -> None:
        """Cut these connections; a gone server sends nothing either."""
        system, own = self._system_nc, self._connections()
        foreign = [connection for connection in connections if connection not in own]
        if system is None or not foreign:
            return

        async def cut(server: str, number: int) -> None:
            body = json.dumps({"cid": number}).encode()
            try:
                await system.request(KICK.format(server), body, timeout=_CUT_SECONDS)
            except (nats.errors.Error, TimeoutError):
                log.info("connection of the last holder not cut", server=server)

        await asyncio.gather(*(cut(server, number) for server, number in foreign))
        await asyncio.sleep(_SETTLE)


class LeadJetStream(JetStream):
    """The API that changes nothing without the lease."""

    def __init__(self, nc: Client, leadership: Leadership) -> None:
        super().__init__(nc)
        self._leadership = leadership

    async def api(
        self, verb: str, request: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """Send a request. Raises `NotLeadingError` for a change without lease."""
        if not verb.startswith(_READS):
            self._leadership.check(verb)
        return await super().api(verb, request, timeout)

    async def publish_ack(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> PubAck:
        """Store a record, as `Leadership.publish`."""
        return await self._leadership.publish(self, subject, data, headers)


def while_leading(leadership: Leadership | None, answer: Take) -> Take:
    """Wrap a subscription to drop messages while another may lead."""

    async def take(msg: Msg) -> None:
        if leadership is None or leadership.holds():
            await answer(msg)

    return take


def _now() -> float:
    """Return seconds of a clock that runs during stops and sleep."""
    return machine.monotonic() / 1e9
