"""Which answers still stand: those to leaves that say nothing new, as far as is known in memory. A leaf costs
no request then; the aggregates are looked at once a second for all of them. Pure, but for the time.

Whatever is in doubt does not stand: then the announcement is answered as if it came in full.
"""

from __future__ import annotations

from typing import Final

from agent.base.wait import loop_time
from agent.contract import Announce, Answer, ClassAnswer, leaf_stream
from agent.hub.registrar.aggregate import source_state
from agent.hub.registrar.aggregates import Aggregates
from agent.hub.registrar.announcements import Announcements
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.fleet_store import FleetStore
from agent.hub.registrar.records import LeafRecord
from agent.hub.registrar.resting import TOO_FAR, is_far

OBSERVED: Final = 2.5
"""Seconds for which a look at an aggregate holds here."""


class StandingAnswers:
    """Compares answers that were given with what is known now."""

    def __init__(
        self,
        fleet: FleetState,
        store: FleetStore,
        aggregates: Aggregates,
        announcements: Announcements,
    ) -> None:
        self._fleet, self._store, self._aggregates = fleet, store, aggregates
        self._proven, self._proposals = announcements.proven, announcements.proposals

    def stands(self, leaf: LeafRecord, announce: Announce, answer: Answer, linked_at: float) -> bool:
        """Whether `answer`, given to `announce` with the record `leaf`, is still the one to give; what was
        seen before `linked_at` says nothing of the leaf's newest link."""
        if self._fleet.leaves.get(announce.domain) is not leaf or not self._store.holds(leaf):
            return False
        now = loop_time()
        not_before = max(linked_at, now - OBSERVED)
        return all(
            self._class_stands(leaf, announce, cls, said, not_before, now)
            for cls, said in answer.classes.items()
        )

    def _class_stands(
        self,
        leaf: LeafRecord,
        announce: Announce,
        cls: str,
        said: ClassAnswer,
        not_before: float,
        now: float,
    ) -> bool:
        record, announced, domain = leaf.classes[cls], announce.classes[cls], leaf.domain
        controller = self._aggregates.controllers.get(record.stream)
        seen = None if controller is None else controller.seen
        if seen is None or seen.asked < not_before or seen.info.created != record.stream_created:
            return False
        if said.agreed is False or said.fallback is not None or record.lost:
            return False
        if not said.synced or self._proposals.wait(domain, cls):
            return False
        source, held = source_state(seen, domain, cls, record.epoch), record.held.seq if record.held else 0
        if leaf_stream(domain, cls) in self._fleet.resting:
            if not announced.idle or announce.repairs or is_far(announce, record, seen.info, TOO_FAR):
                return False
        elif source is None or not source.alive or source.seq < max(announced.confirmed, announced.acked):
            return False
        if said.cursor != held or (source is not None and source.seq not in (0, held)):
            return False
        checkpoint = announce.checkpoint.get(cls)
        if checkpoint is not None and not self._proven.holds(domain, cls, checkpoint, seen.info):
            return False
        certain = self._fleet.certain(record, source, seen.info)
        return certain == said.certain and said.state == self._fleet.word(domain, cls, source, seen.info, now)
