"""Answers an announcement: admit or refuse, make sources, look, answer.

Records are stored before sources change and before checkpoints are proposed, so a restarted registrar knows
both.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog

from agent.base.wait import bounded_gather, loop_time
from agent.contract import (
    Announce,
    Answer,
    ClassAnswer,
    cell_of,
    leaf_stream,
)
from agent.hub.registrar.aggregate import ALIVE, Observation, source_state
from agent.hub.registrar.aggregates import RESTING, TOO_FAR, Aggregates, awake, is_far, may_rest
from agent.hub.registrar.answer import agreeing, class_answer, lacking, skipped
from agent.hub.registrar.durability import Durability, Proposals, bounded
from agent.hub.registrar.fleet_state import EPOCH_EVERY, FleetState
from agent.hub.registrar.fleet_store import FleetStore
from agent.hub.registrar.held_messages import HeldMessages
from agent.hub.registrar.problems import ActiveProblems
from agent.hub.registrar.records import (
    COPIED,
    MOVED,
    REVOKED,
    AggregateRef,
    LeafRecord,
    admitted,
    new_epochs,
    refusal,
    refused_classes,
)
from agent.jetstream import JetStream, StreamInfo

OBSERVED: Final = 1.0
_SETTLE_SECONDS: Final = 2.0
_SETTLING: Final = 32
"""Announcements that wait for sources at once."""
_NO_AGGREGATE: Final = (
    "{domain!r} is kept in {stream}, which the hub's configuration provides no more; raise [registrar] "
    "aggregates there, so that it does, and start the hub's server with it"
)
_TOO_OFTEN: Final = (
    "{domain!r} starts new epochs too often; "
    f"one in {EPOCH_EVERY:.0f} s is taken, for each of them scans the hub's stream"
)


log = structlog.get_logger("registrar")


class Announcements:
    """Answers leaves in `classes` (by domain)."""

    def __init__(
        self,
        js: JetStream,
        fleet: FleetState,
        store: FleetStore,
        aggregates: Aggregates,
        classes: Mapping[str, frozenset[str]],
        problems: ActiveProblems,
        durability: Durability,
        held: HeldMessages,
    ) -> None:
        self._js = js
        self._fleet = fleet
        self._store = store
        self._aggregates = aggregates
        self._classes = classes
        self._problems = problems
        self._durability, self._held, self.proposals = durability, held, Proposals()
        self._settling = 0
        self._unsaved: dict[str, float | None] = {}
        """Storage times of records whose epoch may not be synced."""

    @property
    def domains(self) -> Container[str]:
        return self._classes

    def begin(self) -> None:
        """Forget observations after the server's absence."""
        self._held.proven.clear()
        self.proposals.clear()

    async def answer(self, announce: Announce, linked_at: float) -> Answer:
        """Answer a valid announcement; observations before `linked_at` do not count. Raises `ApiError` or
        `UnavailableError`.
        """
        now = loop_time()
        if (refused := self._refusal(announce, now)) is not None:
            return Answer(refused=refused)
        known = self._fleet.leaves.get(announce.domain)
        refused_of = refused_classes(announce, self._classes[announce.domain], known)
        if refused_of:
            taken = {cls: said for cls, said in announce.classes.items() if cls not in refused_of}
            announce = replace(announce, classes=taken)
        if self._changes_too_often(announce, now):
            return Answer(refused=_TOO_OFTEN.format(domain=announce.domain), later=True)
        streams = self._aggregates.place(
            announce.domain, list(announce.classes), self._moving(announce, known)
        )
        if missing := sorted(set(streams.values()) - self._aggregates.controllers.keys()):
            return Answer(refused=_NO_AGGREGATE.format(domain=announce.domain, stream=missing[0]))
        self._aggregates.wake(announce.domain, awake(announce, known))
        changed = await self._take_in(announce, streams, now)
        fresh = now if changed or announce.repairs else linked_at
        seen = await self._observe(announce, streams, max(fresh, now - OBSERVED))

        async def answered(cls: str) -> tuple[str, ClassAnswer]:
            look = seen[streams[cls]]
            given = await self._class(announce, cls, look, now)
            return cls, self._rested(announce, cls, given, look.info)

        answers = dict(await bounded_gather(answered, announce.classes))
        await self._store.save_changed(self._fleet.leaves[announce.domain])
        return Answer(
            answers,
            sync_seconds=self._durability.seconds,
            max_payload=self._js.max_payload,
            spread_seconds=self._fleet.spread_seconds,
            refused_classes=refused_of,
        )

    def _moving(self, announce: Announce, known: LeafRecord | None) -> list[str]:
        """The classes that get an aggregate in their leaf's cell, for it is in another one than before, and
        they have begun an epoch since it is. Of the others the leaf is told to begin one, after what both
        sides agree that the hub holds."""
        found, cell = list[str](), self._fleet.cell(announce.domain)
        for cls, said in announce.classes.items():
            record = None if known is None else known.classes.get(cls)
            if record is None or cell_of(record.stream) == cell:
                continue
            if record.epoch != said.epoch:
                found.append(cls)
            elif not record.lost:
                lost = msgspec.structs.replace(record, lost=MOVED)
                self._fleet.put(announce.domain, cls, lost)
        return found

    def _rested(self, announce: Announce, cls: str, answer: ClassAnswer, info: StreamInfo) -> ClassAnswer:
        record = self._fleet.leaves[announce.domain].classes[cls]
        if answer.state == RESTING and is_far(announce, record, info, TOO_FAR):
            self._aggregates.wake(announce.domain, [cls])
        if not may_rest(announce, cls, answer) or is_far(announce, record, info):
            return answer
        # A reading may still come before the source is gone, and no later look would find it.
        rests = msgspec.structs.replace(record, unsure=True, rests=self._fleet.server)
        self._fleet.put(announce.domain, cls, rests)
        self._aggregates.rest(announce.domain, cls)
        return replace(answer, state=RESTING)

    def _refusal(self, announce: Announce, now: float) -> str | None:
        domain, ownership = announce.domain, self._fleet.ownership
        if domain in self._fleet.revoked:
            return REVOKED.format(domain=domain)
        known = self._fleet.leaves.get(domain)
        refused = refusal(announce, self._classes.get(domain), known, ownership.heard_ago(domain, now))
        if refused is not None:
            if known is not None and known.machine != announce.machine:
                ownership.claimed(domain, now)
                self._problems.begin(f"rival of {domain}", refused)
            return refused
        if self._is_copy(announce, now):
            return COPIED.format(domain=domain, machine=announce.machine)
        return None

    def _changes_too_often(self, announce: Announce, now: float) -> bool:
        known = self._fleet.leaves.get(announce.domain)
        had = {} if known is None else known.classes
        changed = any(cls in had and had[cls].epoch != said.epoch for cls, said in announce.classes.items())
        return changed and not self._fleet.may_change(announce.domain, now)

    def _is_copy(self, announce: Announce, now: float) -> bool:
        domain, ownership = announce.domain, self._fleet.ownership
        before = ownership.is_copied(domain)
        copy = ownership.is_copy(domain, announce.run, now)
        if not ownership.is_copied(domain):
            return False
        if not before and domain in self._fleet.leaves:
            # Both came through one link consumer, so what is here may be a mixture of both.
            self._fleet.lose(domain, "a copy of its machine sent through it too")
        if copy or not before:
            ownership.claimed(domain, now)
            self._problems.begin(f"rival of {domain}", COPIED.format(domain=domain, machine=announce.machine))
        return copy

    async def _take_in(self, announce: Announce, streams: Mapping[str, str], now: float) -> bool:
        """Update the record, and the source of a changed link; returns whether changed."""
        domain = announce.domain
        places, seen = {}, dict[str, Observation]()
        for cls, stream in streams.items():
            seen[cls] = await self._aggregates.controllers[stream].observe(now - OBSERVED)
            info = seen[cls].info
            places[cls] = AggregateRef(info.name, info.created, info.last)
        known = self._fleet.leaves.get(domain)
        now_text = datetime.now(UTC).isoformat(timespec="seconds")
        leaf = admitted(announce, known, places, now_text, self._durability.boot)
        self._fleet.keep(leaf)
        if known is not None:
            self._aggregates.moved(known, leaf)
        self._fleet.heard(announce, now)
        if begun := new_epochs(leaf, known):
            self._unsaved[domain] = None
            for cls in begun:
                self._held.gaps.begin_epoch(domain, cls, seen[cls])
        elif domain not in self._unsaved:
            return False
        # Nothing comes through an epoch of which a power cut may take the record.
        if (stored_at := self._unsaved[domain]) is None:
            await self._store.save(leaf)
            self._unsaved[domain] = stored_at = loop_time()
        await self._durability.sync(stored_at)
        del self._unsaved[domain]
        for stream, sources in self._fleet.sources_of(domain).items():
            self._aggregates.controllers[stream].want(sources)
        if self._settling < _SETTLING:  # a crowd is answered at once, and looks again when it comes again
            self._settling += 1
            try:
                for stream, sources in self._fleet.sources_of(domain).items():
                    await self._aggregates.controllers[stream].settled(sources, _SETTLE_SECONDS)
            finally:
                self._settling -= 1
        return True

    async def _observe(
        self, announce: Announce, streams: Mapping[str, str], not_before: float
    ) -> dict[str, Observation]:
        """Return recent observations, newer ones if the leaf knows more."""
        began = loop_time()
        seen = {}
        for stream in set(streams.values()):
            seen[stream] = await self._aggregates.controllers[stream].observe(not_before)
        for cls, state in announce.classes.items():
            name, controller = leaf_stream(announce.domain, cls), self._aggregates.controllers[streams[cls]]
            if name in self._fleet.resting:
                continue
            source = seen[streams[cls]].states.get(name)
            if source is None or not source.alive(ALIVE):
                controller.silent(name)
            if source is None or source.seq < max(state.confirmed, state.acked):
                seen[streams[cls]] = await controller.observe(began)
        return seen

    async def _class(self, announce: Announce, cls: str, seen: Observation, asked: float) -> ClassAnswer:
        domain, info = announce.domain, seen.info
        record = self._fleet.leaves[domain].classes[cls]
        record = await self._held.with_held(domain, cls, seen, record)
        self._fleet.put(domain, cls, record)
        stretch = await self._held.gaps.look(domain, cls, record, seen)
        record = self._fleet.record(domain, cls) or record  # a purge may have changed it meanwhile
        state = source_state(seen, domain, cls, record.epoch)
        checkpoint = announce.checkpoint.get(cls)
        agrees = None
        if checkpoint is not None:
            agrees = await self._held.agreed(domain, cls, checkpoint, record, info)
            about = f"checkpoint of {domain}/{cls}"
            if agrees is False:
                self._problems.begin(about, f"leaf {domain} and hub disagree on {checkpoint}")
            else:
                self._problems.end(about, f"leaf {domain} and hub agree on {checkpoint}")
        certain = self._fleet.certain(record, state, info)
        acked = announce.classes[cls].acked
        whole = stretch.covers(record.held)
        record = lacking(record, acked, checkpoint if agrees else None, certain=certain, whole=whole)
        gap = stretch.lost(announce.classes[cls].first, asked)
        if gap is not None and not record.lost:
            record = skipped(record, gap.first, gap.last, gap.before)
            log.warning("sequences skipped", leaf=domain, cls=cls, first=gap.first, last=gap.last)
        fallback = None
        if (agrees is False or record.lost) and record.proposed is not None:
            held = await self._held.agreed(domain, cls, record.proposed, record, info)
            fallback = record.proposed if held else None
        batch = await self._held.newest_batch(domain, cls, record, info)
        word = self._fleet.word(domain, cls, state, info, loop_time())
        answer = class_answer(record, word, agrees, batch, certain=certain, fallback=fallback)
        synced = min(self._durability.synced(info), stretch.whole_to)
        newest = self.proposals.synced(domain, cls, record.epoch, answer.checkpoint, synced)
        answer = bounded(answer, record.held, newest, synced, whole=whole)
        self._fleet.put(domain, cls, agreeing(record, checkpoint, agrees, answer))
        return answer
