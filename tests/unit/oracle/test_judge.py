"""The oracle finds every way in which a promise can be broken, and nothing where none was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import Ledger, Readings, StreamState
from tests.faults.oracle.evidence import Account, Audit, Evidence, Gap, Metrics, Named, Row
from tests.faults.oracle.journal import Journal, Level
from tests.faults.oracle.judge import Terms, judge
from tests.faults.oracle.numbered import Series, contents, ranges_text
from tests.faults.oracle.verdict import Promise, Verdict

RUN = "01890a5d-ac96-774b-bcce-b302099a8057"
PUMP = Series("edge-1", "normal", "pump-1", 1)
PRESS = Series("edge-1", "normal", "press-1", 1)
START = 1_795_000_000_000_000


def row(series: Series, n: int, journal: Journal) -> Row:
    """A reading as the table holds it, of which each batch has ten."""
    metric, value = contents(series, n)
    text = (
        ("true" if value else "false")
        if isinstance(value, bool)
        else value
        if isinstance(value, str)
        else None
    )
    return Row(
        series.domain,
        series.cls,
        series.device,
        metric,
        None if isinstance(value, str) else float(value),
        text,
        {"life": str(series.life), "n": str(n)},
        journal.series[series].ts_us(n),
        "device",
        RUN,
        n // 10,
        n % 10,
        START,
        None,
    )


def told(rows: Sequence[Row], **numbers: int) -> Account:
    """What an honest audit says of these rows."""
    held = len([one for one in rows if one.run == RUN])
    counts = {"missing": 0, "doubled": 0, "discarded": 0, "refused": 0, **numbers}
    stored = held + counts["missing"] + counts["discarded"] - counts["doubled"]
    return Account("edge-1", "normal", RUN, stored, stored, held, open_tail=None, **counts)


def evidence(rows: Sequence[Row], audit: Audit | None = None) -> Evidence:
    """All that is found where the tables hold these rows, told honestly."""
    given = audit or Audit([told(rows)])
    stored = given.accounts[0].stored if given.accounts else 0
    ledger = Ledger(
        "edge-1", "normal", RUN, 9, ((1, 9),), Readings(stored, stored), StreamState("now", 1, 9), final=True
    )
    own = sum(one.run == RUN and one.device != one.domain for one in rows)
    counted = {RUN: Metrics({"normal": float(own)}, {"normal": 0.0})}
    return Evidence(rows, (), given, {("edge-1", "normal", RUN): ledger}, counted, 1.0)


def sent(*given: tuple[Series, list[int]], level: Level = Level.STORED) -> Journal:
    """A journal of requests of these sizes, all of them acknowledged."""
    journal = Journal()
    for series, sizes in given:
        one = journal.of(series, level)
        for size in sizes:
            one.request(size, START + one.sent * 1_000)
        one.answered()
    return journal


def whole(journal: Journal) -> list[Row]:
    """What the table holds where everything went well."""
    return [row(series, n, journal) for series, one in journal.series.items() for n in range(1, one.sent + 1)]


@pytest.fixture
def journal() -> Journal:
    return sent((PUMP, [10, 10, 5]), (PRESS, [7]))


def broken(verdict: Verdict) -> set[Promise]:
    return {one.promise for one in verdict.violations}


@given(st.lists(st.integers(1, 9), max_size=6), st.lists(st.integers(1, 9), max_size=6), st.randoms())
def test_what_arrived_as_it_was_sent_keeps_every_promise(
    first: list[int], second: list[int], chance: object
) -> None:
    journal = sent((PUMP, first), (PRESS, second))
    rows = whole(journal)
    chance.shuffle(rows)  # type: ignore[attr-defined]  # the order of rows in a table says nothing
    verdict = judge(journal, evidence(rows), Terms())
    assert verdict.kept, str(verdict)
    assert verdict.acknowledged == sum(first) + sum(second)


@given(st.data())
def test_any_one_reading_that_is_missing_or_doubled_is_named(data: st.DataObject) -> None:
    journal = sent((PUMP, [10, 10, 5]), (PRESS, [7]))
    rows = whole(journal)
    at = data.draw(st.integers(0, len(rows) - 1))
    name, number = str(rows[at].device), rows[at].tags["n"]

    less = rows[:at] + rows[at + 1 :]
    lost = judge(journal, evidence(less, Audit([told(rows)])), Terms())
    assert lost.lost == 1
    assert [name in str(one) and f": {number};" in str(one) for one in lost.violations].count(True) == 1

    twice = judge(journal, evidence([*rows, rows[at]], Audit([told(rows)])), Terms())
    assert twice.doubled == 1
    assert Promise.ONCE in broken(twice)


def test_a_reading_that_is_gone_and_named_is_no_loss_where_the_case_allows_it(journal: Journal) -> None:
    rows = whole(journal)[:-2]
    named = evidence(rows, Audit([told(rows, missing=2)], lost=True))
    verdict = judge(journal, named, Terms(gone=True))
    assert verdict.kept, str(verdict)
    assert (verdict.lost, verdict.named) == (0, 2)


def test_a_reading_that_is_gone_and_named_breaks_a_case_that_does_not_allow_it(journal: Journal) -> None:
    rows = whole(journal)[:-2]
    verdict = judge(journal, evidence(rows, Audit([told(rows, missing=2)], lost=True)), Terms())
    assert broken(verdict) == {Promise.CONSERVATION}
    assert (verdict.lost, verdict.named) == (0, 2)


def test_a_loss_of_which_only_a_part_is_named_is_a_loss(journal: Journal) -> None:
    rows = whole(journal)[:-3]
    verdict = judge(journal, evidence(rows, Audit([told(rows, missing=1)], lost=True)), Terms(gone=True))
    assert Promise.CONSERVATION in broken(verdict)
    assert (verdict.lost, verdict.named) == (2, 1)
    assert "press-1" in str(verdict)
    assert "5-7" in str(verdict)


def direct() -> Journal:
    """Ten readings of a device that publishes them itself, acknowledged at the sequences 101 to 110."""
    journal = sent((PUMP, [1] * 10))
    journal.series[PUMP].sequences = {n: 100 + n for n in range(1, 11)}
    return journal


def test_messages_that_are_named_by_their_sequences_are_named() -> None:
    rows = whole(direct())[:-2]
    said = Audit([told(rows)], lost=True, gaps={("edge-1", "normal"): [Gap(90, 95), Gap(109, 115, True)]})
    verdict = judge(direct(), evidence(rows, said), Terms(gone=True))
    assert verdict.kept, str(verdict)
    assert (verdict.lost, verdict.named) == (0, 2)
    assert broken(judge(direct(), evidence(rows, said), Terms())) == {Promise.CONSERVATION}


def test_as_many_other_messages_that_are_named_do_not_name_one_that_is_lost() -> None:
    rows = whole(direct())[:-2]
    said = Audit([told(rows, missing=7)], lost=True, gaps={("edge-1", "normal"): [Gap(1, 109)]})
    verdict = judge(direct(), evidence(rows, said), Terms(gone=True))
    assert (verdict.lost, verdict.named) == (1, 1)
    assert "names no sequence of 10" in str(verdict)


def test_messages_that_are_named_by_their_sequences_name_no_reading_of_a_batch(journal: Journal) -> None:
    rows = whole(journal)[:-2]
    said = Audit([told(rows)], lost=True, gaps={("edge-1", "normal"): [Gap(1, 1000)]})
    assert judge(journal, evidence(rows, said), Terms(gone=True)).lost == 2


def test_what_a_device_published_to_a_lost_store_after_the_last_look_is_told_apart() -> None:
    rows = whole(direct())[:-4]
    for gap, unseen in ((Gap(105, 108, with_store=True), 2), (Gap(105, 108), 0)):
        said = Audit([told(rows)], lost=True, gaps={("edge-1", "normal"): [gap]})
        verdict = judge(direct(), evidence(rows, said), Terms(gone=True))
        assert (verdict.named, verdict.unseen, verdict.lost) == (2, unseen, 2 - unseen)


def test_what_a_device_published_to_a_lost_store_long_after_what_is_named_is_lost() -> None:
    journal = direct()
    journal.series[PUMP]._times[-1] += 10_000_000
    rows = whole(journal)[:-4]
    gap = Gap(105, 108, with_store=True)
    said = Audit([told(rows)], lost=True, gaps={("edge-1", "normal"): [gap]})
    verdict = judge(journal, evidence(rows, said), Terms(gone=True))
    assert (verdict.named, verdict.unseen, verdict.lost) == (2, 1, 1)


def test_what_was_only_accepted_may_be_gone_as_an_open_tail() -> None:
    journal = sent((PUMP, [10]), level=Level.ACCEPTED)
    rows = whole(journal)[:7]
    tail = replace(told(rows), open_tail=2, accepted=9)
    assert judge(journal, evidence(rows, Audit([tail])), Terms()).kept is True
    closed = replace(tail, open_tail=None)
    assert broken(judge(journal, evidence(rows, Audit([closed])), Terms())) == {Promise.CONSERVATION}
    refused = replace(closed, refused=3)
    assert judge(journal, evidence(rows, Audit([refused])), Terms()).kept is True


def test_what_was_sent_and_not_acknowledged_may_be_there_or_not(journal: Journal) -> None:
    journal.of(PUMP).request(4, START + 10**6)
    rows = whole(journal)
    assert judge(journal, evidence(rows), Terms()).kept
    assert judge(journal, evidence([one for one in rows if one.tags["n"] != "29"]), Terms()).kept


def test_a_numbered_reading_in_quarantine_is_not_lost(journal: Journal) -> None:
    rows = whole(journal)
    found = evidence(rows[:-1], Audit([replace(told(rows), in_readings=len(rows) - 1)]))
    assert not judge(journal, found, Terms()).kept
    named = Named("edge-1", "normal", ("press-1", 1, 7), "a reason")
    assert judge(journal, replace(found, quarantine=[named]), Terms()).kept


CHANGES: dict[str, Callable[[Row], Row]] = {
    "value": lambda one: one._replace(value=(one.value or 0) + 1),
    "text": lambda one: one._replace(text="other"),
    "metric": lambda one: one._replace(metric="other"),
    "time": lambda one: one._replace(ts_us=(one.ts_us or 0) + 1),
    "whose clock": lambda one: one._replace(ts_source="agent"),
    "tags": lambda one: one._replace(tags={**one.tags, "more": "1"}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_reading_that_was_changed_is_found(journal: Journal, what: str) -> None:
    rows = whole(journal)
    rows[3] = CHANGES[what](rows[3])
    verdict = judge(journal, evidence(rows), Terms())
    assert broken(verdict) == {Promise.INTEGRITY}
    assert "readings 4 of pump-1" in str(verdict)


INVENTIONS: dict[str, Callable[[Row], Row]] = {
    "a number that was never given": lambda one: one._replace(tags={"life": "1", "n": "99"}),
    "another life": lambda one: one._replace(tags={"life": "2", "n": "1"}),
    "another device": lambda one: one._replace(device="pump-9"),
    "no number": lambda one: one._replace(tags={}),
}


@pytest.mark.parametrize("what", INVENTIONS)
def test_a_reading_that_was_never_sent_is_found(journal: Journal, what: str) -> None:
    rows = whole(journal)
    extra = INVENTIONS[what](rows[0])
    verdict = judge(journal, evidence([*rows, extra]), Terms())
    assert broken(verdict) == {Promise.NO_INVENTION}


def test_an_agent_s_own_readings_are_no_invention(journal: Journal) -> None:
    rows = whole(journal)
    own = rows[0]._replace(device="edge-1", tags={}, metric="petiole_seconds_to_loss")
    assert judge(journal, evidence([*rows, own]), Terms()).kept


def test_readings_that_stand_in_another_order_are_found(journal: Journal) -> None:
    rows = whole(journal)
    rows[2], rows[5] = rows[2]._replace(place=rows[5].place), rows[5]._replace(place=rows[2].place)
    verdict = judge(journal, evidence(rows), Terms())
    assert broken(verdict) == {Promise.ORDER}


def test_direct_messages_stand_in_the_order_in_which_they_arrived(journal: Journal) -> None:
    def direct(rows: list[Row], swapped: bool) -> list[Row]:
        return [
            one._replace(run=None, arrived_us=START - at if swapped else START + at, source_seq=7)
            for at, one in enumerate(rows)
        ]

    def found(rows: list[Row]) -> Evidence:
        return evidence(rows, Audit([replace(told(rows), run=None, in_readings=len(rows), stored=len(rows))]))

    rows = whole(journal)
    assert judge(journal, found(direct(rows, swapped=False)), Terms()).kept
    assert broken(judge(journal, found(direct(rows, swapped=True)), Terms())) == {Promise.ORDER}


def test_what_does_not_drain_is_found(journal: Journal) -> None:
    verdict = judge(journal, replace(evidence(whole(journal)), drained_seconds=None), Terms(seconds=7))
    assert broken(verdict) == {Promise.LIVENESS}
    assert "within 7 s" in str(verdict)


LIES: dict[str, Callable[[Evidence], Evidence]] = {
    "readings that are not there": lambda one: _audit(one, in_readings=1),
    "a loss that is none": lambda one: _audit(one, missing=1),
    "a repeat that is none": lambda one: _audit(one, doubled=1),
    "fewer stored than acknowledged": lambda one: _audit(one, stored=1),
    "no account": lambda one: replace(one, audit=Audit([])),
    "unaccounted readings": lambda one: replace(one, metrics={RUN: Metrics({}, {"normal": 1.0})}),
    "metrics that count less": lambda one: replace(one, metrics={RUN: Metrics({"normal": 1.0}, {})}),
    "metrics that count more": lambda one: replace(one, metrics={RUN: Metrics({"normal": 99.0}, {})}),
    "a ledger that counts less": lambda one: _ledger(one, accepted=31, stored=31),
    "a closed ledger that does not add up": lambda one: _ledger(one, accepted=99),
}


def _audit(one: Evidence, **changed: int) -> Evidence:
    account = replace(one.audit.accounts[0], **changed)  # type: ignore[arg-type]  # all of them are counts
    return replace(one, audit=replace(one.audit, accounts=[account], lost=True))


def _ledger(one: Evidence, **counts: int) -> Evidence:
    changed = {
        run: replace(ledger, readings=replace(ledger.readings, **counts))
        for run, ledger in one.ledgers.items()
    }
    return replace(one, ledgers=changed)


@pytest.mark.parametrize("what", LIES)
def test_whoever_does_not_say_what_is_so_is_found(journal: Journal, what: str) -> None:
    verdict = judge(journal, LIES[what](evidence(whole(journal))), Terms())
    assert broken(verdict) == {Promise.HONESTY}


def test_an_audit_that_ends_well_in_spite_of_what_it_says_is_found(journal: Journal) -> None:
    rows = whole(journal)[:-2]
    verdict = judge(journal, evidence(rows, Audit([told(rows, missing=2)], lost=False)), Terms(gone=True))
    assert broken(verdict) == {Promise.HONESTY}


def test_numbers_are_told_as_ranges() -> None:
    assert ranges_text([9, 7, 8, 3]) == "3, 7-9"
    assert ranges_text(list(range(0, 20, 2)), most=2) == "0, 2, and 8 more ranges"
