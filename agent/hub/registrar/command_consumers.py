"""Watches the command stream for all leaves, and keeps one consumer per leaf under its announced epoch.

A look is one request; new commands are read singly. Mirrors can't change consumer or subject, and a consumer
in use can't either (10013), so a new epoch recreates it from the first command; one deleted by hand returns
under its epoch. A complete mirror needs none: its consumer is dropped, and returns with the next command.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import structlog

from agent.base.wait import bounded_gather, loop_time
from agent.contract import (
    COMMANDS,
    COMMANDS_CHECKED,
    Announce,
    CommandsHeld,
    CommandsWanted,
    command_consumer,
    command_deliver,
    command_subjects,
)
from agent.hub.cells import CellStreams
from agent.hub.registrar.aggregate import commands_config
from agent.hub.registrar.problems import ActiveProblems
from agent.jetstream import ConsumerInfo, JetStream, JetStreamError, StreamInfo, nanoseconds

_LIST_SECONDS: Final = 60.0
_ONE_BY_ONE: Final = 256
"""New commands above which the newest per leaf is asked."""
_MAX_ACK_PENDING: Final = 1000
_LOOK_SECONDS: Final = 1.0
_OBSERVED: Final = 2.5
"""Seconds for which a look serves repeats."""

log = structlog.get_logger("registrar")


class CommandStream:
    """The replicated command stream."""

    def __init__(self, js: JetStream, replicas: int = 1) -> None:
        self._js, self._replicas = js, replicas
        self._looking = asyncio.Lock()
        self.begin()

    def begin(self) -> None:
        """Forget observations after the server's absence."""
        self._seen: StreamInfo | None = None
        self._asked = float("-inf")
        self._listed_at = float("-inf")
        self._newest: dict[str, int] = {}
        self._having: set[str] = set()
        """Domains with commands."""
        self.delivers: dict[str, str] = {}
        """Deliver subjects, "" if unknown; makers note changes here."""

    async def looked(self) -> bool:
        """Look, shared, each second; returns success."""
        if self._seen is None or not self._js.connected:
            return False
        try:
            await self.look()
        except JetStreamError:
            return False  # what is not seen in time does not hold; the next one who asks learns why
        return True

    async def look(self) -> StreamInfo:
        """Return the stream, shared. Raises `ApiError` or `UnavailableError`."""
        wanted = loop_time()
        async with self._looking:
            if self._seen is None or self._asked < wanted:
                asked = loop_time()
                info = await self._js.get_or_create_stream(commands_config(self._replicas))
                await self._compare(self._seen, info)
                self._seen, self._asked = info, asked
            assert self._seen is not None
            return self._seen

    def seen_since(self, since: float) -> StreamInfo | None:
        """Return the newest look unless older."""
        return self._seen if self._asked >= since else None

    def newest_known(self, domain: str) -> int | None:
        """Return a leaf's newest sequence, 0 for none, None if unknown."""
        found = self._newest.get(domain)
        return 0 if found is None and domain not in self._having else found

    async def newest(self, domain: str) -> int:
        """Return it, asking if needed. Raises `ApiError` or `UnavailableError`."""
        if (known := self.newest_known(domain)) is not None:
            return known
        message = await self._js.get_message(COMMANDS, last_by_subject=command_subjects(domain))
        self._newest[domain] = found = message.seq if message is not None else 0
        return found

    async def _compare(self, old: StreamInfo | None, info: StreamInfo) -> None:
        if old is None or info.created != old.created or info.last < old.last:
            await self._read_subjects()
            # All at once: after a start of the registrar each leaf's next announcement asks about its own.
            self.delivers = {
                consumer.name: consumer.config.get("deliver_subject", "")
                async for consumer in self._js.consumers(COMMANDS)
            }
            self._listed_at = float("-inf")
        else:
            await self._read_new(old, info)
        now = loop_time()
        if info.consumers != len(self.delivers) or now - self._listed_at >= _LIST_SECONDS:
            names = await self._js.consumer_names(COMMANDS)
            self.delivers = {name: self.delivers.get(name, "") for name in names}
            self._listed_at = now

    async def _read_subjects(self) -> None:
        self._newest.clear()
        answer = await self._js.api(f"STREAM.INFO.{COMMANDS}", {"subjects_filter": "cmd.>"})
        self._having = {subject.split(".")[1] for subject in answer["state"].get("subjects") or {}}

    async def _read_new(self, old: StreamInfo, info: StreamInfo) -> None:
        new = range(old.last + 1, info.last + 1)
        if old.messages + len(new) != info.messages:
            self._newest.clear()  # some have expired, or were deleted
        if len(new) > _ONE_BY_ONE:
            return await self._read_subjects()
        for seq in new:
            message = await self._js.get_message(COMMANDS, seq=seq)
            if message is not None:
                domain = message.subject.split(".")[1]
                self._having.add(domain)
                self._newest[domain] = seq
        return None


class CellCommands:
    """The commands of all cells; `cell` returns that of a leaf's domain."""

    def __init__(
        self, streams: CellStreams, replicas: int, problems: ActiveProblems, cell: Callable[[str], str]
    ) -> None:
        self._js, self._replicas, self._cell = streams.by_cell, replicas, cell
        self._streams = {of: CommandStream(js, replicas) for of, js in self._js.items()}
        self._consumers = {
            of: CommandConsumers(js, self._streams[of], problems) for of, js in self._js.items()
        }

    async def begin(self) -> None:
        """Make missing streams and forget earlier looks at them. Raises `ApiError` or `UnavailableError`."""
        await bounded_gather(lambda js: js.ensure_stream(commands_config(self._replicas)), self._js.values())
        for stream in self._streams.values():
            stream.begin()

    async def run(self) -> None:
        """As `CommandConsumers.run`, of all cells."""
        async with asyncio.TaskGroup() as group:
            for consumers in self._consumers.values():
                group.create_task(consumers.run())

    async def answer(self, announce: Announce) -> CommandsHeld | None:
        """As `CommandConsumers.answer`."""
        return await self._consumers[self._cell(announce.domain)].answer(announce)

    def stands(self, announce: Announce, held: CommandsHeld | None, now: float) -> bool:
        """As `CommandConsumers.stands`."""
        return self._consumers[self._cell(announce.domain)].stands(announce, held, now)


class CommandConsumers:
    """Keeps the consumers of `COMMANDS`."""

    def __init__(self, js: JetStream, stream: CommandStream, problems: ActiveProblems) -> None:
        self._js, self._stream, self._problems = js, stream, problems
        self._resting: dict[str, CommandsWanted] = {}
        """Announcements of leaves without consumer."""
        self._changing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Locks by domain, so a wake does not restore an ending epoch."""

    async def run(self) -> None:
        """Look each second and restore needed consumers, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if await self._stream.looked():
                newest = self._stream.newest_known
                due = [domain for domain, mirror in self._resting.items() if newest(domain) != mirror.last]
                await bounded_gather(self._wake, due)

    async def _wake(self, domain: str) -> None:
        """Restore a consumer for a missing command."""
        try:
            async with self._changing[domain]:
                mirror = self._resting.get(domain)
                if mirror is not None and await self._stream.newest(domain) > mirror.last:
                    await self._behind(domain, mirror.epoch, mirror.last, known=False)
                    self._resting.pop(domain, None)
        except JetStreamError as error:
            log.info("consumer of commands not made yet", domain=domain, reason=str(error))

    async def answer(self, announce: Announce) -> CommandsHeld | None:
        """Return the hub's side once the consumer exists; None if unwanted or unavailable."""
        wanted = announce.commands
        if wanted is None:
            return None
        about = f"commands of {announce.domain}"
        try:
            async with self._changing[announce.domain]:
                held = await self._held(announce.domain, wanted)
        except JetStreamError as error:
            self._problems.begin(about, f"the commands of {announce.domain} cannot be delivered: {error}")
            return None
        self._problems.end(about, f"the commands of {announce.domain} are delivered")
        return held

    def stands(self, announce: Announce, held: CommandsHeld | None, now: float) -> bool:
        """Tell whether `held` is still valid; other leaves' commands do not matter."""
        wanted, info = announce.commands, self._stream.seen_since(now - _OBSERVED)
        if wanted is None or held is None:
            return wanted is None and held is None
        if info is None or info.created != held.stream_created or info.last < held.stream_last or held.behind:
            return False
        name = command_consumer(announce.domain)
        deliver = (
            None if _rests(wanted, held.last, held.agreed) else command_deliver(announce.domain, wanted.epoch)
        )
        return (
            self._stream.newest_known(announce.domain) == held.last
            and self._stream.delivers.get(name) == deliver
            and held.agreed is not False
        )

    async def _held(self, domain: str, wanted: CommandsWanted) -> CommandsHeld:
        stream = await self._stream.look()
        last = await self._stream.newest(domain)
        agreed = await self._agreed(wanted, stream)
        top = max(stream.last, last)
        rests = _rests(wanted, last, agreed)
        if rests and await self._drop(domain, wanted):
            return CommandsHeld(wanted.epoch, stream.created, top, last, 0, agreed)
        self._resting.pop(domain, None)
        # After the newest command: one that is stored in between counts as pending, never as delivered.
        behind = await self._behind(domain, wanted.epoch, known=last <= wanted.last)
        return CommandsHeld(wanted.epoch, stream.created, top, last, behind, agreed, stays=rests)

    async def _agreed(self, wanted: CommandsWanted, stream: StreamInfo) -> bool | None:
        """Tell whether the mirror's commands match; None if none is present."""
        agreed = None
        for seq, time in wanted.held[:COMMANDS_CHECKED]:
            if seq > stream.last:
                return False
            there = await self._js.get_message(COMMANDS, seq=seq)
            if there is not None:
                agreed = nanoseconds(there.time) == time
                if not agreed:
                    return False
        return agreed

    async def _drop(self, domain: str, wanted: CommandsWanted) -> bool:
        """Drop an idle consumer; False if it delivered."""
        name = command_consumer(domain)
        if name in self._stream.delivers:
            info = await self._js.find_consumer(COMMANDS, name)
            if info is not None and (info.deliveries or info.pending or info.ack_pending):
                return False
            await self._js.delete_consumer(COMMANDS, name)
            self._stream.delivers.pop(name, None)
        self._resting[domain] = wanted
        return True

    async def _behind(self, domain: str, epoch: str, last: int = 0, *, known: bool) -> int:
        """Return an upper bound of missing commands, 0 if `known`."""
        name, deliver = command_consumer(domain), command_deliver(domain, epoch)
        if known and self._stream.delivers.get(name) == deliver:
            return 0
        consumer = await self._consumer(name, domain, epoch, last)
        self._stream.delivers[name] = deliver
        # What was delivered counts as missing until the leaf has acknowledged it, which takes a second.
        return 0 if known else consumer.pending + consumer.ack_pending

    async def _consumer(self, name: str, domain: str, epoch: str, last: int) -> ConsumerInfo:
        info = await self._js.find_consumer(COMMANDS, name) if name in self._stream.delivers else None
        if info is not None:
            if info.config.get("deliver_subject") == command_deliver(domain, epoch):
                return info
            await self._js.delete_consumer(COMMANDS, name)
            self._stream.delivers.pop(name, None)
        return await self._js.create_consumer(COMMANDS, consumer_config(domain, epoch, last))


def _rests(wanted: CommandsWanted, last: int, agreed: bool | None) -> bool:
    return wanted.idle and wanted.last == last and agreed is not False


def consumer_config(domain: str, epoch: str, last: int = 0) -> dict[str, Any]:
    """Return a leaf's consumer from after `last`."""
    name = command_consumer(domain)
    start = {"deliver_policy": "by_start_sequence", "opt_start_seq": last + 1}
    config = {
        "name": name,
        "durable_name": name,
        "filter_subject": command_subjects(domain),
        "deliver_subject": command_deliver(domain, epoch),
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_policy": "flow_control",
        "max_ack_pending": _MAX_ACK_PENDING,
        "flow_control": True,
        "idle_heartbeat": 1_000_000_000,
    }
    return config | start if last else config
