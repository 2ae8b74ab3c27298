"""What leaves say in the ledger records of bronze: of every run the newest one and the one that names most as
discarded, and the records that can't be used. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agent.contract import ContractError, Ledger, Previous, parse_ledger
from hub_jobs.transforms import discards

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
)
"""The columns of bronze that tell."""

Run = tuple[str, str, str]
"""Domain, class and run."""


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


@dataclass(slots=True)
class Spoken:
    """The records that count, gathered from rows of bronze in any order; `origins` says from which stream of
    its leaf each source, a stream and its identity, took them, `lost` of streams whose store was lost up to
    which sequence they are known to have acknowledged."""

    newest: dict[Run, Ledger] = field(default_factory=dict)
    naming: dict[Run, Ledger] = field(default_factory=dict)
    origins: dict[tuple[str, str], set[discards.Origin]] = field(default_factory=dict)
    lost: dict[discards.Origin, int] = field(default_factory=dict)
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
            place = (row["source_stream"], row["source_identity"])
            self.origins.setdefault(place, set()).add((ledger.domain, ledger.cls, ledger.stream.created))

    def join(self, other: Spoken) -> None:
        """Take in what was gathered from other rows."""
        for ledger in (*other.newest.values(), *other.naming.values()):
            self._take(ledger)
        for origin, last in other.lost.items():
            self.lost[origin] = max(last, self.lost.get(origin, 0))
        for place, origins in other.origins.items():
            self.origins.setdefault(place, set()).update(origins)
        self.unusable += other.unusable
        self._cut()

    def ledgers(self) -> dict[Run, Ledger]:
        """What the records of each run say together."""
        return {run: discards.merged(one, self.naming[run]) for run, one in self.newest.items()}

    def gone(self) -> dict[discards.Origin, list[discards.Named]]:
        """The sequences that were discarded, by the stream they were in."""
        return discards.gone([*self.newest.values(), *self.naming.values()])

    def _take(self, ledger: Ledger) -> None:
        run = (ledger.domain, ledger.cls, ledger.run)
        known, naming = self.newest.get(run), self.naming.get(run)
        if known is None or _age(ledger) >= _age(known):
            self.newest[run] = ledger
        for one in ledger.lost:
            origin = (ledger.domain, ledger.cls, one.created)
            self.lost[origin] = max(one.last, self.lost.get(origin, 0))
        if naming is None or _named(ledger) >= _named(naming):
            self.naming[run] = ledger

    def _cut(self) -> None:
        if len(self.unusable) > 2 * LISTED:
            self.unusable = self.first_unusable()

    def first_unusable(self) -> list[Unusable]:
        """The first `LISTED` of those that can't be used."""
        return sorted(self.unusable, key=lambda one: (one.stream, one.seq))[:LISTED]


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


def _age(ledger: Ledger) -> tuple[bool, int, int, int]:
    return ledger.final, ledger.n, ledger.readings.accepted, ledger.readings.stored


def _named(ledger: Ledger) -> tuple[int, tuple[bool, int, int, int]]:
    return ledger.readings.discarded, _age(ledger)
