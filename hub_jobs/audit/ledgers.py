"""What the leaves claim in the ledger records of bronze: of every run the newest record and the one that
names most as discarded; the discarded sequences; lost stores; and records that can't be used. Pure.

A leaf names what it discarded before it knows that the hub has it, so it may name what arrived all the same:
the caller subtracts what the tables hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from agent.contract import ContractError, Doubt, Ledger, Previous, Readings, parse_ledger
from agent.contract.ranges import union
from hub_jobs.audit.accounts import RunClaims
from hub_jobs.times import micros

EvictedRange = tuple[int, int, int, str]
"""First and last sequence, how many direct messages stood there, and the reason."""

Origin = tuple[str, str, str]
"""Domain, class, and when the leaf's stream was made."""

LISTED: Final = 1_000
"""Records that can't be used and are named one by one."""

COLUMNS: Final = (
    "subject",
    "payload",
    "domain",
    "class",
    "stream",
    "seq",
    "source_stream",
    "source_identity",
    "source_seq",
    "arrived",
)
"""The columns of bronze that are read."""

NAMED_AT_ONCE: Final = 10_000
"""Ranges of a stream that are held before those that lie in others are dropped; a record names 1,000."""

_COUNTS: Final = attrgetter(*Readings.__slots__)
"""Those of readings, in order; `astuple` would copy each."""

Run = tuple[str, str, str]
"""Domain, class and run."""

Source = tuple[str, str]
"""A leaf's stream and its identity."""

Place = tuple[int, int]
"""Where a message of a source stands: when it arrived at the hub, in epoch microseconds, and its sequence in
the leaf's stream."""


class Unusable(NamedTuple):
    """A record that can't be used, and why."""

    stream: str
    seq: int
    domain: str | None
    cls: str | None
    fault: str

    def __str__(self) -> str:
        return (
            f"{self.domain}, class {self.cls}: the ledger record at hub sequence {self.seq} of "
            f"{self.stream} can't be used: {self.fault}"
        )


class LostEnd(NamedTuple):
    """What is gone of a stream of which an older store was restored: the stream, the last sequence that the
    older store held, the last that had been there, and when its agent saw that, in nanoseconds since 1970, 0
    where an agent of an earlier release reported it. One copy may be restored twice, with as many messages
    stored in between as before."""

    origin: Origin
    kept: int
    last: int
    at: int = 0


@dataclass(slots=True)
class LostStores:
    """What leaves said of stores that were lost or restored: up to which sequence a lost stream is known to
    have been filled, and of each end that is gone, the place in each source of the first record that knows of
    it. What stands in the stream above that one and arrived before it is of the store that was replaced."""

    streams: dict[Origin, int] = field(default_factory=dict)
    tails: dict[LostEnd, dict[Source, Place]] = field(default_factory=dict)

    def add(self, ledger: Ledger, source: Source | None = None, place: Place = (0, 0)) -> None:
        """Add what a record says, which stands at this place of a source."""
        for store in ledger.lost:
            origin = (ledger.domain, ledger.cls, store.created)
            if store.kept is None:
                self.join(LostStores({origin: store.last}))
            else:
                end = LostEnd(origin, store.kept, store.last, store.at)
                self.join(LostStores(tails={end: {} if source is None else {source: place}}))

    def ends(self, source: Source) -> dict[Place, list[LostEnd]]:
        """The ends that records of a source know to be gone, by the place of the first that knows of them.

        One without its time that is reported later than the same with its time is no other: the agent was
        exchanged for one of an earlier release meanwhile, which leaves the time out."""
        timed: dict[LostEnd, Place] = {}
        for tail, places in self.tails.items():
            if tail.at and source in places:
                same = tail._replace(at=0)
                timed[same] = min(places[source], timed.get(same, places[source]))
        found: dict[Place, list[LostEnd]] = {}
        for tail, places in sorted(self.tails.items()):
            if source in places and places[source] <= timed.get(tail, places[source]):
                found.setdefault(places[source], []).append(tail)
        return found

    def join(self, other: LostStores) -> None:
        """Add what other records say."""
        for origin, last in other.streams.items():
            self.streams[origin] = max(last, self.streams.get(origin, 0))
        for tail, found in other.tails.items():
            places = self.tails.setdefault(tail, {})
            for source, place in found.items():
                places[source] = min(place, places.get(source, place))


class LedgerClaims(NamedTuple):
    """What the leaves claim, from all records together."""

    ledgers: dict[Run, Ledger]
    """Of each run its newest record, with what the one adds that names most as discarded."""
    remembered: dict[Run, Previous]
    """What runs say of the run before them."""
    gone: dict[Origin, list[EvictedRange]]
    """The sequences that were discarded, by the stream they were in."""
    origins: dict[Source, set[Origin]]
    """From which stream of its leaf each source took."""
    lost: LostStores
    """What stores that were lost or restored had held."""
    unreadable: list[str]
    """The records that can't be used, a sentence each."""
    doubts: Mapping[Run, Sequence[Doubt]] = MappingProxyType({})
    """Lines that may be stored twice or may be lacking, by the first run that named them."""

    def of(self, run: Run) -> RunClaims:
        """What is claimed of one run."""
        return RunClaims(self.ledgers.get(run), self.remembered.get(run))


@dataclass(slots=True)
class LedgerRecords:
    """The records that count, gathered from rows of bronze in any order."""

    newest: dict[Run, Ledger] = field(default_factory=dict)
    naming: dict[Run, Ledger] = field(default_factory=dict)
    """Of each run the record that names most as discarded."""
    discarded: dict[Origin, set[EvictedRange]] = field(default_factory=dict)
    """The sequences that any record calls discarded, by the stream they were in."""
    origins: dict[Source, set[Origin]] = field(default_factory=dict)
    """From which stream of its leaf each source took them."""
    lost: LostStores = field(default_factory=LostStores)
    unusable: list[Unusable] = field(default_factory=list)
    doubts: dict[Run, list[Doubt]] = field(default_factory=dict)
    """The newest of each place, `LISTED` at most, by the run whose records name them; later runs repeat
    them."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row of bronze that is a ledger record of a known class, with `COLUMNS`."""
        try:
            ledger = parse_ledger(bytes(row["payload"] or b""))
            if (ledger.domain, ledger.cls) != (row["domain"], row["class"]):
                raise ContractError(f"it speaks for {ledger.domain}, class {ledger.cls}")
        except ContractError as error:
            self.unusable.append(Unusable(row["stream"], row["seq"], row["domain"], row["class"], str(error)))
            self._cut()
            return
        self._add_ledger(ledger)
        if row["source_identity"] is not None:
            source = (row["source_stream"], row["source_identity"])
            self.origins.setdefault(source, set()).add((ledger.domain, ledger.cls, ledger.stream.created))
            self.lost.add(ledger, source, (micros(row["arrived"]), row["source_seq"]))
        else:
            self.lost.add(ledger)

    def join(self, other: LedgerRecords) -> None:
        """Add what was gathered from other rows."""
        for ledger in (*other.newest.values(), *other.naming.values()):
            self._add_ledger(ledger)
        for origin, named in other.discarded.items():
            self._add_discarded(origin, named)
        self.lost.join(other.lost)
        for place, origins in other.origins.items():
            self.origins.setdefault(place, set()).update(origins)
        self.unusable += other.unusable
        for run, doubts in other.doubts.items():
            self._add_doubts(run, doubts)
        self._cut()

    def claims(self) -> LedgerClaims:
        """What all of them say together."""
        ledgers = {run: merged(newest, self.naming[run]) for run, newest in self.newest.items()}
        return LedgerClaims(
            ledgers,
            remembered_runs(ledgers.values()),
            {origin: outermost(named) for origin, named in self.discarded.items()},
            self.origins,
            self.lost,
            [str(record) for record in self.first_unusable()],
            _first_named(self.doubts),
        )

    def _add_ledger(self, ledger: Ledger) -> None:
        run = (ledger.domain, ledger.cls, ledger.run)
        known, naming = self.newest.get(run), self.naming.get(run)
        if known is None or _age(ledger) >= _age(known):
            self.newest[run] = ledger
        if naming is None or _named(ledger) >= _named(naming):
            self.naming[run] = ledger
        if ledger.doubts:
            self._add_doubts(run, ledger.doubts)
        if ledger.gone:
            self._add_discarded((ledger.domain, ledger.cls, ledger.stream.created), ledger.gone)

    def _add_doubts(self, run: Run, doubts: Iterable[Doubt]) -> None:
        every = sorted({*self.doubts.get(run, ()), *doubts}, key=lambda doubt: (doubt.at, str(doubt)))
        self.doubts[run] = list({doubt.place: doubt for doubt in every}.values())[-LISTED:]

    def _add_discarded(self, origin: Origin, named: Iterable[EvictedRange]) -> None:
        # No count of a record grows with them: what devices published is discarded too. So no record is the
        # newest in this, and all of them count.
        known = self.discarded.setdefault(origin, set())
        before = len(known)
        known.update(named)
        if len(known) > max(before, NAMED_AT_ONCE):
            self.discarded[origin] = set(outermost(known))

    def _cut(self) -> None:
        if len(self.unusable) > 2 * LISTED:
            self.unusable = self.first_unusable()

    def first_unusable(self) -> list[Unusable]:
        """The first `LISTED` of those that can't be used."""
        return sorted(self.unusable, key=lambda record: (record.stream, record.seq))[:LISTED]


def _first_named(doubts: Mapping[Run, Sequence[Doubt]]) -> dict[Run, list[Doubt]]:
    """Doubts by the first run of their class that names them: runs are in the order of their names."""
    known: set[tuple[str, str, Doubt]] = set()
    first: dict[Run, list[Doubt]] = {}
    for domain, cls, run in sorted(doubts):
        for doubt in doubts[domain, cls, run]:
            if (domain, cls, doubt) not in known:
                known.add((domain, cls, doubt))
                first.setdefault((domain, cls, run), []).append(doubt)
    return first


def remembered_runs(ledgers: Iterable[Ledger]) -> dict[Run, Previous]:
    """What runs say of the run before them."""
    found: dict[Run, Previous] = {}
    for ledger in ledgers:
        if ledger.previous is not None:
            run = (ledger.domain, ledger.cls, ledger.previous.run)
            known = found.get(run)
            if known is None or known.n <= ledger.previous.n:
                found[run] = ledger.previous
    return found


def _age(ledger: Ledger) -> tuple[bool, int, *tuple[int, ...]]:
    """Orders the records of a run. Each of these only grows, and one of them does with all that a record
    says of batches: so two that agree in them say the same."""
    return ledger.final, ledger.n, *_COUNTS(ledger.readings)


def _named(ledger: Ledger) -> tuple[int, tuple[bool, int, *tuple[int, ...]]]:
    return ledger.readings.discarded, _age(ledger)


def merged(newest: Ledger, naming: Ledger) -> Ledger:
    """What two records of one run say together: the newest one, and the one that names the most as
    discarded, which a later run may have written in its name."""
    most = {
        name: max(getattr(newest.readings, name), getattr(naming.readings, name))
        for name in Readings.__slots__
    }
    return replace(
        newest,
        n=max(newest.n, naming.n),
        stored=tuple(union(newest.stored, naming.stored)),
        readings=Readings(**most),
        discarded=naming.discarded,
        previous=newest.previous or naming.previous,
        final=newest.final or naming.final,
    )


def outermost(ranges: Iterable[EvictedRange]) -> list[EvictedRange]:
    """The sequences of a stream that were discarded, from all that is said of it. What is named only grows:
    of two ranges the one that holds the other says it."""
    kept: list[EvictedRange] = []
    for sequences in sorted(ranges, key=lambda each: (each[0], -each[1], -each[2])):
        if not kept or sequences[1] > kept[-1][1]:
            kept.append(sequences)
    return kept
