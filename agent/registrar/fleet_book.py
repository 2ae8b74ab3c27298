"""The fleet in memory: the records, who was heard when, and who else claims a domain. Touches no connection;
its times are monotonic seconds that the caller gives."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from agent.contract import Announce, leaf_stream
from agent.registrar.aggregate import Observation, Source, source
from agent.registrar.answer import held_at_start, held_now
from agent.registrar.fleet import FRESH, ClassRecord, Leaf

ANNOUNCES_AT_ONCE: Final = 10
ANNOUNCE_EVERY: Final = 1.0
EPOCHS_AT_ONCE: Final = 3
EPOCH_EVERY: Final = 20.0


class Allowance:
    """So many at once, and one more after each so many seconds."""

    def __init__(self, at_once: int, every: float) -> None:
        self._every = every
        self._free_at: deque[float] = deque([float("-inf")] * at_once, maxlen=at_once)

    def take(self, now: float) -> bool:
        """Whether one more is allowed now; counts it if so."""
        if self._free_at[0] > now:
            return False
        self._free_at.append(max(now, self._free_at[-1]) + self._every)
        return True


class FleetBook:
    """All leaves that have announced themselves."""

    def __init__(self) -> None:
        self.leaves: dict[str, Leaf] = {}
        self.announced: dict[str, Announce] = {}
        self._heard: dict[str, float] = {}
        self._rivals: dict[str, tuple[str, float]] = {}
        self._announces: dict[str, Allowance] = {}
        self._epochs: dict[str, Allowance] = {}

    def begin(self, leaves: Mapping[str, Leaf], seen: Observation, now: float) -> None:
        """Take over the records as they were read back; what the hub may not hold any more is forgotten. A
        machine that is known counts as heard now, so that another one cannot take its domain first."""
        info = seen.info
        self.leaves = {}
        for leaf in leaves.values():
            records = {}
            for cls, record in leaf.classes.items():
                state = seen.states.get(leaf_stream(leaf.domain, cls))
                same = record.stream_created == info.created
                held = held_at_start(record.held, state, info) if same else None
                records[cls] = msgspec.structs.replace(record, held=held)
            self.leaves[leaf.domain] = msgspec.structs.replace(leaf, classes=records)
            self._heard.setdefault(leaf.domain, now)

    def sources(self, domain: str | None = None) -> dict[str, Source]:
        """The sources of one leaf or of all, by the name of the leaf's stream."""
        return {
            name: source(leaf.domain, cls, record.epoch)
            for name, leaf, cls, record in self._records()
            if domain in (None, leaf.domain)
        }

    def note(self, seen: Observation) -> None:
        """Remember what the sources say they hold, before they are changed."""
        for name, leaf, cls, record in list(self._records()):
            held = held_now(record.held, seen.states.get(name), None, seen.info)
            if held != record.held:
                self.put(leaf.domain, cls, msgspec.structs.replace(record, held=held))

    def put(self, domain: str, cls: str, record: ClassRecord) -> None:
        """Replace the record of one class."""
        leaf = self.leaves[domain]
        self.leaves[domain] = msgspec.structs.replace(leaf, classes={**leaf.classes, cls: record})

    def heard(self, announce: Announce, now: float) -> None:
        """A machine that owns its domain announced itself."""
        self._heard[announce.domain] = now
        self.announced[announce.domain] = announce

    def heard_ago(self, domain: str, now: float) -> float:
        """Seconds since the machine that owns a domain was heard."""
        return now - self._heard.get(domain, float("-inf"))

    def claimed(self, domain: str, machine: str, now: float) -> None:
        """Another machine announced a domain that is not its own."""
        self._rivals[domain] = (machine, now)

    def rival(self, domain: str, now: float) -> str | None:
        """The machine that lately announced a domain that is not its own."""
        machine, at = self._rivals.get(domain, ("", float("-inf")))
        return machine if now - at < FRESH else None

    def gone_rivals(self, now: float) -> list[str]:
        """The domains whose rival has not been heard any more; each is told once."""
        gone = [domain for domain, (_, at) in self._rivals.items() if now - at >= FRESH]
        for domain in gone:
            del self._rivals[domain]
        return gone

    def may_announce(self, domain: str, now: float) -> bool:
        """Whether a domain keeps to its rate of announcements; counts this one."""
        return self._announces.setdefault(domain, Allowance(ANNOUNCES_AT_ONCE, ANNOUNCE_EVERY)).take(now)

    def may_change(self, domain: str, now: float) -> bool:
        """Whether a domain keeps to its rate of new epochs, each of which scans the aggregate; counts this
        one."""
        return self._epochs.setdefault(domain, Allowance(EPOCHS_AT_ONCE, EPOCH_EVERY)).take(now)

    def _records(self) -> Iterator[tuple[str, Leaf, str, ClassRecord]]:
        for leaf in self.leaves.values():
            for cls, record in leaf.classes.items():
                yield leaf_stream(leaf.domain, cls), leaf, cls, record
