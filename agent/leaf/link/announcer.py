"""Announces what the leaf holds and compares it with the hub's answer.

A leaf announces itself at intervals, at once when something has changed, and ever more rarely while the hub
does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog
from nats.aio.client import Client

from agent import contract
from agent.base.metrics import Metrics
from agent.base.wait import Backoff, bounded_gather, event_within, loop_time, unless
from agent.contract import (
    H_MESSAGE_ID,
    Announce,
    Answer,
    ClassAnswer,
    ClassState,
    CommandsWanted,
)
from agent.jetstream import ConsumerInfo, JetStream, JetStreamError, StreamInfo
from agent.leaf.link.command_mirror.controller import CommandMirror
from agent.leaf.link.hub_exchange import AnnouncedLeaf, HubExchange
from agent.leaf.link.observation import HubComparison, UplinkStatus
from agent.leaf.link.status import LinkStatus

CROWDED_SECONDS: Final = 2.0
"""From announcement to announcement while a stream waits to be trimmed."""
_FIRST, _LONGEST = 0.05, 1.0
_MOST_IDS: Final = 1000

log = structlog.get_logger("link")


class AnnounceLoop:
    """Announces over the current connection every `seconds`. Calls `accept(js, announcer, result)` with each
    result, `unreachable(js, error)` if the local server did not answer; `repairs` returns whether a new epoch
    is due."""

    def __init__(
        self,
        status: LinkStatus,
        metrics: Metrics,
        uplink: Callable[[], UplinkStatus],
        accept: Callable[[JetStream, Announcer, AnnounceResult], Awaitable[None]],
        unreachable: Callable[[JetStream, JetStreamError], None],
        repairs: Callable[[], bool],
        seconds: float,
    ) -> None:
        self._status, self._metrics, self._uplink = status, metrics, uplink
        self._accept, self._unreachable, self._seconds = accept, unreachable, seconds
        self._repairs = repairs
        self._over: tuple[JetStream, Announcer] | None = None
        self._due = asyncio.Event()
        self._relinked = asyncio.Event()
        self._asking = False
        self._silence = ""
        self.refused: str | None = None
        """The hub's sentence if it refused the newest announcement."""
        self.silent_since: float | None = None
        """When the hub was first asked without an answer since its last one, None while it answers."""

    @contextlib.contextmanager
    def connected(self, js: JetStream, announcer: Announcer) -> Iterator[None]:
        """Announce over this connection, at once, as long as the scope lasts."""
        self._over = (js, announcer)
        self._due.set()
        try:
            yield
        finally:
            self._over = None

    def announce_now(self) -> None:
        """Announce without waiting for the next turn, after failures no sooner than the backoff allows."""
        self._due.set()

    def ask(self) -> None:
        """Announce without waiting for the next turn, unless an announcement waits for its answer."""
        if not self._asking:
            self._due.set()

    def link_changed(self) -> None:
        """Announce at once. What failed over the link before says nothing of this one, and what was asked
        over it may never be answered."""
        self._relinked.set()
        self._due.set()

    async def run(self) -> None:
        """Announce until cancelled."""
        backoff = Backoff(_FIRST, _LONGEST)
        while True:
            self._due.clear()
            if self._relinked.is_set():
                self._relinked.clear()
                backoff.reset()
            if self._over is not None:
                if await self._once(*self._over):
                    backoff.reset()
                else:
                    await event_within(self._relinked, backoff.next())
            await event_within(self._due, self._pause())

    def _pause(self) -> float:
        if self.silent_since is not None:
            return _LONGEST
        crowded = any(link.crowded for link in self._status.classes.values())
        return CROWDED_SECONDS if crowded else self._seconds

    async def _once(self, js: JetStream, announcer: Announcer) -> bool:
        """Announce; returns whether the hub answered."""
        confirmed = {cls: link.confirmed for cls, link in self._status.classes.items()}
        try:
            result = await self._answer(announcer, confirmed)
            if result is None:
                return False
            if self._over is None or self._over[0] is not js:
                return True
            self._note(result)
            await self._accept(js, announcer, result)
        except JetStreamError as error:
            self._unreachable(js, error)
            return False
        return result.answer is not None

    async def _answer(self, announcer: Announcer, confirmed: Mapping[str, int]) -> AnnounceResult | None:
        """Announce; None if the link has changed meanwhile."""
        self._asking = True
        try:
            asked = announcer.announce(confirmed, self._uplink(), repairs=self._repairs())
            return await unless(self._relinked, asked)
        finally:
            self._asking = False

    def _note(self, result: AnnounceResult) -> None:
        self._metrics.linked.set(result.answer is not None)
        if result.answer is not None:
            self.silent_since, self._silence = None, ""
            self.refused = result.answer.refused
            return
        self.silent_since = self.silent_since or loop_time()
        if result.silence != self._silence:
            log.debug("announcement not answered", why=result.silence)
        self._silence = result.silence


@dataclass(frozen=True, slots=True)
class AnnounceResult:
    """The result of one announcement, by class."""

    answer: Answer | None = None
    silence: str = ""
    """Why there is no answer."""
    streams: Mapping[str, StreamInfo] = field(default_factory=dict)
    """The streams as they were before the answer, or after it where that tells more."""
    comparisons: Mapping[str, HubComparison] = field(default_factory=dict)


class Announcer:
    """Announces a leaf to the registrar over one connection to the local server."""

    def __init__(self, nc: Client, js: JetStream, leaf: AnnouncedLeaf, commands: CommandMirror) -> None:
        self._js, self._leaf, self._commands = js, leaf, commands
        self._ids: dict[tuple[str, int], str] = {}
        self._exchange = HubExchange(nc, leaf.domain)

    async def announce(
        self, confirmed: Mapping[str, int], link: UplinkStatus, *, repairs: bool
    ) -> AnnounceResult:
        """Announce; `confirmed` gives each class the sequence up to which the hub is known to hold all, and
        `repairs` says whether a new epoch is due. Raises `JetStreamError` if the local server does not
        answer."""
        asked_at = loop_time()
        epochs = {cls: self._leaf.state.current.epochs[cls] for cls in confirmed}
        names = {cls: contract.leaf_stream(self._leaf.domain, cls) for cls in confirmed}
        links = {cls: contract.link_consumer(epochs[cls]) for cls in names}
        # All consumers before all streams: a floor is never above what its stream is known to hold.
        consumers = dict(
            zip(
                names,
                await bounded_gather(lambda cls: self._js.find_consumer(names[cls], links[cls]), names),
                strict=True,
            )
        )
        streams = dict(zip(names, await bounded_gather(self._js.stream_info, names.values()), strict=True))
        acked = {cls: acknowledged(consumers[cls], info) for cls, info in streams.items()}
        commands = await self._commands.wanted()
        answer = await self._request(streams, epochs, confirmed, acked, commands, repairs)
        self._commands.answered(commands, None if isinstance(answer, str) else answer.commands)
        if isinstance(answer, str):
            return AnnounceResult(silence=answer, streams=streams)

        async def compared(cls: str) -> HubComparison:
            class_answer = answer.classes[cls]
            if class_answer.cursor > streams[cls].last:
                streams[cls] = await self._js.stream_info(streams[cls].name)
            return await self._compare(
                cls, class_answer, asked_at, link.key, epochs[cls], consumers[cls], streams[cls]
            )

        answered = [cls for cls in answer.classes if cls in streams]
        comparisons = dict(zip(answered, await bounded_gather(compared, answered), strict=True))
        return AnnounceResult(answer, "", streams, comparisons)

    async def holds(self, cls: str, info: StreamInfo, seq: int, message_id: str) -> bool | None:
        """Whether the leaf's message at a sequence has this id; None if it is unknown, since there is no
        message or the hub's has no id. Raises `JetStreamError`."""
        if not message_id or not info.first <= seq <= info.last:
            return None
        key = (cls, seq)
        if key not in self._ids:
            message = await self._js.get_message(info.name, seq=seq)
            if message is None:
                return None
            if len(self._ids) >= _MOST_IDS:
                self._ids.clear()
            # What a stream holds at a sequence does not change while its server runs.
            self._ids[key] = message.headers.get(H_MESSAGE_ID, "")
        return self._ids[key] == message_id

    async def _request(
        self,
        streams: Mapping[str, StreamInfo],
        epochs: Mapping[str, str],
        confirmed: Mapping[str, int],
        acked: Mapping[str, int],
        commands: CommandsWanted | None,
        repairs: bool,
    ) -> Answer | str:
        announce = Announce(
            domain=self._leaf.domain,
            machine=self._leaf.state.current.machine,
            run=self._leaf.run,
            versions=self._leaf.versions,
            classes={
                cls: ClassState(
                    epoch=epochs[cls],
                    created=info.created,
                    first=info.first,
                    last=info.last,
                    confirmed=confirmed[cls],
                    bytes=info.bytes,
                    ledger=self._leaf.ledger(cls),
                    seconds_to_loss=self._leaf.seconds_to_loss(cls),
                    acked=acked[cls],
                    idle=info.last in (confirmed[cls], acked[cls]) and self._leaf.is_idle(cls),
                )
                for cls, info in streams.items()
            },
            checkpoint=self._leaf.state.current.checkpoint,
            clock=self._leaf.clock(),
            commands=commands,
            repairs=repairs,
            every=self._leaf.every,
            heeds_sync=True,
        )
        return await self._exchange.ask(announce)

    async def _compare(
        self,
        cls: str,
        answer: ClassAnswer,
        asked_at: float,
        link_key: str,
        epoch: str,
        consumer: ConsumerInfo | None,
        info: StreamInfo,
    ) -> HubComparison:
        checkpoint = self._leaf.state.current.checkpoint.get(cls)
        holds_checkpoint = None
        if checkpoint is not None:
            holds_checkpoint = await self.holds(cls, info, checkpoint.leaf_seq, checkpoint.message_id)
        fallback = answer.fallback
        if fallback and not await self.holds(cls, info, fallback.leaf_seq, fallback.message_id):
            fallback = None
        return HubComparison(
            asked_at=asked_at,
            link_key=link_key,
            epoch=epoch,
            start=consumer.start if consumer else 1,
            floor=consumer.ack_floor if consumer else 0,
            first=info.first,
            last=info.last,
            cursor=answer.cursor,
            same_at_cursor=await self.holds(cls, info, answer.cursor, answer.message_id),
            checkpoint=checkpoint.leaf_seq if checkpoint else 0,
            has_checkpoint=holds_checkpoint is not False,
            hub_agrees=answer.agreed,
            cursor_certain=answer.certain,
            hub_state=answer.state,
            fallback=fallback.leaf_seq if fallback else 0,
            synced=answer.synced,
        )


def acknowledged(consumer: ConsumerInfo | None, info: StreamInfo) -> int:
    """The last sequence that the hub has acknowledged in an epoch, 0 if it has acknowledged none: the floor
    begins where the epoch begins, and a purge lifts it."""
    if consumer is None or consumer.ack_floor < max(consumer.start, info.first):
        return 0
    return consumer.ack_floor
