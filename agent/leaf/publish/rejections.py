"""Refusing chunks: their senders learn it, and what had been acknowledged as accepted is entered in the
ledger under a number, so that the audit names it."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from agent.contract import LATE
from agent.leaf.intake import RefusalReason, RefusedError
from agent.leaf.ledger.ledger import ClassLedger
from agent.leaf.publish.batch import Batch, Entries, SealedBatch, count_readings, promised_readings
from agent.leaf.publish.publisher import Publisher

log = structlog.get_logger("sender")


def no_room(text: str) -> RefusedError:
    """The stream has no room now."""
    return RefusedError(RefusalReason.FULL, f"the local stream is full ({text})", retry_after=10.0)


class Refusals:
    """Refuses the publisher's chunks. A loss is logged once for each input, class and reason until something
    of that input is stored again."""

    def __init__(self, publisher: Publisher, ledgers: Mapping[str, ClassLedger]) -> None:
        self._publisher, self._ledgers = publisher, ledgers
        self._told: set[tuple[str, str, RefusalReason]] = set()

    def unsent(self, sealed: SealedBatch, refusal: RefusedError) -> None:
        """Refuse a draft that has no number; what was promised of it gets one."""
        draft, entries = sealed.draft, sealed.draft.live()
        promised = [one for one in entries if one.promised]
        if promised:
            self._enter(draft.cls, self._ledgers[draft.cls].number(0), promised, refusal.reason)
        self._refuse(draft.input, draft.cls, entries, refusal)

    def unpromised(self, sealed: SealedBatch, refusal: RefusedError) -> bool:
        """Refuse what of a draft nobody was promised; whether something is left."""
        draft, entries = sealed.draft, sealed.draft.live()
        self._refuse(draft.input, draft.cls, [one for one in entries if not one.promised], refusal)
        draft.entries = [one for one in entries if one.promised]
        return bool(draft.entries)

    def batch(self, batch: Batch, refusal: RefusedError) -> None:
        """Refuse a batch."""
        self._enter(batch.id.cls, batch.id.n, batch.entries, refusal.reason)
        self._refuse(batch.input, batch.id.cls, batch.entries, refusal)

    def stored(self, input_name: str, cls: str) -> None:
        """Something of an input was stored."""
        if self._told:
            self._told = {one for one in self._told if one[:2] != (input_name, cls)}

    def _refuse(self, input_name: str, cls: str, entries: Entries, refusal: RefusedError) -> None:
        for entry in entries:
            self._publisher.refuse((input_name, cls), entry, refusal)
        lost, place = promised_readings(entries), (input_name, cls, refusal.reason)
        if lost and place not in self._told:
            self._told.add(place)
            log.error(
                "readings are lost that were acknowledged as accepted",
                **{"input": input_name, "class": cls, "readings": lost, "reason": str(refusal)},
            )

    def _enter(self, cls: str, n: int, entries: Entries, reason: RefusalReason) -> None:
        late = promised_readings(entries)
        word = f"{reason.value} {LATE}" if late else reason.value
        self._ledgers[cls].refuse(n, count_readings(entries), word, late)
