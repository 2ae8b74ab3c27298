"""What was found when all had come to rest: the tables, and what the product says of itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent.contract import Ledger

Run = tuple[str | None, str | None, str | None]
"""Domain, class and run."""


class Row(NamedTuple):
    """A row of `readings`; times in microseconds since 1970, `place` is the table's `index`, `text` is as it
    is compared (`numbered.short`)."""

    domain: str | None
    cls: str | None
    device: str | None
    metric: str | None
    value: float | None
    text: str | None
    tags: Mapping[str, str]
    ts_us: int | None
    ts_source: str | None
    run: str | None
    n: int | None
    place: int | None
    arrived_us: int
    source_seq: int | None


class Named(NamedTuple):
    """A row of `quarantine`. `reading` is the device, life and number of a numbered reading, if its excerpt
    shows one."""

    domain: str | None
    cls: str | None
    reading: tuple[str, int, int] | None
    reason: str


@dataclass(frozen=True, slots=True)
class Account:
    """What the audit says of a run, in readings; `run` is None for direct messages."""

    domain: str | None
    cls: str | None
    run: str | None
    accepted: int
    stored: int
    in_readings: int
    missing: int
    doubled: int
    discarded: int
    refused: int
    open_tail: int | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Account:
        """A row of the audit's JSON."""
        named = {name: row[name] for name in cls.__slots__ if name != "cls"}
        return cls(cls=row["class"], **named)


class Gap(NamedTuple):
    """Sequences of a leaf's stream that the audit names as gone, first and last; whether they were
    discarded, which the accounts count too, and whether they went with their store, so that `last` is where
    its agent had seen it last."""

    first: int
    last: int
    discarded: bool = False
    with_store: bool = False


@dataclass(frozen=True, slots=True)
class Audit:
    """What the audit says; `lost` is its exit code 3, `gaps` by domain and class what it names of a leaf's
    stream as gone: of what devices published there nothing else tells which it was."""

    accounts: Sequence[Account]
    findings: Sequence[str] = ()
    lost: bool = False
    gaps: Mapping[tuple[str | None, str | None], Sequence[Gap]] = field(default_factory=dict)

    def gone(self, domain: str, cls: str) -> int:
        """Messages that are named as gone and that no account counts."""
        gaps = self.gaps.get((domain, cls), ())
        return sum(one.last - one.first + 1 for one in gaps if not one.discarded)

    def names(self, domain: str, cls: str, sequence: int) -> bool:
        """Whether a message is named as gone."""
        return any(one.first <= sequence <= one.last for one in self.gaps.get((domain, cls), ()))

    def may_follow(self, domain: str, cls: str, sequence: int) -> bool:
        """Whether a message may have stood behind what an agent had seen of a store that is gone."""
        gaps = self.gaps.get((domain, cls), ())
        return any(one.with_store and one.last < sequence for one in gaps)


@dataclass(slots=True)
class Metrics:
    """What one run of an agent counted, by class; `unaccounted` is the worst of all scrapes, `stored` is
    what inputs with a device behind them had stored when nothing was sent any more; it is only known of
    runs that lived then."""

    stored: dict[str, float] = field(default_factory=dict)
    unaccounted: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All of it. `ledgers` holds the newest record of each run, `metrics` those of each run that was asked;
    `drained_seconds` is how long it took until the hub held all, None where it did not."""

    rows: Sequence[Row]
    quarantine: Sequence[Named]
    audit: Audit
    ledgers: Mapping[Run, Ledger]
    metrics: Mapping[str, Metrics]
    drained_seconds: float | None
