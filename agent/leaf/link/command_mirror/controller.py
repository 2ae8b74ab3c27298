"""Observes the command mirror and recreates one that would stay behind, with local programs' consumers.

The hub delivers as soon as a mirror listens under its epoch. If programs need positions first, the mirror
uses an unannounced epoch and stays empty until it is announced.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import structlog
from msgspec import Struct
from nats.aio.client import Client

from agent.base.metrics import Metrics
from agent.base.wait import Backoff, event_within, loop_time
from agent.contract import (
    COMMANDS,
    CommandsHeld,
    CommandsWanted,
    command_deliver,
    command_subjects,
    new_epoch,
)
from agent.jetstream import JetStream, JetStreamError, nanoseconds
from agent.leaf import stream_configs
from agent.leaf.link.command_mirror.decide import (
    CommandComparison,
    Make,
    MirrorDecision,
    MirrorEpochReason,
    MirrorInfo,
    MirrorObservation,
    NewMirrorEpoch,
    Release,
    decide,
)
from agent.leaf.link.command_mirror.local_consumers import ProgramPositions
from agent.leaf.link.command_mirror.mirror_requests import read_mirror
from agent.leaf.link.command_mirror.positions import Stage
from agent.leaf.link.command_mirror.rest import MirrorRest
from agent.leaf.state_file import StateFile

LOOK_SECONDS: Final = 5.0
LAGGING_SECONDS: Final = 0.5
EPOCH_EVERY: Final = 5.0
"""Seconds between new epochs, and before the first retry of a failed creation."""
_LONGEST: Final = 160.0
"""Seconds before later retries at most."""

log = structlog.get_logger("link")


class _Answer(Struct):
    """An announcement and its answer."""

    wanted: CommandsWanted
    held: CommandsHeld
    judged: bool = False
    """Whether a look compared it."""


class CommandMirror:
    """Keeps the mirror over the current connection.

    `api` is the hub's prefix, `programs` local positions, `announce` announces at once, `rest` lets
    the hub drop its consumer while there is no command.
    """

    def __init__(
        self,
        domain: str,
        api: str,
        state: StateFile,
        programs: ProgramPositions,
        metrics: Metrics,
        announce: Callable[[], None],
        rest: MirrorRest,
    ) -> None:
        self._rest = rest
        self._api, self._programs = api, programs
        self._domain, self._state, self._metrics, self._announce = domain, state, metrics, announce
        self._over: tuple[Client, JetStream] | None = None
        self._due = asyncio.Event()
        self._fresh = False
        self._epoch_at: float | None = None
        self._failed: MirrorDecision | None = None
        """The sentence of a failed creation, shown until the next try."""
        self._again_at, self._backoff = 0.0, Backoff(EPOCH_EVERY, _LONGEST)
        self._last = 0
        self._comparison = CommandComparison(state.current.command_agreed)
        self._answer: _Answer | None = None
        self._asked = False
        self._missed = 0
        self._announced = programs.stage is not Stage.DUE
        self._decision = MirrorDecision("the mirror of the commands was not checked yet", up=False)

    @contextlib.contextmanager
    def connected(self, nc: Client, js: JetStream) -> Iterator[None]:
        """Use this connection within the scope, and look at once."""
        self._over, self._asked = (nc, js), False
        self._due.set()
        try:
            yield
        finally:
            self._over = self._answer = None

    def show_unreachable(self) -> None:
        self._show(MirrorDecision("the local NATS server does not answer", up=False))

    async def wanted(self) -> CommandsWanted | None:
        """Return the mirror's present announcement; None before an epoch, or while nothing may
        be delivered.
        """
        epoch = self._state.current.command_epoch
        if epoch is None or not self._announced:
            return None
        if self._over is not None:
            # If it cannot be read now, announce the last look: readings must not wait for commands.
            with contextlib.suppress(JetStreamError):
                await self._read_on(self._over[1], epoch)
        is_idle = self._rest.listens_under(epoch)
        return CommandsWanted(epoch, self._last, self._comparison.to_ask(), is_idle)

    def answered(self, wanted: CommandsWanted | None, held: CommandsHeld | None) -> None:
        """Apply the hub's answer to `wanted` (None: silent); ignores older epochs."""
        epoch = self._state.current.command_epoch
        if held is not None and (wanted is None or wanted.epoch != epoch or held.epoch != epoch):
            return
        self._answer, self._asked = None, wanted is not None and wanted.epoch == epoch
        if wanted is not None and held is not None:
            self._answer = _Answer(wanted, held)
            self._comparison.answered(wanted.held, held.agreed)
            if self._state.current.command_agreed != self._comparison.agreed:
                self._state.current.command_agreed = self._comparison.agreed
                self._state.mark()
        self._due.set()

    def status(self) -> dict[str, Any]:
        """Return the row for `/status`."""
        decision = self._decision
        return {
            "link": COMMANDS,
            "kind": "mirror",
            "of": COMMANDS,
            "state": decision.sentence,
            "up": decision.up,
            "lag": decision.lag,
            "last": self._last,
        }

    async def run(self) -> None:
        """Look every `LOOK_SECONDS`, sooner while commands are missing or after answers, until cancelled."""
        while True:
            self._due.clear()
            await self.look()
            await event_within(self._due, self._pause())

    def _pause(self) -> float:
        return LAGGING_SECONDS if self._decision.lag or self._programs.top is not None else LOOK_SECONDS

    async def look(self) -> None:
        """Look once and act."""
        if self._over is None:
            return
        nc, js = self._over
        try:
            mirror = await self._recorded(js)
            if mirror is None and self._failed is not None and loop_time() < self._again_at:
                self._show(self._failed)
                return
            decision = decide(self._observation(mirror))
            match decision.action:
                case NewMirrorEpoch(reason):
                    await self._new_epoch(reason)
                case Make() as make:
                    await self._try_to_make(nc, js, mirror, make.origin)
                case Release() if mirror is not None:
                    await self._programs.resume(nc, js, mirror.created)
            self._show(decision)
            if mirror is not None and mirror.deliver == self._deliver(
                epoch := self._state.current.command_epoch
            ):
                await self._rest.look(js, str(epoch), self._last, may_rest=self._may_rest())
        except JetStreamError as error:
            self._show(_fault(error))

    async def _try_to_make(self, nc: Client, js: JetStream, mirror: MirrorInfo | None, origin: str) -> None:
        try:
            await self._make(nc, js, mirror, origin)
        except JetStreamError as error:
            self._failed, self._again_at = _fault(error), loop_time() + self._backoff.next()
            raise
        self._failed = None
        self._backoff.reset()

    def _may_rest(self) -> bool | None:
        """Tell whether the hub may drop its consumer; None while silent."""
        held = None if self._answer is None else self._answer.held
        return None if held is None else not held.stays and self._lacks_nothing

    @property
    def _lacks_nothing(self) -> bool:
        return self._decision.up and not self._decision.lag

    async def _recorded(self, js: JetStream) -> MirrorInfo | None:
        """Read the mirror and record programs' positions."""
        mirror = await self._read(js, self._state.current.command_epoch)
        if mirror is not None and mirror.deliver:
            await self._programs.record(js, mirror.created, self._comparison.agreed)
            if self._programs.stage is Stage.DUE:
                # An agent was killed after it had created this mirror.
                await self._programs.hold(js)
        if not self._announced:
            self._announced = True
            self._announce()
        return mirror

    def _observation(self, mirror: MirrorInfo | None) -> MirrorObservation:
        answer = self._answer
        if answer is not None and not answer.judged:
            answer.judged = True
            is_missing = answer.held.last > self._last and not answer.held.behind
            self._missed = self._missed + 1 if is_missing and not self._fresh else 0
        return MirrorObservation(
            deliver=self._deliver(self._state.current.command_epoch),
            fresh=self._fresh,
            mirror=mirror,
            held=None if answer is None else answer.held,
            asked_last=0 if answer is None else answer.wanted.last,
            missed=self._missed,
            asked=self._asked,
            mirrored=self._programs.mirrored,
            top=self._programs.top,
        )

    async def _read(self, js: JetStream, epoch: str | None) -> MirrorInfo | None:
        mirror = await read_mirror(js, self._api, self._domain, self._programs.last_out)
        is_ours = mirror is not None and mirror.deliver == self._deliver(epoch)
        self._last = mirror.last if mirror is not None and is_ours else 0
        return mirror

    async def _read_on(self, js: JetStream, epoch: str) -> None:
        """Read new commands since the hub was asked."""
        mirror = await self._read(js, epoch)
        if mirror is None or mirror.deliver != self._deliver(epoch):
            return
        while (seq := self._comparison.read_from(mirror.newest)) is not None:
            subject = command_subjects(self._domain)
            message = await js.get_message(COMMANDS, seq=seq, next_by_subject=subject)
            if message is None:
                return
            self._comparison.add((message.seq, nanoseconds(message.time)))

    def _deliver(self, epoch: str | None) -> str | None:
        return None if epoch is None else command_deliver(self._domain, epoch)

    async def _new_epoch(self, reason: MirrorEpochReason) -> None:
        now = loop_time()
        if self._epoch_at is not None and now - self._epoch_at < EPOCH_EVERY:
            return
        self._epoch_at = now
        self._fresh = True
        epoch = await self._choose_epoch()
        (log.info if reason is MirrorEpochReason.FIRST else log.warning)(
            "new epoch of the commands", epoch=epoch, why=reason.value
        )
        self._announce()

    async def _choose_epoch(self) -> str:
        self._answer, self._asked, self._missed, self._last = None, False, 0, 0
        self._comparison, self._state.current.command_agreed = CommandComparison(None), None
        self._state.current.command_epoch = epoch = new_epoch()
        # A disk that cannot store the state now costs only another epoch after the next start.
        with contextlib.suppress(OSError):
            await self._state.save()
        return epoch

    async def _make(self, nc: Client, js: JetStream, mirror: MirrorInfo | None, origin: str) -> None:
        await self._programs.preserve(nc, js, None if mirror is None else mirror.created)
        if mirror is not None:
            await js.api(f"STREAM.DELETE.{COMMANDS}")
        epoch = self._state.current.command_epoch
        if self._programs.stage is Stage.DUE:
            self._announced = False
            epoch = await self._choose_epoch()
        assert epoch is not None, "a mirror is created under an epoch"
        await js.api(
            f"STREAM.CREATE.{COMMANDS}", stream_configs.command_mirror(self._domain, epoch, origin, self._api)
        )
        self._fresh = False
        if self._programs.stage is Stage.DUE:
            await self._programs.hold(js)
        self._announced = True
        self._due.set()
        self._announce()

    def _show(self, decision: MirrorDecision) -> None:
        if decision.sentence != self._decision.sentence:
            (log.info if decision.up or decision.usual else log.warning)(
                "link", link=COMMANDS, state=decision.sentence
            )
        self._decision = decision
        self._metrics.show_link(COMMANDS, up=decision.up, lag=decision.lag)


def _fault(error: JetStreamError) -> MirrorDecision:
    return MirrorDecision(f"the mirror of the commands cannot be kept: {error}", up=False)
