"""The link keeper of a leaf: observes, has `decide` decide, acts, and says on the `LinkStatus` what
state each class is in.

It asks the hub and the local server and holds no reading up: with the keeper away a link that is made flows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from agent import contract
from agent.base.metrics import Metrics
from agent.base.wait import event_within, loop_time
from agent.config import StreamClass
from agent.contract import Checkpoint
from agent.jetstream import (
    STREAM_NOT_FOUND,
    ApiError,
    JetStream,
    JetStreamError,
    StreamInfo,
)
from agent.leaf.link import act
from agent.leaf.link.act import Trimmer
from agent.leaf.link.announcer import AnnounceLoop, Announcer, AnnounceResult
from agent.leaf.link.checkpoints import CheckpointLog
from agent.leaf.link.decide import REPAIR_EVERY, AnnounceNow, LinkDecision, Pause, Repair, Resume, decide
from agent.leaf.link.guard import EpochReason, NewEpoch
from agent.leaf.link.observation import (
    HubComparison,
    LinkMemory,
    LinkObservation,
    UplinkStatus,
    blocking_class,
    confirmed,
    difference,
)
from agent.leaf.link.prepare import consumer_status
from agent.leaf.link.states import LinkState
from agent.leaf.link.status import LinkStatus
from agent.leaf.state import StateFile

_LOOK_SECONDS: Final = 5.0
_CLOSE_LOOK_SECONDS: Final = 1.0
_REPAIR_LOOK_SECONDS: Final = 0.1
_UNKNOWN: Final = UplinkStatus(True, 0.0, "unknown")
"""Without the local system account nobody tells whether the link is up: it is taken to be, so that nothing is
paused for want of knowledge."""

log = structlog.get_logger("link")


@dataclass(slots=True)
class _Work:
    """What is remembered of one class between two looks."""

    memory: LinkMemory = field(default_factory=LinkMemory)
    comparison: HubComparison | None = None
    behind: int = 0
    accepted_epoch: str = ""


class LinkController:
    """Keeps the link of every class over the current connection. What it finds stands on
    the `board`. `link_seen` tells the state of the server's connection to the hub, None where nobody knows;
    `stream_gone` is called when a stream of the leaf is not there any more, `new_epoch` when one has
    begun, and `trouble` says why the local server cannot be used."""

    def __init__(
        self,
        *,
        domain: str,
        classes: Mapping[str, StreamClass],
        state: StateFile,
        metrics: Metrics,
        board: LinkStatus,
        trimmer: Trimmer,
        link_seen: Callable[[], UplinkStatus | None],
        stream_gone: Callable[[str], None],
        trouble: Callable[[], str | None],
        new_epoch: Callable[[str, EpochReason], None],
        announce_seconds: float,
    ) -> None:
        self._domain, self._classes, self._state, self._metrics = domain, classes, state, metrics
        self._board, self._trimmer = board, trimmer
        self._link_seen, self._stream_gone, self._trouble = link_seen, stream_gone, trouble
        self._new_epoch = new_epoch
        self._checkpoints = CheckpointLog(state.current)
        self._js: JetStream | None = None
        self._due = asyncio.Event()
        self._asker = AnnounceLoop(
            board, metrics, self._link, self._take_in, self._away, self._repairs, announce_seconds
        )
        self._paused_until = 0.0
        self._may_repair_at = 0.0
        self._work = {cls: _Work() for cls in classes}

    @property
    def answered(self) -> bool:
        """Whether the hub answered the newest announcement."""
        return self._asker.silent_since is None and any(one.comparison for one in self._work.values())

    def agreed_epoch(self, cls: str) -> str | None:
        """The epoch of a class if its link is up, both sides were found to agree over it and nothing has
        spoken against that since."""
        one, epoch = self._work[cls], self._state.current.epochs.get(cls)
        link, comparison = self._link(), one.comparison
        if not link.up or one.memory.due is not None or one.memory.verified != (link.key, epoch):
            return None
        return epoch if comparison is not None and difference(comparison) is None else None

    @contextlib.contextmanager
    def connected(self, js: JetStream, announcer: Announcer) -> Iterator[None]:
        """Work over this connection as long as the scope lasts, and look at once."""
        self._js = js
        for one in self._work.values():
            one.memory = LinkMemory(confirmed=one.memory.confirmed)
            one.comparison = None
        self.look()
        try:
            with self._asker.connected(js, announcer):
                yield
        finally:
            self._js = None

    def show_unreachable(self) -> None:
        """Show that the local server does not answer."""
        for cls in self._work:
            self._board.show(cls, LinkState.AWAY, self._trouble() or "it does not answer")

    def epoch_begun(self, cls: str, why: EpochReason) -> None:
        """The local guard has begun a new epoch: what was known of the one before says nothing of it."""
        self._work[cls] = _Work()
        self._board.classes[cls].confirmed = 0
        self._new_epoch(cls, why)
        if why is not EpochReason.FIRST:
            self._may_repair_at = loop_time() + REPAIR_EVERY

    def look(self) -> None:
        """Something has changed: look without waiting for the next turn."""
        self._due.set()

    def announce_now(self) -> None:
        """Something has changed that the hub should know, or that it can tell: announce at once."""
        self._asker.ask_now()

    def pause(self, seconds: float) -> None:
        """Pause the link of every class for so long."""
        self._paused_until = loop_time() + seconds
        self._due.set()

    def resume(self) -> None:
        """End `pause` before its time."""
        self._paused_until = 0.0
        self._due.set()

    async def run(self) -> None:
        """Keep the link until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._asker.run())
            while True:
                self._due.clear()
                if self._js is not None:
                    await self._turn(self._js)
                await event_within(self._due, self._until_next_look())

    def _until_next_look(self) -> float:
        states = {one.state for one in self._board.classes.values()}
        if LinkState.REPAIRING in states:
            return _REPAIR_LOOK_SECONDS
        return _LOOK_SECONDS if states == {LinkState.FLOWING} else _CLOSE_LOOK_SECONDS

    async def _turn(self, js: JetStream) -> None:
        try:
            for cls in self._classes:
                seen = await self._observe(js, cls)
                if js is self._js:
                    await self._carry_out(js, cls, seen, decide(self._work[cls].memory, seen))
        except JetStreamError as error:
            self._away(js, error)

    def _away(self, js: JetStream, error: JetStreamError) -> None:
        """The local server does not answer as it should."""
        if js is not self._js:
            return
        for cls in self._work:
            self._board.show(cls, LinkState.AWAY, self._trouble() or str(error))
        if isinstance(error, ApiError) and error.err_code == STREAM_NOT_FOUND:
            self._stream_gone(str(error))

    async def _observe(self, js: JetStream, cls: str) -> LinkObservation:
        epoch = self._state.current.epochs[cls]
        # The link first: a consumer that is looked at afterwards was paused no later than the link was lost.
        link = self._link()
        consumer = await consumer_status(js, contract.leaf_stream(self._domain, cls), epoch)
        self._work[cls].behind = 0 if consumer is None else consumer.pending + consumer.in_flight
        now = loop_time()
        return LinkObservation(
            now=now,
            epoch=epoch,
            link=link,
            consumer=consumer,
            comparison=self._work[cls].comparison,
            refused=self._asker.refused,
            silent_since=self._asker.silent_since,
            paused_until=self._paused_until,
            blocking_class=self._first_in_turn(cls, now - link.since),
            may_repair_at=self._may_repair_at,
        )

    def _repairs(self) -> bool:
        return any(one.memory.due is not None for one in self._work.values())

    def _link(self) -> UplinkStatus:
        return self._link_seen() or _UNKNOWN

    def _first_in_turn(self, cls: str, linked: float) -> str:
        priorities = {name: one.priority for name, one in self._classes.items()}
        behind = {name: one.behind for name, one in self._work.items()}
        return blocking_class(cls, priorities, behind, linked)

    async def _carry_out(
        self, js: JetStream, cls: str, seen: LinkObservation, decision: LinkDecision
    ) -> None:
        self._work[cls].memory = decision.memory
        self._board.show(cls, decision.state, decision.detail)
        for action in decision.actions:
            match action:
                case Pause(seconds):
                    await act.pause(js, self._domain, cls, seen.epoch, seconds)
                    self._due.set()
                case Resume():
                    await act.pause(js, self._domain, cls, seen.epoch, 0.0)
                    self._due.set()
                case AnnounceNow():
                    self.announce_now()
                case Repair(epoch):
                    await self._repair(js, cls, epoch)

    async def _repair(self, js: JetStream, cls: str, epoch: NewEpoch) -> None:
        known = self._state.current.acked.get(cls)
        info = await js.stream_info(contract.leaf_stream(self._domain, cls))
        begun = await act.make_epoch(js, self._domain, self._classes[cls], epoch.start)
        kept = info.last if known is not None and info.last < known.last else None
        await act.remember_epoch(self._state, cls, begun, epoch, info, known, kept)
        self._metrics.epochs.labels(cls, epoch.reason.value).inc()
        self._may_repair_at = loop_time() + REPAIR_EVERY
        self._work[cls].comparison = None
        self._board.classes[cls].confirmed = 0
        self._new_epoch(cls, epoch.reason)
        self.announce_now()
        self._due.set()

    async def _take_in(self, js: JetStream, announcer: Announcer, said: AnnounceResult) -> None:
        """What came of an announcement."""
        self._due.set()
        for cls, info in said.streams.items():
            self._board.count(cls, info)
        for cls, comparison in said.comparison.items():
            if said.answer is None or comparison.epoch != self._state.current.epochs[cls]:
                continue
            answer = said.answer.classes[cls]
            self._work[cls].comparison = comparison
            self._board.classes[cls].hub_stream = answer.stream
            await self._agree(js, announcer, cls, said.streams[cls], answer.checkpoint)
            self._board.count(cls, said.streams[cls])

    async def _agree(
        self, js: JetStream, announcer: Announcer, cls: str, info: StreamInfo, proposed: Checkpoint | None
    ) -> None:
        """Take in what both sides hold; nothing is trimmed and no newer checkpoint is agreed on while
        something speaks against it, for that would hide what one side has lost."""
        one, shown = self._work[cls], self._board.classes[cls]
        comparison = one.comparison
        assert comparison is not None
        if one.accepted_epoch != comparison.epoch:
            await act.drop_other_epochs(js, self._domain, cls, comparison.epoch)
            one.accepted_epoch = comparison.epoch
        if difference(comparison) is not None:
            shown.confirmed = 0
            return
        agreed = confirmed(comparison)
        if proposed and await announcer.same(cls, info, proposed.leaf_seq, proposed.message_id):
            agreed = max(agreed, proposed.leaf_seq)
            self._checkpoints.agree(cls, proposed, loop_time())
            self._state.mark()
        shown.confirmed = agreed
        if shown.crowded:
            await self._trimmer.trim(js, cls, info, agreed)
