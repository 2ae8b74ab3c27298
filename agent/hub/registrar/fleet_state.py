"""The fleet in memory: the records, what was announced, and how often that may be. Touches no connection; its
times are monotonic seconds that the caller gives."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from agent.contract import Announce, leaf_stream
from agent.hub.registrar.aggregate import Observation, Source, SourceState, source, source_state
from agent.hub.registrar.answer import held_at_start, held_now, is_certain, known_at_start
from agent.hub.registrar.ownership import DomainOwnership
from agent.hub.registrar.records import ClassRecord, LeafRecord, PurgeMarker
from agent.jetstream import StreamInfo

ANNOUNCES_AT_ONCE: Final = 10
ANNOUNCE_EVERY: Final = 1.0
_MACHINES: Final = 3
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


class FleetState:
    """All leaves that have announced themselves. Those that are `revoked` have no sources."""

    def __init__(self, revoked: Collection[str] = ()) -> None:
        self.revoked = frozenset(revoked)
        self.leaves: dict[str, LeafRecord] = {}
        self._noted: dict[str, PurgeMarker] = {}
        self.announced: dict[str, Announce] = {}
        self.ownership = DomainOwnership()
        self.capped: set[str] = set()
        self.resting: set[str] = set()
        """The leaf streams of idle classes, which have no source until their leaf announces news."""
        self._announces: dict[str, Allowance] = {}
        self._run_announces: dict[str, dict[str, Allowance]] = {}
        self._epochs: dict[str, Allowance] = {}

    def begin(
        self,
        leaves: Mapping[str, LeafRecord],
        noted: Mapping[str, PurgeMarker],
        seen: Mapping[str, Observation],
        now: float,
    ) -> None:
        """Take over the records as they were read back; what the hub may not hold any more is forgotten. A
        machine that is known counts as heard now, so that another one cannot take its domain first."""
        self.leaves = {}
        self.resting.clear()
        self._noted = dict(noted)
        for leaf in leaves.values():
            records = {}
            for cls, record in leaf.classes.items():
                look = seen.get(record.stream)
                held = None
                if look is not None and record.stream_created == look.info.created:
                    state = source_state(look, leaf.domain, cls, record.epoch)
                    held = held_at_start(record.held, state, look.info)
                    record = known_at_start(record, look.info)
                records[cls] = msgspec.structs.replace(record, held=held)
            self.leaves[leaf.domain] = msgspec.structs.replace(leaf, classes=records)
            self.ownership.begin(leaf.domain, leaf.run, now)

    def sources(self, stream: str) -> dict[str, Source]:
        """The sources that an aggregate shall have, by the name of the leaf's stream."""
        return {
            name: source(leaf.domain, cls, record.epoch)
            for name, leaf, cls, record in self._records()
            if record.stream == stream
            and name not in self.resting
            and leaf.domain not in self.capped
            and leaf.domain not in self.revoked
        }

    def sources_of(self, domain: str) -> dict[str, dict[str, Source]]:
        """The sources of one leaf, by aggregate and the name of the leaf's stream."""
        found: dict[str, dict[str, Source]] = {}
        leaf = self.leaves.get(domain) if domain not in self.capped | self.revoked else None
        for cls, record in leaf.classes.items() if leaf else ():
            if leaf_stream(domain, cls) in self.resting:
                continue
            wanted = source(domain, cls, record.epoch)
            found.setdefault(record.stream, {})[wanted["name"]] = wanted
        return found

    def note(self, seen: Observation) -> None:
        """Remember what the sources of an aggregate say they hold, before they are changed or it is
        purged."""
        info = seen.info
        for name, leaf, cls, record in list(self._records()):
            if (record.stream, record.stream_created) != (info.name, info.created):
                continue
            state = source_state(seen, leaf.domain, cls, record.epoch)
            new = msgspec.structs.replace(
                record,
                held=held_now(record.held, state, None, info),
                unsure=name in self.resting or not self.certain(record, state, info),
            )
            if new != record:
                self.put(leaf.domain, cls, new)

    def certain(self, record: ClassRecord, state: SourceState | None, info: StreamInfo) -> bool:
        """Whether what a record holds cannot be too little."""
        noted = self._noted.get(info.name)
        last = noted.last if noted is not None and noted.created == info.created else 0
        return is_certain(record, state, info, last)

    def purging(self, noted: PurgeMarker) -> None:
        """All records of an aggregate are stored as they were at `noted`, and it is going to be purged."""
        self._noted[noted.stream] = noted

    def records(self, stream: str) -> Iterator[tuple[LeafRecord, str, ClassRecord]]:
        """The leaves, classes and records of an aggregate."""
        return ((leaf, cls, record) for _, leaf, cls, record in self._records() if record.stream == stream)

    def put(self, domain: str, cls: str, record: ClassRecord) -> None:
        """Replace the record of one class."""
        leaf = self.leaves[domain]
        self.leaves[domain] = msgspec.structs.replace(leaf, classes={**leaf.classes, cls: record})

    def heard(self, announce: Announce, now: float) -> None:
        """A machine that owns its domain announced itself."""
        self.ownership.heard(announce.domain, now)
        self.announced[announce.domain] = announce

    def silent(self, now: float) -> dict[str, float]:
        """The leaves whose agents have missed their announcements, with the seconds since the last one."""
        ago = {domain: self.ownership.heard_ago(domain, now) for domain in self.leaves}
        return {
            domain: ago[domain] for domain, leaf in self.leaves.items() if ago[domain] > leaf.silent_after
        }

    def lose(self, domain: str, reason: str) -> None:
        """What was stored through the epochs of a leaf cannot be relied on."""
        leaf = self.leaves[domain]
        records = {
            cls: msgspec.structs.replace(record, lost=reason, proposed=None)
            for cls, record in leaf.classes.items()
        }
        self.leaves[domain] = msgspec.structs.replace(leaf, classes=records)

    def load(self, streams: Iterable[str]) -> dict[str, int]:
        """How many sources each aggregate has been given."""
        counts = dict.fromkeys(streams, 0)
        for _, _, _, record in self._records():
            if record.stream in counts:
                counts[record.stream] += 1
        return counts

    def may_announce(self, domain: str, now: float) -> bool:
        """Whether a domain keeps to its rate of announcements; counts this one. It is that of a few machines,
        so that a copy of one does not use up all that the first may say."""
        allowance = Allowance(_MACHINES * ANNOUNCES_AT_ONCE, ANNOUNCE_EVERY / _MACHINES)
        return self._announces.setdefault(domain, allowance).take(now)

    def may_run_announce(self, domain: str, run: str, now: float) -> bool:
        """Whether one run of a domain keeps to its rate of announcements; counts this one."""
        runs = self._run_announces.setdefault(domain, {})
        if run not in runs and len(runs) >= _MACHINES:
            del runs[next(iter(runs))]
        return runs.setdefault(run, Allowance(ANNOUNCES_AT_ONCE, ANNOUNCE_EVERY)).take(now)

    def may_change(self, domain: str, now: float) -> bool:
        """Whether a domain keeps to its rate of new epochs, each of which scans the aggregate; counts this
        one."""
        return self._epochs.setdefault(domain, Allowance(EPOCHS_AT_ONCE, EPOCH_EVERY)).take(now)

    def _records(self) -> Iterator[tuple[str, LeafRecord, str, ClassRecord]]:
        for leaf in self.leaves.values():
            for cls, record in leaf.classes.items():
                yield leaf_stream(leaf.domain, cls), leaf, cls, record
