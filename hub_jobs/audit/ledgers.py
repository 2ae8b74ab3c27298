"""Gathers the leaves' claims from the ledger records of bronze. Pure.

A leaf reports a discard before it knows of an arrival at the hub, so callers subtract what the tables hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from agent.contract import ContractError, Doubt, Ledger, Previous, Readings, parse_ledger
from agent.contract.ranges import union
from hub_jobs.audit.account import RunClaims
from hub_jobs.times import micros

EvictedRange = tuple[int, int, int, str]
"""First and last sequence, number of direct messages, reason."""

Origin = tuple[str, str, str]
"""Domain, class, and creation time of the leaf's stream."""

LISTED: Final = 1_000
"""Unusable records that are listed one by one."""

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
"""Columns read from bronze."""

NAMED_AT_ONCE: Final = 10_000
"""Ranges of a stream kept before contained ranges are dropped; a record has up to 1,000."""

_COUNTS: Final = attrgetter(*Readings.__slots__)
"""Names of the reading counts, in order; `astuple` would copy."""

Run = tuple[str, str, str]
"""Domain, class and run."""

Source = tuple[str, str]
"""A leaf's stream and its identity."""

Place = tuple[int, int]
"""A message's arrival at the hub (epoch microseconds) and sequence in the leaf's stream."""


class Unusable(NamedTuple):
    """An unusable record and its fault."""

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
    """The lost end of a stream whose older store was restored.

    Has the stream, the older store's last sequence, the lost last sequence, and the time of detection in
    nanoseconds since 1970. The time separates repeated restores of one copy.
    """

    origin: Origin
    kept: int
    last: int
    at: int = 0


@dataclass(slots=True)
class LostStores:
    """Lost and restored stores by the leaves' reports.

    Keeps the last known sequence of each lost stream, and for each lost end the first record that knows of
    it. A message above that record which arrived earlier is from the replaced store.
    """

    streams: dict[Origin, int] = field(default_factory=dict)
    tails: dict[LostEnd, dict[Source, Place]] = field(default_factory=dict)

    def add(self, ledger: Ledger, source: Source | None = None, place: Place = (0, 0)) -> None:
        """Add the claims of a record at this place of a source."""
        for store in ledger.lost:
            origin = (ledger.domain, ledger.cls, store.created)
            if store.kept is None:
                self.join(LostStores({origin: store.last}))
            else:
                end = LostEnd(origin, store.kept, store.last, store.at)
                self.join(LostStores(tails={end: {} if source is None else {source: place}}))

    def ends(self, source: Source) -> dict[Place, list[LostEnd]]:
        """Return the lost ends of a source by the place of the first record."""
        found: dict[Place, list[LostEnd]] = {}
        for tail, places in sorted(self.tails.items()):
            if source in places:
                found.setdefault(places[source], []).append(tail)
        return found

    def join(self, other: LostStores) -> None:
        for origin, last in other.streams.items():
            self.streams[origin] = max(last, self.streams.get(origin, 0))
        for tail, found in other.tails.items():
            places = self.tails.setdefault(tail, {})
            for source, place in found.items():
                places[source] = min(place, places.get(source, place))


class LedgerClaims(NamedTuple):
    """The claims of all records."""

    ledgers: dict[Run, Ledger]
    """The newest record per run, merged with the one that lists the most discards."""
    remembered: dict[Run, Previous]
    """Claims of runs about their previous run."""
    gone: dict[Origin, list[EvictedRange]]
    """Discarded sequences by stream."""
    origins: dict[Source, set[Origin]]
    """The leaf stream of each source."""
    lost: LostStores
    """Contents of lost or restored stores."""
    unreadable: list[str]
    """A sentence per unusable record."""
    doubts: Mapping[Run, Sequence[Doubt]] = MappingProxyType({})
    """Possibly doubled or missing lines, by the first run that reported them."""

    def of(self, run: Run) -> RunClaims:
        """Return the claims about one run."""
        return RunClaims(self.ledgers.get(run), self.remembered.get(run))


@dataclass(slots=True)
class LedgerRecords:
    """The relevant records, gathered in any order."""

    newest: dict[Run, Ledger] = field(default_factory=dict)
    naming: dict[Run, Ledger] = field(default_factory=dict)
    """The record per run with the most discards."""
    discarded: dict[Origin, set[EvictedRange]] = field(default_factory=dict)
    """Discarded sequences by stream."""
    origins: dict[Source, set[Origin]] = field(default_factory=dict)
    """The leaf stream of each source."""
    lost: LostStores = field(default_factory=LostStores)
    unusable: list[Unusable] = field(default_factory=list)
    doubts: dict[Run, list[Doubt]] = field(default_factory=dict)
    """The newest doubt per place, at most `LISTED`, by run; later runs repeat them."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row of bronze (`COLUMNS`) with a ledger record of a known class."""
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
        """Return the claims of all records."""
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
        """Return the first `LISTED` unusable records."""
        return sorted(self.unusable, key=lambda record: (record.stream, record.seq))[:LISTED]


def _first_named(doubts: Mapping[Run, Sequence[Doubt]]) -> dict[Run, list[Doubt]]:
    """Assign doubts to the first run of their class that reported them; run names sort by age."""
    known: set[tuple[str, str, Doubt]] = set()
    first: dict[Run, list[Doubt]] = {}
    for domain, cls, run in sorted(doubts):
        for doubt in doubts[domain, cls, run]:
            if (domain, cls, doubt) not in known:
                known.add((domain, cls, doubt))
                first.setdefault((domain, cls, run), []).append(doubt)
    return first


def remembered_runs(ledgers: Iterable[Ledger]) -> dict[Run, Previous]:
    """Return each run's claims about its previous run."""
    found: dict[Run, Previous] = {}
    for ledger in ledgers:
        if ledger.previous is not None:
            run = (ledger.domain, ledger.cls, ledger.previous.run)
            known = found.get(run)
            if known is None or known.n <= ledger.previous.n:
                found[run] = ledger.previous
    return found


def _age(ledger: Ledger) -> tuple[bool, int, *tuple[int, ...]]:
    """Return a sort key of a run's records. Its parts only grow, so equal keys mean equal claims about
    batches.
    """
    return ledger.final, ledger.n, *_COUNTS(ledger.readings)


def _named(ledger: Ledger) -> tuple[int, tuple[bool, int, *tuple[int, ...]]]:
    return ledger.readings.discarded, _age(ledger)


def merged(newest: Ledger, naming: Ledger) -> Ledger:
    """Merge the newest record of a run with the one listing the most discards, which a later run may have
    written.
    """
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
    """Return discarded ranges without those contained in others; reports only grow."""
    kept: list[EvictedRange] = []
    for sequences in sorted(ranges, key=lambda each: (each[0], -each[1], -each[2])):
        if not kept or sequences[1] > kept[-1][1]:
            kept.append(sequences)
    return kept
