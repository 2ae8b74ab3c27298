"""The account of a run beside what truly happened: numbers that are stored, refused or never answered, agents
that are killed or closed, records and batches that come late, in any order, twice or not at all. The audit
calls nothing lost that is not, and everything that somebody told it was stored."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from agent.contract import Ledger, Previous, StreamState
from agent.contract.ranges import union
from agent.leaf.ledger import ClassLedger
from agent.leaf.publish.batch import TAKEN
from hub_jobs.audit.account import Account, Arrived, RunClaims
from hub_jobs.audit.accounts import of_run
from hub_jobs.audit.ledgers import LedgerRecords
from tests.harness.examples import machine

DOMAIN, CLS = "edge-1", "normal"
STREAM = StreamState("made", 1, 1)
NEWEST_FIRST = 0
"""The order of records in which it shows most whether the newest is told by what it says."""


@dataclass
class Truth:
    """A run as it was: its ledger, and of each number the readings of its batch by what became of it.
    `unanswered` may be stored or not; `came` are the numbers in bronze."""

    name: str
    ledger: ClassLedger
    counts: dict[int, int] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    unanswered: set[int] = field(default_factory=set)
    stored: set[int] = field(default_factory=set)
    came: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    heard: list[Ledger] = field(default_factory=list)
    closed: bool = False

    def readings(self, numbers: set[int]) -> int:
        """How many readings these hold."""
        return sum(self.counts[n] for n in numbers - self.dead)


class Audit(RuleBasedStateMachine):
    """Runs, one after the other, each of which remembers the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Truth] = []
        self.on_the_way: list[tuple[Truth, int | Ledger]] = []
        self.begin(None)

    def begin(self, previous: Previous | None) -> None:
        name = f"01890a5d-ac96-774b-bcce-b3020990{len(self.runs):04d}"
        self.runs.append(Truth(name, ClassLedger(DOMAIN, CLS, name)))
        self.runs[-1].ledger.previous = previous

    @property
    def run(self) -> Truth:
        return self.runs[-1]

    @rule(count=st.integers(1, 5), dead=st.booleans())
    def a_batch_is_sent(self, count: int, dead: bool) -> None:
        run = self.run
        n = run.ledger.number(count)
        run.counts[n] = count
        run.dead |= {n} if dead else set()
        run.unanswered.add(n)

    @precondition(lambda self: self.run.unanswered)
    @rule(which=st.integers(0, 9))
    def it_is_stored_and_told_so(self, which: int) -> None:
        run, n = self.one(which)
        (run.ledger.store_dead if n in run.dead else run.ledger.store)(n, run.counts[n])
        run.acked.add(n)
        run.unanswered.remove(n)
        self.store(run, n)

    @precondition(lambda self: self.run.unanswered)
    @rule(which=st.integers(0, 9))
    def it_is_stored_and_nobody_hears(self, which: int) -> None:
        self.store(*self.one(which))

    @precondition(lambda self: self.run.unanswered - self.run.stored)
    @rule(which=st.integers(0, 9))
    def it_is_refused(self, which: int) -> None:
        run, n = self.one(which)
        if n not in run.stored:
            run.unanswered.remove(n)
            run.ledger.refuse(n, run.counts[n], "stream_full")

    @precondition(lambda self: self.run.unanswered - self.run.stored)
    @rule(which=st.integers(0, 9))
    def its_id_is_taken_and_it_gets_another_number(self, which: int) -> None:
        run, n = self.one(which)
        if n not in run.stored:
            run.unanswered.remove(n)
            run.ledger.refuse(n, 0, TAKEN)
            again = run.ledger.number(0)
            run.counts[again], run.counts[n] = run.counts[n], 0
            run.dead |= {again} if n in run.dead else set()
            run.unanswered.add(again)

    def one(self, which: int) -> tuple[Truth, int]:
        waiting = sorted(self.run.unanswered)
        return self.run, waiting[which % len(waiting)]

    def store(self, run: Truth, n: int) -> None:
        if n not in run.stored:
            run.stored.add(n)
            self.on_the_way.append((run, n))

    @rule()
    def a_record_is_stored(self) -> None:
        self.on_the_way.append((self.run, self.run.ledger.record(STREAM)))

    @rule(known=st.booleans(), closed=st.booleans())
    def the_agent_ends_and_another_begins(self, known: bool, closed: bool) -> None:
        """Killed or closed; its state file is there or lost with the machine."""
        run = self.run
        run.closed = closed and not run.unanswered
        if run.closed:
            self.on_the_way.append((run, run.ledger.record(STREAM, final=True)))
        told = Previous(run.name, run.ledger.highest_stored, run.ledger.readings, run.closed)
        self.begin(told if known else None)
        self.a_record_is_stored()

    @precondition(lambda self: self.on_the_way)
    @rule(
        which=st.integers(0, 30),
        lost=st.booleans(),
        twice=st.booleans(),
    )
    def something_comes_or_is_lost(self, which: int, lost: bool, twice: bool) -> None:
        run, what = self.on_the_way.pop(which % len(self.on_the_way))
        if isinstance(what, int):
            (run.lost if lost else run.came).add(what)
        elif not lost:
            run.heard += [what] * (1 + twice)

    @rule(order=st.integers(NEWEST_FIRST, 99), parts=st.integers(1, 3))
    def the_audit_runs(self, order: int, parts: int) -> None:
        said = self.records(order, parts)
        claims = said.claims()
        for run in self.runs:
            key = (DOMAIN, CLS, run.name)
            came = union((n, n) for n in run.came)
            arrived = Arrived(
                batches=came,
                in_bronze=run.readings(run.came),
                in_readings=run.readings(run.came),
                dead=sum(run.counts[n] for n in run.came & run.dead),
            )
            self.compare(run, claims.of(key), of_run(*key, claims.of(key), arrived))

    def compare(self, run: Truth, claims: RunClaims, found: Account) -> None:
        ledger, previous = claims
        missing = run.acked - run.came
        ranges = [one for record in run.heard for one in record.stored]
        told = {n for low, high in ranges for n in range(low, high + 1)}
        told |= {previous.n} if previous is not None and previous.n else set()
        assert told <= run.acked
        assert found.missing <= sum(run.counts[n] for n in missing), "nothing is called missing that is there"
        assert found.missing >= len(told - run.came), "what was told as stored and did not come is missing"
        never = claims.never_came(union((n, n) for n in run.came))
        assert {n for low, high in never for n in range(low, high + 1)} == told - run.came
        known = max((record.readings.stored for record in claims if record is not None), default=0)
        assert found.missing >= known - run.readings(run.came)
        if ledger is not None and ledger.final:
            assert found.missing >= run.readings(missing), "after the last record all of it is known"
            assert (ledger.n, found.open_tail) == (len(run.counts), None)
            settled = found.in_bronze + found.missing + found.refused + found.dead
            assert found.accepted <= settled
        if ledger is None and previous is None:
            assert found.open_tail is not None
        named = " ".join(found.findings)
        if told - run.came:
            assert "never came" in named
        assert found.doubled == found.discarded == 0
        assert found.lost == (found.missing > 0)

    def records(self, order: int, parts: int) -> LedgerRecords:
        rows = [self.row(record) for run in self.runs for record in run.heard]
        if order == NEWEST_FIRST:
            rows.reverse()
        else:
            random.Random(order).shuffle(rows)
        found = LedgerRecords()
        for at in range(parts):
            part = LedgerRecords()
            for row in rows[at::parts]:
                part.add(row)
            found.join(part)
        assert not found.unusable
        return found

    def row(self, record: Ledger) -> dict[str, Any]:
        return {
            "payload": record.encode(),
            "domain": DOMAIN,
            "class": CLS,
            "stream": "TELEMETRY_0",
            "seq": 1,
            "source_stream": "TEL_edge-1_normal",
            "source_identity": "abc",
            "source_seq": 1,
            "arrived": datetime(2026, 11, 21, tzinfo=UTC),
        }

    def teardown(self) -> None:
        self.the_audit_runs(1, 1)
        while self.on_the_way:
            self.something_comes_or_is_lost(0, False, False)
        self.the_audit_runs(2, 3)
        self.the_audit_runs(NEWEST_FIRST, 1)


TestAudit = Audit.TestCase
TestAudit.settings = machine(100, 40)
