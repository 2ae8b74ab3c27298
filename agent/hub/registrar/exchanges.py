"""Keeps each leaf's newest exchange for repeats (`agent.contract.checkpoint`), and judges whether it is
valid. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from msgspec import Struct

from agent.base.wait import loop_time
from agent.contract import (
    Announce,
    Answer,
    ClassAnswer,
    ContractError,
    Repeat,
    leaf_stream,
    new_exchange,
    parse_announce,
    parse_repeat,
)
from agent.contract.checkpoint import MAX_REPEAT
from agent.hub.registrar.aggregate import ALIVE, source_state
from agent.hub.registrar.aggregates import TOO_FAR, Aggregates, is_far
from agent.hub.registrar.durability import Proposals
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.fleet_store import FleetStore
from agent.hub.registrar.held_messages import ProvenCheckpoints
from agent.hub.registrar.records import LeafRecord


class Exchange(Struct, frozen=True):
    """An announcement and its answer."""

    announce: Announce
    answer: Answer
    leaf: LeafRecord | None = None
    """The leaf's record then."""
    reconnect: int = 0
    """Its server connection (`Readiness.wait`)."""


_UNKNOWN: Final = "what this leaf announced is not known here; announce it in full"
UNKNOWN: Final = Answer(refused=_UNKNOWN, later=True).encode()
"""Answer to an unknown exchange."""


class UnknownExchangeError(ContractError):
    """The repeated exchange is unknown."""


class Exchanges:
    def __init__(self) -> None:
        self._newest: dict[str, Exchange] = {}

    def repeated(self, domain: str, data: bytes) -> Exchange | None:
        """Return the newest exchange if this is its name."""
        newest = self._newest.get(domain)
        if newest is None or len(data) > MAX_REPEAT or Repeat(newest.answer.exchange).encode() != data:
            return None
        return newest

    def is_unknown(self, domain: str, data: bytes) -> bool:
        """Tell whether this repeats an unknown exchange, as after a start."""
        if len(data) > MAX_REPEAT:
            return False
        try:
            self.read(domain, data)
        except UnknownExchangeError:
            return True
        except ContractError:
            return False  # it is refused when it is read
        return False

    def read(self, domain: str, data: bytes) -> Announce:
        """Parse an announcement. Raises `ContractError` and `UnknownExchangeError`."""
        repeat = parse_repeat(data)
        if repeat is None:
            return parse_announce(data, domain)
        newest = self._newest.get(domain)
        if newest is None or newest.answer.exchange != repeat.exchange:
            raise UnknownExchangeError(_UNKNOWN)
        return newest.announce

    def named(
        self, announce: Announce, answer: Answer, leaf: LeafRecord | None = None, reconnect: int = 0
    ) -> Answer:
        """Return the answer with its exchange's name, unchanged if nothing is new."""
        newest = self._newest.get(announce.domain)
        if newest is not None and newest.announce == announce:
            same = replace(answer, exchange=newest.answer.exchange)
            if same == newest.answer:
                self._newest[announce.domain] = Exchange(newest.announce, newest.answer, leaf, reconnect)
                return newest.answer
        answer = replace(answer, exchange=new_exchange())
        self._newest[announce.domain] = Exchange(announce, answer, leaf, reconnect)
        return answer


def encoded(answer: Answer, asked: bytes) -> bytes:
    """Encode an answer, as a repeat if `asked`."""
    repeat = Repeat(answer.exchange).encode()
    return repeat if answer.exchange and repeat == asked else answer.encode()


OBSERVED: Final = 2.5
"""Seconds for which a look is valid."""


class StandingAnswers:
    """Compares given answers with present knowledge; any doubt means a full answer."""

    def __init__(
        self,
        fleet: FleetState,
        store: FleetStore,
        aggregates: Aggregates,
        proven: ProvenCheckpoints,
        proposals: Proposals,
    ) -> None:
        self._fleet, self._store, self._aggregates = fleet, store, aggregates
        self._proven, self._proposals = proven, proposals

    def stands(self, leaf: LeafRecord, announce: Announce, answer: Answer, linked_at: float) -> bool:
        """Tell whether `answer` is still valid; observations before `linked_at` do not count."""
        if self._fleet.leaves.get(announce.domain) is not leaf or not self._store.holds(leaf):
            return False
        if answer.spread_seconds != self._fleet.spread_seconds:
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
        elif (
            source is None
            or not source.alive(ALIVE)
            or source.seq < max(announced.confirmed, announced.acked)
        ):
            return False
        if said.cursor != held or (source is not None and source.seq not in (0, held)):
            return False
        checkpoint = announce.checkpoint.get(cls)
        if checkpoint is not None and not self._proven.holds(domain, cls, checkpoint, seen.info):
            return False
        certain = self._fleet.certain(record, source, seen.info)
        return certain == said.certain and said.state == self._fleet.word(domain, cls, source, seen.info, now)
