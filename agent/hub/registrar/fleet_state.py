"""Keeps the fleet in memory: records, announcements and their rates. Pure; monotonic seconds."""

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
"""CPU time per link and simultaneous link, measured 1.1e-6."""
_ANYWHERE: Final = 14
"""How many percent of that it takes for those in other cells, which keep it waiting until it dials again."""
_LEAST_SPREAD: Final = 10.0
_MOST_DOUBLED: Final = 8


def spread_seconds(*leaves: int) -> float:
    """Return the time for so many simultaneous links, in doubling steps; 0 if short."""
    pairs = (100 - _ANYWHERE) * sum(count**2 for count in leaves) + _ANYWHERE * sum(leaves) ** 2
    work = _WORK_SECONDS * (pairs / 100)
    if work < _LEAST_SPREAD:
        return 0.0
    return _LEAST_SPREAD * 2.0 ** min(math.ceil(math.log2(work / _LEAST_SPREAD)), _MOST_DOUBLED)


class FleetState:
    """All announced leaves; `revoked` ones have no sources. `cells` has the cell of each domain outside
    the first cell.
    """

    def __init__(self, revoked: Collection[str] = (), cells: Mapping[str, str] | None = None) -> None:
        self.revoked = frozenset(revoked)
        self._cells = cells or {}
        self._sizes = Counter[str]()
        self.leaves: dict[str, LeafRecord] = {}
        """Change only by `keep`."""
        self._of_stream: dict[str, dict[str, tuple[str, str]]] = {}
        """Domain and class of leaf streams by aggregate."""
        self._noted: dict[str, PurgeMarker] = {}
        self.announced: dict[str, Announce] = {}
        self.ownership = DomainOwnership()
        self.capped: set[str] = set()
        self.server = ""
        """The hub server's identity, new at each start."""
        self.resting: set[str] = set()
        """Resting leaf streams without source."""
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
        """Load records, dropping what the hub may have lost. Known machines count as heard, so others can't
        take their domain.

        Classes rest on only under the same server.
        """
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
        return spread_seconds(*self._sizes.values())

    def cell(self, domain: str) -> str:
        """The cell of a domain."""
        return self._cells.get(domain, HOME)

    def keep(self, leaf: LeafRecord) -> None:
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
        """Return an aggregate's wanted sources by leaf stream."""
        return {
            name: source(domain, cls, self.leaves[domain].classes[cls].epoch)
            for name, (domain, cls) in self._of_stream.get(stream, {}).items()
            if name not in self.resting and domain not in self.capped and domain not in self.revoked
        }

    def made(self, stream: str) -> dict[str, str]:
        """Return metadata of recreated leaf streams (`MADE_METADATA`)."""
        return {
            f"{MADE_METADATA}{name}.{made}": created
            for name, (domain, cls) in self._of_stream.get(stream, {}).items()
            for made, created in self.leaves[domain].made.get(cls, {}).items()
        }

    def sources_of(self, domain: str) -> dict[str, dict[str, Source]]:
        """Return a leaf's sources by aggregate and stream."""
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
        """Remember sources' positions before changes or purges."""
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
        """Tell whether a record's position can't be too low."""
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
        """Note that all records are stored as of `noted`, before a purge."""
        self._noted[noted.stream] = noted

    def records(self, stream: str) -> Iterator[tuple[LeafRecord, str, ClassRecord]]:
        """Yield an aggregate's leaves, classes and records."""
        for domain, cls in list(self._of_stream.get(stream, {}).values()):
            leaf = self.leaves[domain]
            yield leaf, cls, leaf.classes[cls]

    def record(self, domain: str, cls: str) -> ClassRecord | None:
        """Return a class's record, None if dropped."""
        return self.leaves[domain].classes.get(cls)

    def put(self, domain: str, cls: str, record: ClassRecord) -> None:
        """Replace a class's record unless dropped."""
        leaf = self.leaves[domain]
        if cls in leaf.classes and leaf.classes[cls] != record:
            self.keep(msgspec.structs.replace(leaf, classes={**leaf.classes, cls: record}))

    def heard(self, announce: Announce, now: float) -> None:
        """Note an owner's announcement."""
        self.ownership.heard(announce.domain, now)
        self.announced[announce.domain] = announce

    def announced_at(self, domain: str, now: float) -> str:
        """Return the last announcement (RFC 3339, hub clock)."""
        if domain not in self.announced:
            return self.leaves[domain].announced_at
        heard = datetime.now(UTC) - timedelta(seconds=self.ownership.heard_ago(domain, now))
        return heard.isoformat(timespec="seconds")

    async def silent(self, now: float) -> set[str]:
        """Return leaves with missed announcements."""
        found, pacer = set[str](), Pacer()
        for domain, leaf in list(self.leaves.items()):
            await pacer.give_way()
            if self.ownership.heard_ago(domain, now) > leaf.silent_after:
                found.add(domain)
        return found

    def lose(self, domain: str, reason: str) -> None:
        """Mark a leaf's epochs as unreliable."""
        leaf = self.leaves[domain]
        records = {
            cls: msgspec.structs.replace(record, lost=reason, proposed=None)
            for cls, record in leaf.classes.items()
        }
        self.keep(msgspec.structs.replace(leaf, classes=records))

    def load(self, streams: Iterable[str]) -> dict[str, int]:
        """Return assigned sources per aggregate."""
        return {stream: len(self._of_stream.get(stream, ())) for stream in streams}

    def may_announce(self, domain: str, now: float) -> bool:
        """Count a domain's announcement against its rate, sized for a few machines."""
        return self._announces[domain].take(now)

    def may_run_announce(self, domain: str, run: str, now: float) -> bool:
        """Count a run's announcement against its rate."""
        runs = self._run_announces[domain]
        if (allowance := runs.get(run)) is None:
            if len(runs) >= _MACHINES:
                del runs[next(iter(runs))]
            allowance = runs[run] = Allowance(ANNOUNCES_AT_ONCE, ANNOUNCE_EVERY)
        return allowance.take(now)

    def may_change(self, domain: str, now: float) -> bool:
        """Count a new epoch against the domain's rate."""
        return self._epochs[domain].take(now)
