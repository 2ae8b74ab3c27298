"""The fleet in memory: the records, what was announced, and how often that may be. Touches no connection; its
times are monotonic seconds that the caller gives."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from agent.base.wait import Pacer
from agent.contract import HOME, MADE_METADATA, Announce, leaf_stream
from agent.hub.registrar.aggregate import Observation, Source, source, source_state
from agent.hub.registrar.answer import (
    class_state,
    held_at_start,
    held_now,
    is_certain,
    known_at_start,
)
from agent.hub.registrar.ownership import DomainOwnership
from agent.hub.registrar.quota import Allowance
from agent.hub.registrar.records import ClassRecord, LeafRecord, PurgeMarker
from agent.jetstream import StreamInfo
from agent.jetstream.info import CopyStatus

ANNOUNCES_AT_ONCE: Final = 10
ANNOUNCE_EVERY: Final = 1.0
_MACHINES: Final = 3
EPOCHS_AT_ONCE: Final = 3
EPOCH_EVERY: Final = 20.0
_WORK_SECONDS: Final = 2.5e-6
"""What a core takes for one of the links that dial at once, for each of them. Measured: 1.1e-6
where each is linked by its first dial."""
_ANYWHERE: Final = 14
"""How many percent of that it takes for those in other cells, which keep it waiting until it dials again."""
_LEAST_SPREAD: Final = 10.0
_MOST_DOUBLED: Final = 8


def spread_seconds(*leaves: int) -> float:
    """What the hub's server takes for so many links in each cell that are dialled at once, 0 where that is
    little. It doubles from one value to the next, so that a fleet that grows seldom has a new one."""
    pairs = (100 - _ANYWHERE) * sum(count**2 for count in leaves) + _ANYWHERE * sum(leaves) ** 2
    work = _WORK_SECONDS * (pairs / 100)
    if work < _LEAST_SPREAD:
        return 0.0
    return _LEAST_SPREAD * 2.0 ** min(math.ceil(math.log2(work / _LEAST_SPREAD)), _MOST_DOUBLED)


class FleetState:
    """All leaves that have announced themselves. Those that are `revoked` have no sources. `cells` gives the
    cell of each domain that is not in the first."""

    def __init__(self, revoked: Collection[str] = (), cells: Mapping[str, str] | None = None) -> None:
        self.revoked = frozenset(revoked)
        self._cells = cells or {}
        self._sizes = Counter[str]()
        self.leaves: dict[str, LeafRecord] = {}
        """To be changed only by `keep`."""
        self._of_stream: dict[str, dict[str, tuple[str, str]]] = {}
        """The domain and class of each leaf stream, by its aggregate."""
        self._noted: dict[str, PurgeMarker] = {}
        self.announced: dict[str, Announce] = {}
        self.ownership = DomainOwnership()
        self.capped: set[str] = set()
        self.server = ""
        """The identity of the hub's server, another one after each of its starts."""
        self.resting: set[str] = set()
        """The leaf streams of idle classes, which have no source until their leaf announces news."""
        self._announces = defaultdict[str, Allowance](
            lambda: Allowance(_MACHINES * ANNOUNCES_AT_ONCE, ANNOUNCE_EVERY / _MACHINES)
        )
        self._run_announces = defaultdict[str, dict[str, Allowance]](dict)
        self._epochs = defaultdict[str, Allowance](lambda: Allowance(EPOCHS_AT_ONCE, EPOCH_EVERY))

    async def begin(
        self,
        leaves: Mapping[str, LeafRecord],
        noted: Mapping[str, PurgeMarker],
        seen: Mapping[str, Observation],
        now: float,
    ) -> None:
        """Take over the records as they were read back; what the hub may not hold any more is forgotten. A
        machine that is known counts as heard now, so that another one cannot take its domain first. A class
        goes on to rest only if the hub's server is the one that dropped its source: another one may have a
        store that was restored."""
        begun, rests = dict[str, LeafRecord](), set[str]()
        of_stream: dict[str, dict[str, tuple[str, str]]] = {}
        pacer = Pacer()
        for leaf in leaves.values():
            await pacer.give_way()
            records = {}
            for cls, record in leaf.classes.items():
                look = seen.get(record.stream)
                held = None
                if look is not None and record.stream_created == look.info.created:
                    state = source_state(look, leaf.domain, cls, record.epoch)
                    held = held_at_start(record.held, state, look.info)
                    record = known_at_start(record, look.info)
                records[cls] = msgspec.structs.replace(record, held=held)
                name = leaf_stream(leaf.domain, cls)
                if look is not None and record.rests == self.server != "" and name not in look.states:
                    rests.add(name)
                of_stream.setdefault(record.stream, {})[name] = leaf.domain, cls
            begun[leaf.domain] = msgspec.structs.replace(leaf, classes=records)
            self.ownership.begin(leaf.domain, leaf.run, now)
        self._noted, self.leaves, self._of_stream = dict(noted), begun, of_stream
        self._sizes = Counter(map(self.cell, begun))
        self.resting.clear()
        self.resting |= rests

    @property
    def spread_seconds(self) -> float:
        """As the function, of all leaves."""
        return spread_seconds(*self._sizes.values())

    def cell(self, domain: str) -> str:
        """The cell of a domain."""
        return self._cells.get(domain, HOME)

    def keep(self, leaf: LeafRecord) -> None:
        """Replace the record of a leaf, or add it."""
        old = self.leaves.get(leaf.domain)
        had = {} if old is None else old.classes
        for cls, record in had.items():
            if cls not in leaf.classes or leaf.classes[cls].stream != record.stream:
                del self._of_stream[record.stream][leaf_stream(leaf.domain, cls)]
        for cls, record in leaf.classes.items():
            if cls not in had or had[cls].stream != record.stream:
                names = self._of_stream.setdefault(record.stream, {})
                names[leaf_stream(leaf.domain, cls)] = (leaf.domain, cls)
        self._sizes[self.cell(leaf.domain)] += old is None
        self.leaves[leaf.domain] = leaf

    def sources(self, stream: str) -> dict[str, Source]:
        """The sources that an aggregate shall have, by the name of the leaf's stream."""
        return {
            name: source(domain, cls, self.leaves[domain].classes[cls].epoch)
            for name, (domain, cls) in self._of_stream.get(stream, {}).items()
            if name not in self.resting and domain not in self.capped and domain not in self.revoked
        }

    def made(self, stream: str) -> dict[str, str]:
        """The metadata of an aggregate that name its leaves' streams created anew (`MADE_METADATA`)."""
        return {
            f"{MADE_METADATA}{name}.{made}": created
            for name, (domain, cls) in self._of_stream.get(stream, {}).items()
            for made, created in self.leaves[domain].made.get(cls, {}).items()
        }

    def sources_of(self, domain: str) -> dict[str, dict[str, Source]]:
        """The sources of one leaf, by aggregate and the name of the leaf's stream."""
        found: dict[str, dict[str, Source]] = {}
        shut_out = domain in self.capped or domain in self.revoked
        leaf = None if shut_out else self.leaves.get(domain)
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
        for name, (domain, cls) in self._of_stream.get(info.name, {}).items():
            record = self.leaves[domain].classes[cls]
            if record.stream_created != info.created:
                continue
            state = source_state(seen, domain, cls, record.epoch)
            new = msgspec.structs.replace(
                record,
                held=held_now(record.held, state, None, info),
                unsure=name in self.resting or not self.certain(record, state, info),
            )
            if new != record:
                self.put(domain, cls, new)

    def certain(self, record: ClassRecord, state: CopyStatus | None, info: StreamInfo) -> bool:
        """Whether what a record holds cannot be too little."""
        noted = self._noted.get(info.name)
        last = noted.last if noted is not None and noted.created == info.created else 0
        return is_certain(record, state, info, last)

    def word(self, domain: str, cls: str, state: CopyStatus | None, info: StreamInfo, now: float) -> str:
        return class_state(
            state,
            info,
            contested=self.ownership.contested(domain, now),
            capped=domain in self.capped,
            resting=leaf_stream(domain, cls) in self.resting,
        )

    def purging(self, noted: PurgeMarker) -> None:
        """All records of an aggregate are stored as they were at `noted`, and it is going to be purged."""
        self._noted[noted.stream] = noted

    def records(self, stream: str) -> Iterator[tuple[LeafRecord, str, ClassRecord]]:
        """The leaves, classes and records of an aggregate."""
        for domain, cls in list(self._of_stream.get(stream, {}).values()):
            leaf = self.leaves[domain]
            yield leaf, cls, leaf.classes[cls]

    def record(self, domain: str, cls: str) -> ClassRecord | None:
        """The record of one class; None since its leaf has announced itself without the class."""
        return self.leaves[domain].classes.get(cls)

    def put(self, domain: str, cls: str, record: ClassRecord) -> None:
        """Replace the record of one class, unless its leaf has dropped the class."""
        leaf = self.leaves[domain]
        if cls in leaf.classes and leaf.classes[cls] != record:
            self.keep(msgspec.structs.replace(leaf, classes={**leaf.classes, cls: record}))

    def heard(self, announce: Announce, now: float) -> None:
        """A machine that owns its domain announced itself."""
        self.ownership.heard(announce.domain, now)
        self.announced[announce.domain] = announce

    def announced_at(self, domain: str, now: float) -> str:
        """When a leaf announced itself last (RFC 3339, by the hub's clock)."""
        if domain not in self.announced:
            return self.leaves[domain].announced_at
        heard = datetime.now(UTC) - timedelta(seconds=self.ownership.heard_ago(domain, now))
        return heard.isoformat(timespec="seconds")

    async def silent(self, now: float) -> set[str]:
        """The leaves whose agents have missed their announcements."""
        found, pacer = set[str](), Pacer()
        for domain, leaf in list(self.leaves.items()):
            await pacer.give_way()
            if self.ownership.heard_ago(domain, now) > leaf.silent_after:
                found.add(domain)
        return found

    def lose(self, domain: str, reason: str) -> None:
        """What was stored through the epochs of a leaf cannot be relied on."""
        leaf = self.leaves[domain]
        records = {
            cls: msgspec.structs.replace(record, lost=reason, proposed=None)
            for cls, record in leaf.classes.items()
        }
        self.keep(msgspec.structs.replace(leaf, classes=records))

    def load(self, streams: Iterable[str]) -> dict[str, int]:
        """How many sources each aggregate has been given."""
        return {stream: len(self._of_stream.get(stream, ())) for stream in streams}

    def may_announce(self, domain: str, now: float) -> bool:
        """Whether a domain keeps to its rate of announcements; counts this one. It is that of a few machines,
        so that a copy of one does not use up all that the first may say."""
        return self._announces[domain].take(now)

    def may_run_announce(self, domain: str, run: str, now: float) -> bool:
        """Whether one run of a domain keeps to its rate of announcements; counts this one."""
        runs = self._run_announces[domain]
        if (allowance := runs.get(run)) is None:
            if len(runs) >= _MACHINES:
                del runs[next(iter(runs))]
            allowance = runs[run] = Allowance(ANNOUNCES_AT_ONCE, ANNOUNCE_EVERY)
        return allowance.take(now)

    def may_change(self, domain: str, now: float) -> bool:
        """Whether a domain keeps to its rate of new epochs, each of which scans the aggregate; counts this
        one."""
        return self._epochs[domain].take(now)
