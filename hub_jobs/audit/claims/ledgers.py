"""What the leaves claim in the ledger records of bronze: of every run the newest record and the one that
names most as discarded; the discarded sequences; lost stores; and records that can't be used. Pure.

A leaf names what it discarded before it knows that the hub has it, so it may name what arrived all the same:
the caller subtracts what the tables hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from agent.contract import ContractError, Ledger, Previous, Readings, parse_ledger
from hub_jobs.audit.claims import ledgers
from hub_jobs.tables.ranges import union

Named = tuple[int, int, int, str]
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
"""The columns of bronze that tell."""

NAMED_AT_ONCE: Final = 10_000
"""Ranges of a stream that are held before those that lie in others are dropped; a record names 1,000."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_MICROSECOND: Final = timedelta(microseconds=1)

Run = tuple[str, str, str]
"""Domain, class and run."""

Source = tuple[str, str]
"""A leaf's stream and its identity."""

Place = tuple[int, int]
"""Where a message of a source stands: when it arrived at the hub, in epoch microseconds, and its sequence in
the leaf's stream."""


@dataclass(frozen=True, slots=True)
class Unusable:
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
    where an agent of an earlier release told of it. One copy may be restored twice, with as many messages
    stored in between as before."""

    origin: Origin
    kept: int
    last: int
    at: int = 0


@dataclass(slots=True)
class Lost:
    """What leaves said of stores that were lost or put back: up to which sequence a lost stream is known to
    have been filled, and of each end that is gone, the place in each source of the first record that knows of
    it. What stands in the stream above that one and arrived before it is of the store that was replaced."""

    streams: dict[Origin, int] = field(default_factory=dict)
    tails: dict[LostEnd, dict[Source, Place]] = field(default_factory=dict)

    def hear(self, ledger: Ledger, source: Source | None = None, place: Place = (0, 0)) -> None:
        """Take in what a record says, which stands at this place of a source."""
        for store in ledger.lost:
            origin = (ledger.domain, ledger.cls, store.created)
            if store.kept is None:
                self.streams[origin] = max(store.last, self.streams.get(origin, 0))
            else:
                told = self.tails.setdefault(LostEnd(origin, store.kept, store.last, store.at), {})
                if source is not None:
                    told[source] = min(place, told.get(source, place))

    def ends(self, source: Source) -> dict[Place, list[LostEnd]]:
        """The ends that records of a source know to be gone, by the place of the first that knows of them.

        One without its time that is told of later than the same with its time is no other: the agent was
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

    def join(self, other: Lost) -> None:
        """Take in what other records say."""
        for origin, last in other.streams.items():
            self.streams[origin] = max(last, self.streams.get(origin, 0))
        for tail, places in other.tails.items():
            told = self.tails.setdefault(tail, {})
            for source, place in places.items():
                told[source] = min(place, told.get(source, place))


@dataclass(slots=True)
class Spoken:
    """The records that count, gathered from rows of bronze in any order; `discarded` are the sequences that
    any of them calls discarded, by the stream they were in, and `origins` says from which stream of its leaf
    each source took them."""

    newest: dict[Run, Ledger] = field(default_factory=dict)
    naming: dict[Run, Ledger] = field(default_factory=dict)
    discarded: dict[Origin, set[Named]] = field(default_factory=dict)
    origins: dict[Source, set[Origin]] = field(default_factory=dict)
    lost: Lost = field(default_factory=Lost)
    unusable: list[Unusable] = field(default_factory=list)

    def hear(self, row: Mapping[str, Any]) -> None:
        """Take in a row of bronze that is a ledger record of a known class, with `COLUMNS`."""
        try:
            ledger = parse_ledger(bytes(row["payload"] or b""))
            if (ledger.domain, ledger.cls) != (row["domain"], row["class"]):
                raise ContractError(f"it speaks for {ledger.domain}, class {ledger.cls}")
        except ContractError as error:
            self.unusable.append(Unusable(row["stream"], row["seq"], row["domain"], row["class"], str(error)))
            self._cut()
            return
        self._take(ledger)
        if row["source_identity"] is not None:
            source = (row["source_stream"], row["source_identity"])
            self.origins.setdefault(source, set()).add((ledger.domain, ledger.cls, ledger.stream.created))
            self.lost.hear(ledger, source, ((row["arrived"] - _EPOCH) // _MICROSECOND, row["source_seq"]))
        else:
            self.lost.hear(ledger)

    def join(self, other: Spoken) -> None:
        """Take in what was gathered from other rows."""
        for ledger in (*other.newest.values(), *other.naming.values()):
            self._take(ledger)
        for origin, named in other.discarded.items():
            self._add_discarded(origin, named)
        self.lost.join(other.lost)
        for place, origins in other.origins.items():
            self.origins.setdefault(place, set()).update(origins)
        self.unusable += other.unusable
        self._cut()

    def ledgers(self) -> dict[Run, Ledger]:
        """What the records of each run say together."""
        return {run: ledgers.merged(newest, self.naming[run]) for run, newest in self.newest.items()}

    def gone(self) -> dict[Origin, list[Named]]:
        """The sequences that were discarded, by the stream they were in."""
        return {origin: ledgers.outermost(named) for origin, named in self.discarded.items()}

    def _take(self, ledger: Ledger) -> None:
        run = (ledger.domain, ledger.cls, ledger.run)
        known, naming = self.newest.get(run), self.naming.get(run)
        if known is None or _age(ledger) >= _age(known):
            self.newest[run] = ledger
        if naming is None or _named(ledger) >= _named(naming):
            self.naming[run] = ledger
        if ledger.gone:
            self._add_discarded((ledger.domain, ledger.cls, ledger.stream.created), ledger.gone)

    def _add_discarded(self, origin: Origin, named: Iterable[Named]) -> None:
        # No count of a record grows with them: what devices published is discarded too. So no record is the
        # newest in this, and all of them count.
        known = self.discarded.setdefault(origin, set())
        before = len(known)
        known.update(named)
        if len(known) > max(before, NAMED_AT_ONCE):
            self.discarded[origin] = set(ledgers.outermost(known))

    def _cut(self) -> None:
        if len(self.unusable) > 2 * LISTED:
            self.unusable = self.first_unusable()

    def first_unusable(self) -> list[Unusable]:
        """The first `LISTED` of those that can't be used."""
        return sorted(self.unusable, key=lambda record: (record.stream, record.seq))[:LISTED]


def remembered(ledgers: Iterable[Ledger]) -> dict[Run, Previous]:
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
    return ledger.final, ledger.n, *astuple(ledger.readings)


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


def outermost(ranges: Iterable[Named]) -> list[Named]:
    """The sequences of a stream that were discarded, from all that is said of it. What is named only grows:
    of two ranges the one that holds the other says it."""
    kept: list[Named] = []
    for sequences in sorted(ranges, key=lambda each: (each[0], -each[1], -each[2])):
        if not kept or sequences[1] > kept[-1][1]:
            kept.append(sequences)
    return kept
