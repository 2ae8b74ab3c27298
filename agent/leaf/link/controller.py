"""Controls the leaf's link: observes, decides by `decide`, acts, and shows `LinkStatus`. It delays no
reading.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import structlog
from msgspec import Struct, field

from agent import contract
from agent.base.metrics import Metrics
from agent.base.wait import bounded_gather, event_within, loop_time
from agent.config import Config
from agent.jetstream import STREAM_NOT_FOUND, ApiError, ConsumerInfo, JetStream, JetStreamError
from agent.leaf.events import ConnectionStuck, EpochBegun, Events, StoreLost
from agent.leaf.link import act
from agent.leaf.link.act import HubAgreement, Trimmer
from agent.leaf.link.announce_loop import AnnounceLoop, IdleClasses
from agent.leaf.link.announcer import Announcer, AnnounceResult
from agent.leaf.link.decide import REPAIR_EVERY, AnnounceNow, LinkDecision, Pause, Repair, Resume, decide
from agent.leaf.link.guard import EpochReason, NewEpoch
from agent.leaf.link.observation import (
    HubComparison,
    LinkMemory,
    LinkObservation,
    UplinkStatus,
    blocking_class,
    difference,
    may_repair_at,
)
from agent.leaf.link.status import LinkState, LinkStatus
from agent.leaf.link.window import IN_VAIN, Window, WindowLook, looked
from agent.leaf.state_file import StateFile

_LOOK_SECONDS: Final = 5.0
_CLOSE_LOOK_SECONDS: Final = 1.0
_REPAIR_LOOK_SECONDS: Final = 0.1

log = structlog.get_logger("link")


class _Work(Struct):
    """State of a class between looks."""

    memory: LinkMemory = field(default_factory=LinkMemory)
    comparison: HubComparison | None = None
    behind: int = 0
    may_repair_at: float = 0.0
    window: Window = field(default_factory=Window)
    sized: int = 0
    """Sequence of the message that was reported as not arriving."""


class LinkController:
    """Controls all classes' links over the current connection. Emits `EpochBegun`, `StoreLost` and
    `ConnectionStuck`.

    `uplink` returns the hub connection, `trouble` why the local server is unusable.
    """

    def __init__(
        self,
        config: Config,
        state: StateFile,
        metrics: Metrics,
        status: LinkStatus,
        trimmer: Trimmer,
        events: Events,
        *,
        uplink: Callable[[], UplinkStatus],
        trouble: Callable[[], str | None],
    ) -> None:
        self._domain, self._classes = config.domain, {cls.name: cls for cls in config.class_}
        self._relayed = config.link.resume_port is not None
        self._state, self._metrics, self._status = state, metrics, status
        self._events, self._uplink, self._trouble = events, uplink, trouble
        self._agreement = HubAgreement(config.domain, state, status, trimmer)
        self._js: JetStream | None = None
        self._due = asyncio.Event()
        self._announcing = AnnounceLoop(
            status,
            metrics,
            uplink,
            self._accept,
            self._unreachable,
            self._is_repairing,
            config.link.announce_seconds,
        )
        self._paused_until = 0.0
        self._resumed = False
        """Whether the last look resumed a class, whose effect shows later."""
        self._may_repair_at = 0.0
        windows = state.current.windows
        self._work = {
            cls: _Work(window=Window(windows[cls]) if cls in windows else Window()) for cls in self._classes
        }
        self._priorities = {cls.name: cls.priority for cls in config.class_}
        rests = {name: config.link.rest_seconds(cls.rest_after) for name, cls in self._classes.items()}
        self.idle = IdleClasses(rests, self.announce_now)

    @property
    def answered(self) -> bool:
        """Whether the hub answered the newest announcement."""
        return self._announcing.silent_since is None and any(work.comparison for work in self._work.values())

    def in_flight(self, cls: str) -> int:
        """Return how many messages of a class may be in flight."""
        return self._work[cls].window.limit

    def agreed_epoch(self, cls: str) -> str | None:
        """Return a class's epoch if the link is up and both sides agree."""
        work, epoch = self._work[cls], self._state.current.epochs.get(cls)
        link, comparison = self._uplink(), work.comparison
        if not link.up or work.memory.due is not None or work.memory.verified != (link.key, epoch):
            return None
        return epoch if comparison is not None and difference(comparison) is None else None

    @contextlib.contextmanager
    def connected(self, js: JetStream, announcer: Announcer) -> Iterator[None]:
        """Use this connection within the scope, and look at once."""
        self._js = js
        for work in self._work.values():
            work.memory = LinkMemory(confirmed=work.memory.confirmed)
            work.comparison = None
            # The server may have been restarted since, and have forgotten the link consumers again: nothing
            # flows without another epoch, and restarts are rare enough to bound these.
            work.may_repair_at = 0.0
        self.look()
        try:
            with self._announcing.connected(js, announcer):
                yield
        finally:
            self._js = None

    def show_unreachable(self) -> None:
        for cls in self._work:
            self._status.show(cls, LinkState.AWAY, self._trouble() or "it does not answer")

    def epoch_begun(self, cls: str, reason: EpochReason) -> None:
        """Forget the old epoch after the guard began one."""
        self._work[cls] = _Work(window=self._work[cls].window)
        self._status.classes[cls].confirmed = 0
        self._emit_begun(cls, reason)
        if reason is not EpochReason.FIRST:
            self._may_repair_at = loop_time() + REPAIR_EVERY

    def _emit_begun(self, cls: str, reason: EpochReason, *, found_by_hub: bool = False) -> None:
        self._events.emit(EpochBegun(cls))
        if reason in (EpochReason.RECREATED, EpochReason.RESTORED, EpochReason.DIFFERENT):
            self._events.emit(StoreLost(cls, found_by_hub))

    def look(self) -> None:
        """Look now."""
        self._due.set()

    def announce_now(self) -> None:
        """Announce at once after a change."""
        self._announcing.announce_now()

    def link_changed(self) -> None:
        """Look and announce after a link change."""
        self.look()
        self._announcing.link_changed()

    def pause(self, seconds: float) -> None:
        """Pause all classes for seconds."""
        self._paused_until = loop_time() + seconds
        self._due.set()

    def resume(self) -> None:
        """End `pause` early."""
        self._paused_until = 0.0
        self._due.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._announcing.run())
            while True:
                self._due.clear()
                if self._js is not None:
                    await self._turn(self._js)
                await event_within(self._due, self._until_next_look())

    def _until_next_look(self) -> float:
        states = {link.state for link in self._status.classes.values()}
        if LinkState.REPAIRING in states:
            return _REPAIR_LOOK_SECONDS
        due = [look for work in self._work.values() if (look := work.window.next_look) is not None]
        if due and self._uplink().up:
            return min(due)
        if states == {LinkState.FLOWING} and not self._resumed and not self.idle.any_idle:
            return _LOOK_SECONDS
        return _CLOSE_LOOK_SECONDS

    async def _turn(self, js: JetStream) -> None:
        """Observe all classes, decide in turn, then pause or resume together."""
        try:
            looks = await bounded_gather(lambda cls: self._look_at(js, cls), self._classes)
            for cls, _, consumer, _ in looks:
                self._work[cls].behind = 0 if consumer is None else consumer.pending + consumer.ack_pending
            for look in looks:
                await self._measure(js, *look)
            due: list[tuple[str, str, float]] = []
            for cls, epoch, consumer, link in looks:
                if js is self._js:
                    decision = decide(self._work[cls].memory, self._observation(cls, epoch, consumer, link))
                    due += await self._carry_out(js, cls, epoch, decision)
            if due:
                await bounded_gather(lambda pause: act.pause(js, self._domain, *pause), due)
            pauses = {cls: seconds for cls, _, seconds in due}
            await bounded_gather(lambda look: self._limit(js, pauses.get(look[0]), *look), looks)
            self._resumed = any(not seconds for *_, seconds in due)
            if any(seconds for *_, seconds in due):
                self._due.set()
        except JetStreamError as error:
            self._unreachable(js, error)

    def _unreachable(self, js: JetStream, error: JetStreamError) -> None:
        if js is not self._js:
            return
        for cls in self._work:
            self._status.show(cls, LinkState.AWAY, self._trouble() or str(error))
        if isinstance(error, ApiError) and error.err_code == STREAM_NOT_FOUND:
            self._events.emit(ConnectionStuck(str(error)))

    async def _look_at(self, js: JetStream, cls: str) -> tuple[str, str, ConsumerInfo | None, UplinkStatus]:
        epoch = self._state.current.epochs[cls]
        # The link first: a consumer that is observed afterwards was paused no later than the link was lost.
        link = self._uplink()
        stream = contract.leaf_stream(self._domain, cls)
        return cls, epoch, await js.find_consumer(stream, contract.link_consumer(epoch)), link

    def _observation(
        self, cls: str, epoch: str, consumer: ConsumerInfo | None, link: UplinkStatus
    ) -> LinkObservation:
        now, work = loop_time(), self._work[cls]
        if consumer is not None:
            is_paused = consumer.pause_remaining > 0
            self.idle.seen(cls, epoch, link.key, consumer.delivered, consumer.pending, is_paused)
        behind = {name: work.behind for name, work in self._work.items()}
        return LinkObservation(
            now=now,
            epoch=epoch,
            link=link,
            consumer=consumer,
            comparison=work.comparison,
            refused=self._announcing.refused or self._announcing.refused_classes.get(cls),
            silent_since=self._announcing.silent_since,
            paused_until=self._paused_until,
            blocking_class=blocking_class(cls, self._priorities, behind, now - link.since),
            not_arriving=self._status.classes[cls].not_arriving,
            may_repair_at=may_repair_at(consumer, work.memory.due, self._may_repair_at, work.may_repair_at),
        )

    async def _measure(
        self, js: JetStream, cls: str, epoch: str, consumer: ConsumerInfo | None, link: UplinkStatus
    ) -> None:
        if consumer is None:
            return
        work = self._work[cls]
        before = work.window
        work.window = looked(
            work.window,
            WindowLook(
                now=loop_time(),
                link=link.key if link.up else "",
                epoch=epoch,
                paused=consumer.pause_remaining > 0,
                bound=consumer.push_bound,
                acknowledged=max(consumer.ack_floor, consumer.delivered - consumer.ack_pending),
                deliveries=consumer.deliveries,
                under_way=consumer.ack_pending,
                waiting=consumer.pending,
                round_trip=self._announcing.round_trip,
                relayed=self._relayed,
            ),
        )
        window = work.window
        moved = window.acknowledged - before.acknowledged
        if before.over[1] == epoch and moved > 0:
            self._status.count_arrived(cls, moved)
        self._metrics.links_in_vain.labels(cls).set(window.fruitless)
        await self._name_not_arriving(js, cls, window)
        remembered, size = self._state.current.windows.get(cls, 0), window.size
        if not remembered / 2 < size < remembered * 2:
            self._state.current.windows[cls] = size
            self._state.mark()

    async def _name_not_arriving(self, js: JetStream, cls: str, window: Window) -> None:
        """Name the message that does not arrive; its size is read once."""
        work, status, message = self._work[cls], self._status.classes[cls], window.acknowledged + 1
        if window.fruitless < IN_VAIN:
            status.not_arriving = ""
        elif message != work.sized:
            work.sized = message
            stored = await js.get_message(contract.leaf_stream(self._domain, cls), seq=message)
            size_text = "" if stored is None else f" ({len(stored.data)} bytes)"
            status.not_arriving = f"class {cls}, message {message}{size_text}, {IN_VAIN} links in a row"

    async def _limit(
        self,
        js: JetStream,
        pause: float | None,
        cls: str,
        epoch: str,
        consumer: ConsumerInfo | None,
        link: UplinkStatus,
    ) -> None:
        """Set the consumer's limit; `pause` has the seconds of this turn's pause, 0 for its end."""
        paused = pause if pause is not None else 0.0 if consumer is None else consumer.pause_remaining
        if consumer is None or not link.up or paused or epoch != self._state.current.epochs[cls]:
            return
        before, wanted = consumer.config["max_ack_pending"], self._work[cls].window.limit
        if pause is not None:
            # A resumed consumer starts at its next heartbeat, or when its limit changes
            # (`updateConfig` in server/consumer.go, nats-server 2.15.1).
            await act.limit_window(js, self._domain, cls, consumer.config, wanted + (wanted == before))
        elif self._work[cls].window.differs(before):
            await act.limit_window(js, self._domain, cls, consumer.config, wanted)

    def _is_repairing(self) -> bool:
        return any(work.memory.due is not None for work in self._work.values())

    async def _carry_out(
        self, js: JetStream, cls: str, epoch: str, decision: LinkDecision
    ) -> list[tuple[str, str, float]]:
        """Apply a decision; returns pauses as class, epoch and seconds."""
        self._work[cls].memory = decision.memory
        self._status.show(cls, decision.state, decision.detail)
        pauses: list[tuple[str, str, float]] = []
        for action in decision.actions:
            match action:
                case Pause(seconds):
                    pauses.append((cls, epoch, seconds))
                case Resume():
                    pauses.append((cls, epoch, 0.0))
                case AnnounceNow():
                    self._announcing.ask()
                case Repair(due):
                    await self._repair(js, cls, due)
        return pauses

    async def _repair(self, js: JetStream, cls: str, due: NewEpoch) -> None:
        acked = self._state.current.acked.get(cls)
        info = await js.stream_info(contract.leaf_stream(self._domain, cls))
        epoch = await act.make_epoch(js, self._domain, self._classes[cls], due.start)
        kept = info.last if acked is not None and info.last < acked.last else None

        def begun() -> None:
            self._metrics.epochs.labels(cls, due.reason.value).inc()
            self._may_repair_at = self._work[cls].may_repair_at = loop_time() + REPAIR_EVERY
            self._work[cls].comparison = None
            self._status.classes[cls].confirmed = 0
            self._emit_begun(cls, due.reason, found_by_hub=True)

        await act.remember_epoch(self._state, cls, epoch, due, info, acked, kept, begun=begun)
        self.announce_now()
        self._due.set()

    async def _accept(self, js: JetStream, announcer: Announcer, result: AnnounceResult) -> None:
        """Process an announcement, comparisons first, as data waits for them."""
        self._due.set()
        for cls, info in result.streams.items():
            self._status.count(cls, info)
        if result.answer is None:
            return
        self._status.hub_sync_seconds = result.answer.sync_seconds
        self._status.hub_max_payload = result.answer.max_payload
        if self._state.current.spread != result.answer.spread_seconds:
            self._state.current.spread = result.answer.spread_seconds
            self._state.mark()
        taken = []
        for cls, comparison in result.comparisons.items():
            if comparison.epoch == self._state.current.epochs[cls]:
                self._work[cls].comparison = comparison
                self._status.classes[cls].hub_stream = result.answer.classes[cls].stream
                taken.append(cls)
        await self._agreement.take(js, announcer, result, taken)
