"""The account of one run: what its agent said against what arrived. Pure.

Its agent promised what it acknowledged as stored. A run that was killed never says how it ended; what it
had only accepted in memory was not promised and is an open tail, with its size as far as it is known, but
no loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from agent.contract import LATE, Ledger, Previous, Readings
from hub_jobs.transforms.discards import both
from hub_jobs.transforms.ranges import Range, size, text, union, without


@dataclass(frozen=True, slots=True)
class Arrived:
    """What the tables hold of a run: the numbers of its batches in bronze, and readings by where they are.
    `missing` and `doubled` are between bronze and readings; `findings` name them. `dead` letters are in
    bronze and quarantine, and counted in none of the others."""

    batches: Sequence[Range] = ()
    in_bronze: int = 0
    pending: int = 0
    in_readings: int = 0
    quarantined: int = 0
    missing: int = 0
    doubled: int = 0
    findings: tuple[str, ...] = ()
    kept: int = 0
    """Readings of batches that arrived although their leaf says that it discarded them."""
    dead: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """A row of the audit, in readings. `on_the_way` is null where it is not known. `lost` says whether
    something is gone without a reason, or doubled."""

    domain: str | None
    cls: str | None
    run: str | None
    accepted: int
    stored: int
    in_bronze: int
    pending: int
    in_readings: int
    quarantined: int
    missing: int
    doubled: int
    discarded: int
    refused: int
    open_tail: int | None
    findings: list[str] = field(default_factory=list)
    dead: int = 0
    on_the_way: int | None = None

    @property
    def lost(self) -> bool:
        """Whether the promise is broken."""
        return self.missing > 0 or self.doubled > 0


def of_run(
    domain: str, cls: str, run: str, ledger: Ledger | None, previous: Previous | None, arrived: Arrived
) -> Account:
    """The account of a run from its newest ledger record, what the next run remembered of it, and what
    arrived."""
    said = _said(ledger, previous)
    known = union(arrived.batches)
    unexplained = never_came_of(ledger, previous, known)
    # Only what is named is explained.
    discarded = max(sum(one[2] for one in ledger.discarded) - arrived.kept, 0) if ledger else 0
    short = said.stored - arrived.in_bronze - discarded
    # Of a batch that never came only a bound is known: it held a reading at least.
    never_came = max(short, size(unexplained), 0)
    closed = (ledger is not None and ledger.final) or (previous is not None and previous.closed)
    account = Account(
        domain=domain,
        cls=cls,
        run=run,
        accepted=max(said.accepted, arrived.in_bronze + arrived.dead),
        stored=max(said.stored, arrived.in_bronze),
        in_bronze=arrived.in_bronze,
        pending=arrived.pending,
        in_readings=arrived.in_readings,
        quarantined=arrived.quarantined,
        missing=arrived.missing + never_came,
        doubled=arrived.doubled,
        discarded=discarded,
        refused=said.refused,
        open_tail=None if closed else _tail(said, arrived),
        findings=list(arrived.findings),
        dead=max(said.dead, arrived.dead),
    )
    findings = _findings(account, ledger, previous, unexplained, known, never_came, arrived.dead)
    return replace(account, findings=account.findings + findings)


def with_announced(account: Account, said: Readings | None, *, flows: bool, unheard: bool = False) -> Account:
    """The account of a run of which its leaf announced these counts last, None for a run before that one,
    while something of its stream still flows to bronze or nothing does. With `unheard` batches, which no link
    will bring, it is not known how much of the rest is on its way."""
    if said is None or not flows:
        return replace(account, on_the_way=None if flows else 0)
    settled = account.in_bronze + account.discarded + account.missing
    stored = max(account.stored, said.stored)
    accepted = max(account.accepted, said.accepted)
    tail = account.open_tail
    if tail is not None:
        refused, dead = max(account.refused, said.refused), max(account.dead, said.dead)
        tail = max(accepted - stored - refused - dead, 0)
    return replace(
        account,
        accepted=accepted,
        stored=stored,
        open_tail=tail,
        on_the_way=None if unheard else max(stored - settled, 0),
    )


def unheard(ledger: Ledger | None, arrived: Sequence[Range]) -> list[Range]:
    """The numbers of batches below the highest that came which did not come, and of which no record of the
    run tells yet."""
    known = union(arrived)
    told: list[Range] = []
    if ledger is not None:
        refused = ((first, last) for first, last, _ in ledger.refused)
        told = union(ledger.stored, refused, ((first, last) for first, last, _, _ in ledger.discarded))
    return without(without([(1, known[-1][1])], known), told) if known else []


def never_came_of(ledger: Ledger | None, previous: Previous | None, arrived: Sequence[Range]) -> list[Range]:
    """The numbers of batches that were acknowledged as stored, never came, and were not called discarded."""
    explained = union((first, last) for first, last, _, _ in (ledger.discarded if ledger else ()))
    return without(without(_promised(ledger, previous), union(arrived)), explained)


def of_direct(
    domain: str | None,
    cls: str | None,
    arrived: Arrived,
    discarded: Sequence[tuple[int, int, int, str]] = (),
) -> Account:
    """The account of messages that no run speaks for. `discarded` are sequences of the leaf's stream with the
    direct messages that stood there; of these `arrived.kept` came all the same."""
    lost = max(sum(messages for _, _, messages, _ in discarded) - arrived.kept, 0)
    return Account(
        domain=domain,
        cls=cls,
        run=None,
        accepted=arrived.in_bronze + lost,
        stored=arrived.in_bronze + lost,
        in_bronze=arrived.in_bronze,
        pending=arrived.pending,
        in_readings=arrived.in_readings,
        quarantined=arrived.quarantined,
        missing=arrived.missing,
        doubled=arrived.doubled,
        discarded=lost,
        refused=0,
        open_tail=None,
        findings=[*arrived.findings, *_discarded(f"{domain}, class {cls}", arrived.kept, discarded)],
    )


def _discarded(name: str, kept: int, discarded: Sequence[tuple[int, int, int, str]]) -> Iterator[str]:
    for first, last, messages, reason in discarded:
        yield (
            f"{name}: sequences {first}-{last} of its stream, {messages} messages of devices among them, "
            f"were discarded at the edge: {reason}"
        )
    if kept:
        yield f"{name}: {kept} of these messages had arrived"


def _said(ledger: Ledger | None, previous: Previous | None) -> Readings:
    """The most that was said of a run: counts only grow."""
    given = [one.readings for one in (ledger, previous) if one is not None]
    most = {name: max((getattr(one, name) for one in given), default=0) for name in Readings.__slots__}
    return Readings(**most)


def _promised(ledger: Ledger | None, previous: Previous | None) -> list[Range]:
    """Numbers of batches that are known to have been acknowledged. Between the last ledger record and the
    last acknowledgement that the next run remembered, only the last number is."""
    stored = list(ledger.stored) if ledger else []
    if previous is not None and previous.n:
        stored.append((previous.n, previous.n))
    return union(stored)


def _tail(said: Readings, arrived: Arrived) -> int:
    settled = max(said.stored, arrived.in_bronze) + said.refused
    settled += max(said.dead, arrived.dead)
    return max(said.accepted - settled, 0)


def _findings(
    account: Account,
    ledger: Ledger | None,
    previous: Previous | None,
    unexplained: Sequence[Range],
    known: Sequence[Range],
    never_came: int,
    arrived_dead: int,
) -> list[str]:
    found = []
    name = f"{account.domain}, class {account.cls}, run {account.run}"
    holes = _unsettled(ledger, previous, known)
    if unexplained and (holes == unexplained or _names_all(ledger, previous, unexplained, never_came)):
        found.append(
            f"{name}: batches {text(unexplained)} were acknowledged as stored and never came, "
            f"{never_came} readings or more"
        )
    elif unexplained:
        found.append(
            f"{name}: batches {text(holes)} never came, {never_came} readings or more; "
            f"that {text(unexplained)} were acknowledged as stored is certain, "
            "of the others only the sum of readings is"
        )
    elif never_came:
        found.append(
            f"{name}: {never_came} readings that were acknowledged as stored never came; "
            f"batches that did not come: {text(holes) or 'none'}"
        )
    for first, last, readings, reason in ledger.discarded if ledger else ():
        came = both([(first, last)], known)
        but = f"; batches {text(came)} of them had arrived" if came else ""
        found.append(
            f"{name}: batches {first}-{last}, {readings} readings, were discarded at the edge: {reason}{but}"
        )
    if (late := _said(ledger, previous).refused_late) > 0:
        rows = ledger.refused if ledger else ()
        named = [f"{first}-{last} ({reason})" for first, last, reason in rows if LATE in reason]
        found.append(
            f"{name}: {late} readings were acknowledged as accepted and could not be stored; "
            f"batches {', '.join(named) or 'that no record of the run names'}"
        )
    if account.dead > arrived_dead:
        found.append(
            f"{name}: {account.dead} dead letters, of which {arrived_dead} came; "
            "the others are on their way, or were counted at the edge and not kept"
        )
    if account.open_tail is not None:
        found.append(f"{name}: open tail, {_tail_text(account.open_tail, ledger, previous)}")
    return found


def _unsettled(ledger: Ledger | None, previous: Previous | None, known: Sequence[Range]) -> list[Range]:
    """Batches up to the last number heard of that did not come and of which no reason was said."""
    last = max(previous.n if previous else 0, ledger.n if ledger else 0)
    refused = [(low, high) for low, high, _ in ledger.refused] if ledger else []
    discarded = [(low, high) for low, high, _, _ in ledger.discarded] if ledger else []
    return without(without([(1, last)], known), union(refused, discarded))


def _names_all(
    ledger: Ledger | None, previous: Previous | None, named: Sequence[Range], never_came: int
) -> bool:
    """Whether the named batches can be all that is missing: a reading each makes up the sum, or the ledger,
    which has every number, knows of as many stored readings as anybody."""
    complete = ledger is not None and ledger.readings.stored >= _said(ledger, previous).stored
    return complete or never_came <= size(named)


def _tail_text(tail: int, ledger: Ledger | None, previous: Previous | None) -> str:
    if ledger is None and previous is None:
        return "no record of it came; what it accepted beyond what arrived is not known"
    if previous is not None:
        return f"it ended without closing; {tail} readings were accepted and not acknowledged as stored"
    return f"it has not closed; {tail} readings were accepted and not settled when it was last heard of"
