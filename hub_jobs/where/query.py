"""Makes a domain's accounts by class, with messages waiting at the hub."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from agent.contract import WaitingMessage
from agent.contract.ranges import Range, size, text, union, without
from hub_jobs.audit import accounts
from hub_jobs.audit.account import Account, Arrived
from hub_jobs.audit.all_accounts import placed
from hub_jobs.audit.bronze_contents import BronzeContents
from hub_jobs.audit.ledgers import LedgerClaims, LedgerRecords, LostStores, Run
from hub_jobs.audit.rows import lookups, totals
from hub_jobs.audit.rows.mismatches import StrayRows
from hub_jobs.audit.rows.pieces import ScanPart
from hub_jobs.audit.rows.survey import survey
from hub_jobs.audit.stream_gaps import find_gaps
from hub_jobs.tables import seen
from hub_jobs.tables.delta import TableError
from hub_jobs.tables.spaces import SeenNumbers, batch_space, joined, source_space
from hub_jobs.where.device import DeviceCounts, count_device, refused
from hub_jobs.where.lake import Lake, Waiting, held_of

_UNKNOWN_CLASS = "-"
"""Class of messages with a foreign subject."""


@dataclass(slots=True)
class Sums:
    """Readings of one class.

    `accepted`, `refused` and `open_tail` are None for a time span, which ledgers do not cover. `at_hub`
    arrived; of these `waiting` are not in bronze, `pending` not refined. `never_came` is a lower bound of
    acknowledged readings that did not arrive. `missing` and `doubled` compare bronze with readings.
    """

    accepted: int | None = 0
    stored: int = 0
    at_hub: int = 0
    in_bronze: int = 0
    in_readings: int = 0
    quarantined: int = 0
    waiting: int = 0
    pending: int = 0
    refused: int | None = 0
    refused_late: int = 0
    discarded: int = 0
    dead: int = 0
    open_tail: int | None = 0
    never_came: int = 0
    missing: int = 0
    doubled: int = 0

    def add(self, **counts: int) -> None:
        """Add counts; unknown ones stay unknown."""
        for name, count in counts.items():
            if (known := getattr(self, name)) is not None:
                setattr(self, name, known + count)


@dataclass(slots=True)
class DomainFindings:
    """Results by class, and sentences on losses (`lost`), explained gaps (`explained`) and quarantine
    reasons.
    """

    classes: dict[str, Sums] = field(default_factory=dict)
    accounts: dict[tuple[str, str], Account] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    explained: list[str] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    gaps: list[str] = field(default_factory=list)
    """Losses that are leaf stream sequences, without known time."""
    device: DeviceCounts | None = None


def look(lake: Lake, part: ScanPart, waiting: Waiting, device: str | None = None) -> DomainFindings:
    """Count the domain of `part`. Raises `TableError`."""
    try:
        return _Look(lake, part, waiting).found(device)
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"the tables in {lake.path} can't be read: {error}") from error


class _Look:
    def __init__(self, lake: Lake, part: ScanPart, waiting: Waiting) -> None:
        self._domain = str(part.domain)
        self._part = part
        self._tables = lake.tables(part)
        surveyed = survey(self._tables, {})
        here = joined(surveyed.before, surveyed.after)
        everything = seen.load(lake.path, lake.bronze, lake.known).numbers()
        self._held = held_of(self._domain, here, lake.cache.seen, everything)
        self._messages = _new(waiting.messages, self._domain, here)
        self._claims = _with_waiting(surveyed.records, self._domain, waiting).claims()
        self._found = DomainFindings(explained=self._claims.unreadable)

    def found(self, device: str | None) -> DomainFindings:
        found = self._found
        nothing = LedgerClaims({}, {}, {}, {}, LostStores(), [])
        counts = totals.total_rows(self._tables, nothing, self._held)
        there = {self._run(message) for message in self._messages if message.run is not None}
        there |= counts.runs.keys() | counts.strays.keys() | self._held.gone_runs()
        for key in sorted(there | self._claims.ledgers.keys() | self._claims.remembered.keys()):
            self._count_run(key, counts.runs.get(key, Arrived()), counts.strays.get(key))
        for (_, cls), arrived in counts.classes.items():
            self._count_direct(cls or _UNKNOWN_CLASS, arrived)
        for message in self._wanted(None):
            self._count_direct(message.cls, Arrived(), waiting=1)
        found.explained += counts.unnamed
        found.lost += [*counts.unexplained, *map(str, self._tables.unreadable)]
        # Which sequences are of a span of time is unknown.
        if not self._part.is_span:
            self._gaps()
        found.reasons = dict(Counter(reason for _, reason in refused(self._tables)))
        if device is not None:
            found.device = count_device(self._tables, device)
        return found

    def _count_run(self, key: Run, held: Arrived, strays: StrayRows | None) -> None:
        _, cls, run = key
        mine = self._wanted(key)
        alive = sum(message.readings for message in mine if not message.dead)
        dead = held.dead + sum(message.readings for message in mine if message.dead)
        every = [
            message.n for message in self._messages if self._run(message) == key and message.n is not None
        ]
        came = union(self._held.here.ranges(batch_space(*key)), ((n, n) for n in every))
        sums = self._found.classes.setdefault(cls, Sums())
        at_hub = held.in_bronze + alive
        sums.add(at_hub=at_hub, waiting=alive)
        self._add_tables(sums, held)
        claims = self._claims.of(key)
        if self._part.is_span:
            self._unknown_to_ledgers(sums)
            never = self._of_span(key, claims.never_came(came))
            sums.add(stored=at_hub + size(never), never_came=size(never), dead=dead)
            if never:
                self._found.lost.append(
                    f"{self._domain}, class {cls}, run {run}: batches {text(never)} of about then were "
                    "acknowledged as stored and never came"
                )
            return
        counted = Arrived(in_bronze=at_hub, dead=dead)
        whole = placed(self._tables, claims, self._held, key, counted, strays)
        kept = whole.kept + self._waiting_of(key, claims.discarded)
        account = accounts.of_run(*key, claims, replace(whole, batches=came, kept=kept))
        sums.add(
            accepted=account.accepted,
            stored=account.stored,
            refused=account.refused,
            refused_late=claims.readings.refused_late,
            discarded=account.discarded,
            dead=account.dead,
            open_tail=account.open_tail or 0,
            never_came=account.missing,
        )
        self._found.accounts[cls, run] = account
        # An open tail of nothing, which comes last, is most often a run that goes on.
        findings = account.findings[:-1] if account.open_tail == 0 else account.findings
        (self._found.lost if account.lost else self._found.explained).extend(findings)

    def _add_tables(self, sums: Sums, held: Arrived) -> None:
        names = ("in_bronze", "pending", "in_readings", "quarantined", "missing", "doubled")
        sums.add(**{name: getattr(held, name) for name in names})
        self._found.lost += held.findings

    def _count_direct(self, cls: str, held: Arrived, waiting: int = 0) -> None:
        """Add direct messages, one reading each; without a run, arrivals are all that is known
        as accepted.
        """
        sums = self._found.classes.setdefault(cls, Sums())
        if self._part.is_span:
            self._unknown_to_ledgers(sums)
        came = held.in_bronze + waiting
        sums.add(accepted=came, stored=came, at_hub=came, waiting=waiting)
        self._add_tables(sums, held)

    @staticmethod
    def _unknown_to_ledgers(sums: Sums) -> None:
        sums.accepted = sums.refused = sums.open_tail = None

    def _wanted(self, key: Run | None) -> list[WaitingMessage]:
        mine = [
            message
            for message in self._messages
            if (None if message.run is None else self._run(message)) == key
        ]
        return [message for message in mine if self._part.within(message.moment)]

    def _run(self, message: WaitingMessage) -> Run:
        return self._domain, message.cls, str(message.run)

    def _waiting_of(self, key: Run, numbers: Sequence[Range]) -> int:
        mine = [message for message in self._messages if self._run(message) == key and not message.dead]
        return sum(
            message.readings for message in mine if not without([(message.n or 0, message.n or 0)], numbers)
        )

    def _of_span(self, key: Run, never: Sequence[Range]) -> list[Range]:
        """Return missing batches whose predecessor (or for a run's first, successor) is in the span."""
        if not never:
            return []
        known = dict(zip(*lookups.moments(self._tables, [key]).get(key, ([], [])), strict=True))
        known |= {
            message.n: message.moment for message in self._messages if self._run(message) == key and message.n
        }
        numbers = sorted(known)
        if not numbers:
            return []
        near = (numbers[max(bisect_left(numbers, first) - 1, 0)] for first, _ in never)
        return [span for span, at in zip(never, near, strict=True) if self._part.within(known[at])]

    def _gaps(self) -> None:
        mine = {source_space(*source) for source in self._claims.origins}
        here, gone = (
            SeenNumbers({name: ranges for name, ranges in contents.spaces.items() if _counts(name, mine)})
            for contents in (self._held.here, self._held.gone)
        )
        held = BronzeContents(here, gone)
        for gap in find_gaps(self._tables.bronze, held, self._claims, {}, self._tables.unreadable):
            if gap.kind == "source":
                (self._found.lost if gap.lost else self._found.explained).append(str(gap))
                if gap.lost:
                    self._found.gaps.append(str(gap))


def _counts(space: str, sources: Container[str]) -> bool:
    return space in sources or space.startswith("hub/")


def _with_waiting(records: LedgerRecords, domain: str, waiting: Waiting) -> LedgerRecords:
    for ledger in waiting.ledgers:
        row = {"domain": domain, "class": ledger.cls, "stream": ledger.stream, "seq": ledger.seq}
        records.add({**row, "payload": ledger.payload, "source_stream": None, "source_identity": None})
    return records


def _new(messages: Sequence[WaitingMessage], domain: str, known: SeenNumbers) -> list[WaitingMessage]:
    """Return the waiting messages that repeat neither bronze nor each other."""
    fresh = []
    met: set[tuple[str, str, int]] = set()
    for message in messages:
        if message.run is not None and message.n is not None:
            key = (message.cls, message.run, message.n)
            ranges = known.ranges(batch_space(domain, message.cls, message.run))
            if key in met or not without([(message.n, message.n)], ranges):
                continue
            met.add(key)
        fresh.append(message)
    return fresh
