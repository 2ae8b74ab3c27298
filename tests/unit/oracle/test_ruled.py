"""What rules leave of a series is neither missing nor anything else than what they make of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.oracle.evidence import Audit, Gap, Row
from tests.faults.oracle.journal import Journal, Level, Made, Sent
from tests.faults.oracle.judge import Terms, judge
from tests.faults.oracle.numbered import VALVE, Series, contents
from tests.faults.oracle.ruled import missing
from tests.faults.oracle.verdict import Promise
from tests.unit.oracle.test_judge import PRESS, PUMP, START, broken, evidence, row, sent, told, whole

VALVE_1 = Series("edge-1", "normal", f"{VALVE}1", 1)
DEADBAND = 0.5


def valve(count: int) -> Sent:
    """A valve all of whose readings are acknowledged."""
    one = Sent(made=Made(deadband=DEADBAND))
    one.request(count, START)
    one.answered()
    return one


def stored(one: Sent) -> list[int]:
    """What a deadband lets through, one after the other."""
    kept, last = [], None
    for n in range(1, one.sent + 1):
        value = float(contents(VALVE_1, n)[1])
        if last is None or abs(value - last) > DEADBAND:
            kept.append(n)
            last = value
    return kept


@given(st.integers(0, 60))
def test_what_a_deadband_leaves_out_is_not_missing(count: int) -> None:
    one = valve(count)
    assert missing(VALVE_1, one, stored(one)) == []


@given(st.integers(2, 60), st.data())
def test_a_move_that_is_not_there_is_missing(count: int, data: st.DataObject) -> None:
    one = valve(count)
    kept = stored(one)
    gone = data.draw(st.sampled_from(kept))
    assert gone in missing(VALVE_1, one, [n for n in kept if n != gone])


def test_a_valve_that_stays_where_it_was_is_missing_its_way_back() -> None:
    one = valve(60)
    values = {n: contents(VALVE_1, n)[1] for n in range(1, 61)}
    out = next(
        n for n in values if values[n] == 0.0 and values.get(n + 1) == 1.0 and values.get(n + 2) == 0.0
    )
    kept = [n for n in stored(one) if n != out + 2]
    assert missing(VALVE_1, one, kept) == [out + 2]


def ruled(made: Made) -> Journal:
    """A pump under a rule, and a device without."""
    journal = sent((PUMP, [10, 10]), (PRESS, [3]))
    journal.series[PUMP].made = made
    return journal


def test_tags_that_a_rule_adds_are_asked_for() -> None:
    journal = ruled(Made(tags={"site": "north"}))
    assert Promise.INTEGRITY in broken(judge(journal, evidence(whole(journal)), Terms()))
    rows = [replace_tags(one, site="north") if one.device == PUMP.device else one for one in whole(journal)]
    assert judge(journal, evidence(rows), Terms()).kept


def replace_tags(one: Row, **tags: str) -> Row:
    """A row with more tags."""
    return one._replace(tags={**one.tags, **tags})


def test_what_a_rule_drops_is_not_missing_and_must_not_be_there() -> None:
    journal = ruled(Made(dropped="m2"))
    assert Promise.INTEGRITY in broken(judge(journal, evidence(whole(journal)), Terms()))
    rows = [one for one in whole(journal) if one.device != PUMP.device or one.metric != "m2"]
    verdict = judge(journal, evidence(rows), Terms())
    assert verdict.kept, str(verdict)


def test_a_valve_s_readings_are_told_by_their_time() -> None:
    journal = Journal()
    journal.series[VALVE_1] = valve(5)
    rows = [row(VALVE_1, n, journal)._replace(tags={}) for n in stored(journal.series[VALVE_1])]
    assert judge(journal, evidence(rows), Terms()).kept
    wrong = [rows[0]._replace(ts_us=START - 1), *rows[1:]]
    assert Promise.NO_INVENTION in broken(judge(journal, evidence(wrong), Terms()))
    after = [*rows[:-1], rows[-1]._replace(ts_us=START + 5)]
    assert Promise.NO_INVENTION in broken(judge(journal, evidence(after), Terms()))


@pytest.mark.parametrize(("gone", "at_least_once", "kept"), [(0, 0, 0), (1, 0, 1), (0, 1, 1)])
def test_a_repeat_without_an_answer_may_be_there_twice_where_nothing_can_tell(
    gone: int, at_least_once: int, kept: int
) -> None:
    journal = sent((PRESS, [1, 1]))
    one = journal.series[PRESS]
    one.repeated.add(2)
    one.at_least_once = bool(at_least_once)
    rows = [replaced(one, source) for source, one in enumerate([*whole(journal), whole(journal)[1]], 1)]
    audit = Audit([replace(told(rows), run=None, stored=3, in_readings=3)])
    verdict = judge(journal, evidence(rows, audit), Terms(gone=bool(gone)))
    assert (Promise.ONCE not in broken(verdict)) == bool(kept)


def replaced(one: Row, source: int) -> Row:
    """A row of a message that came directly."""
    return one._replace(run=None, n=None, place=None, source_seq=source, arrived_us=START + source)


def test_what_a_protocol_does_not_place_is_named_by_its_number() -> None:
    journal = sent((PRESS, [3]))
    journal.series[PRESS].at_least_once = True
    rows = [replaced(one, source) for source, one in enumerate(whole(journal), 1)][:1]
    account = replace(told(rows), run=None, stored=1, accepted=1, in_readings=1)
    where = (PRESS.domain, PRESS.cls)
    named = Audit([account], lost=True, gaps={where: [Gap(2, 3)]})
    verdict = judge(journal, evidence(rows, named), Terms(gone=True))
    assert verdict.kept, str(verdict)
    assert (verdict.named, verdict.lost) == (2, 0)
    less = Audit([account], lost=True, gaps={where: [Gap(2, 2)]})
    assert judge(journal, evidence(rows, less), Terms(gone=True)).lost == 1
    with_store = Audit([account], lost=True, gaps={where: [Gap(2, 2, with_store=True)]})
    verdict = judge(journal, evidence(rows, with_store), Terms(gone=True))
    assert (verdict.named, verdict.unseen, verdict.lost) == (1, 1, 0)


def test_what_is_sent_again_to_a_hub_that_lost_its_store_keeps_the_order_of_the_leaf_s_stream() -> None:
    journal = sent((PRESS, [1, 1, 1]))
    rows = [replaced(one, source) for source, one in enumerate(whole(journal), 1)]
    account = replace(told(rows), run=None, stored=3, accepted=3, in_readings=3)
    again = [rows[0]._replace(arrived_us=START + 9), *rows[1:]]
    assert judge(journal, evidence(again, Audit([account])), Terms()).kept
    turned = [rows[0]._replace(arrived_us=START + 9, source_seq=9), *rows[1:]]
    assert Promise.ORDER in broken(judge(journal, evidence(turned, Audit([account])), Terms()))


def test_what_nobody_can_tell_of_may_be_there_or_not() -> None:
    journal = sent((PUMP, [10, 10]))
    journal.series[PUMP].unknown.update(range(11, 21))
    rows = whole(journal)
    for some in (rows, rows[:15], rows[:10]):
        verdict = judge(journal, evidence(some), Terms())
        assert verdict.kept, str(verdict)
    assert judge(journal, evidence(rows[1:10], Audit([told(rows[:10])])), Terms()).lost == 1


def test_what_came_directly_while_no_agent_looked_and_went_with_its_store_nobody_can_name() -> None:
    journal = sent((PRESS, [1, 1, 1]))
    one = journal.series[PRESS]
    one.sequences.update({n: n for n in (1, 2, 3)})
    rows = [replaced(row, source) for source, row in enumerate(whole(journal), 1)][:2]
    audit = Audit([replace(told(rows), run=None, stored=2, accepted=2, in_readings=2)])
    blind = ((one.ts_us(3), one.ts_us(3)),)
    verdict = judge(journal, evidence(rows, audit), Terms(gone=True, blind=blind))
    assert verdict.kept, str(verdict)
    assert (verdict.lost, verdict.unseen) == (0, 1)
    for terms in (Terms(blind=blind), Terms(gone=True)):
        assert judge(journal, evidence(rows, audit), terms).lost == 1


@pytest.mark.parametrize(
    ("level", "reordered", "kept"), [("accepted", 1, 1), ("accepted", 0, 0), ("stored", 1, 0)]
)
def test_what_was_only_accepted_may_stand_behind_later_ones_where_ids_are_forged(
    level: str, reordered: int, kept: int
) -> None:
    journal = sent((PUMP, [10, 10]), level=Level(level))
    rows = [one._replace(n=9) if one.tags["n"] == "3" else one for one in whole(journal)]
    verdict = judge(journal, evidence(rows), Terms(reordered=bool(reordered)))
    assert verdict.kept == bool(kept), str(verdict)
