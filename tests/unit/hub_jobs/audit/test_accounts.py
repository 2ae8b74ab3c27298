"""The account of one run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.contract import Ledger, Previous, Readings, StreamState
from agent.contract.ranges import Range
from hub_jobs.audit.account import Account, Arrived, RunClaims
from hub_jobs.audit.accounts import of_direct, of_run
from hub_jobs.audit.ledgers import merged
from tests.unit.hub_jobs.rows import OTHER_RUN, RUN


def _ledger(n: int, stored: tuple[Range, ...], readings: Readings, **given: object) -> Ledger:
    return Ledger("edge-1", "normal", RUN, n, stored, readings, StreamState("now", 1, n), **given)  # type: ignore[arg-type]


def _arrived(batches: list[Range], readings: int) -> Arrived:
    return Arrived(batches=batches, in_bronze=readings, in_readings=readings)


def _account(ledger: Ledger | None, previous: Previous | None, arrived: Arrived) -> Account:
    return of_run("edge-1", "normal", RUN, RunClaims(ledger, previous), arrived)


def test_dead_letters_are_neither_stored_nor_missing_and_no_open_tail() -> None:
    said = _ledger(3, ((1, 3),), Readings(accepted=27, stored=20, dead=7))

    account = _account(said, None, Arrived(batches=[(1, 3)], in_bronze=20, in_readings=20, dead=5))

    assert (account.accepted, account.stored, account.dead, account.open_tail) == (27, 20, 7, 0)
    assert not account.lost
    assert any("7 dead letters, of which 5 came" in finding for finding in account.findings)


def test_a_message_of_dead_letters_that_never_came_is_a_batch_that_did_not() -> None:
    said = _ledger(2, ((1, 2),), Readings(accepted=12, stored=10, dead=2), final=True)

    account = _account(said, None, _arrived([(1, 1)], 10))

    assert account.lost
    assert any(
        "batches 2 were acknowledged as stored and never came" in finding for finding in account.findings
    )


def test_a_closed_run_of_which_everything_came_is_in_order() -> None:
    ledger = _ledger(3, ((1, 3),), Readings(accepted=30, stored=30), final=True)

    account = _account(ledger, None, _arrived([(1, 3)], 30))

    assert (account.accepted, account.stored, account.in_bronze, account.missing) == (30, 30, 30, 0)
    assert (account.open_tail, account.findings, account.lost) == (None, [], False)


def test_a_batch_that_was_acknowledged_and_never_came_is_named() -> None:
    ledger = _ledger(5, ((1, 5),), Readings(accepted=50, stored=50), final=True)

    account = _account(ledger, None, _arrived([(1, 2), (4, 5)], 40))

    assert (account.missing, account.lost) == (10, True)
    assert "batches 3 were acknowledged as stored and never came, 10 readings or more" in account.findings[0]


def test_a_lost_batch_counts_even_where_an_unacknowledged_one_makes_up_for_its_readings() -> None:
    ledger = _ledger(3, ((1, 2),), Readings(accepted=30, stored=20))

    account = _account(ledger, None, _arrived([(1, 1), (3, 3)], 20))

    assert (account.missing, account.lost) == (1, True)


def test_what_was_refused_or_discarded_with_a_reason_is_no_loss() -> None:
    ledger = _ledger(
        4,
        ((1, 3),),
        Readings(accepted=40, stored=30, refused=10, discarded=10),
        refused=((4, 4, "stream_full"),),
        discarded=((2, 2, 10, "store full"),),
        final=True,
    )

    account = _account(ledger, None, _arrived([(1, 1), (3, 3)], 20))

    assert (account.missing, account.refused, account.discarded, account.lost) == (0, 10, 10, False)
    assert account.findings == [
        f"edge-1, class normal, run {RUN}: batches 2-2, 10 readings, were discarded at the edge: store full"
    ]


def test_a_killed_run_of_which_all_that_was_acknowledged_came_has_an_open_tail_and_no_loss() -> None:
    ledger = _ledger(2, ((1, 2),), Readings(accepted=25, stored=20))
    previous = Previous(RUN, 4, Readings(accepted=45, stored=40), closed=False)

    account = _account(ledger, previous, _arrived([(1, 4)], 40))

    assert (account.open_tail, account.missing, account.lost) == (5, 0, False)
    assert "its agent was killed); 5 readings were accepted and not acknowledged" in account.findings[0]


def test_an_unacknowledged_batch_below_the_last_acknowledged_one_is_no_loss() -> None:
    previous = Previous(RUN, 4, Readings(accepted=40, stored=30), closed=False)

    account = _account(None, previous, _arrived([(1, 2), (4, 4)], 30))

    assert (account.open_tail, account.missing, account.lost) == (10, 0, False)


def test_what_the_next_run_remembers_as_acknowledged_is_missed_without_any_ledger() -> None:
    previous = Previous(RUN, 4, Readings(accepted=40, stored=40), closed=False)

    top_lost = _account(None, previous, _arrived([(1, 2)], 20))
    hole = _account(None, previous, _arrived([(1, 2), (4, 4)], 30))

    assert (top_lost.missing, hole.missing) == (20, 10)
    assert "batches 3-4 never came, 20 readings or more; that 4 were acknowledged" in top_lost.findings[0]
    assert "10 readings that were acknowledged as stored never came" in hole.findings[0]
    assert "batches that did not come: 3" in hole.findings[0]


@pytest.mark.parametrize(
    ("ledger", "previous", "arrived", "said"),
    [
        (
            None,
            Previous(RUN, 26, Readings(1751, 1751), closed=False),
            _arrived([], 0),
            "batches 1-26 never came, 1751 readings or more; that 26 were",
        ),
        (
            _ledger(4, ((1, 3),), Readings(40, 30)),
            Previous(RUN, 9, Readings(90, 90), closed=False),
            _arrived([(1, 2)], 20),
            "batches 3-9 never came, 70 readings or more; that 3, 9 were",
        ),
        (
            _ledger(4, ((1, 3),), Readings(40, 30, refused=10), refused=((4, 4, "stream_full"),)),
            Previous(RUN, 6, Readings(60, 50), closed=False),
            _arrived([(1, 3)], 30),
            "batches 5-6 never came, 20 readings or more; that 6 were",
        ),
        (
            None,
            Previous(RUN, 3, Readings(21, 21), closed=False),
            _arrived([(1, 1)], 20),
            "batches 3 were acknowledged as stored and never came, 1 readings or more",
        ),
        (
            _ledger(9, ((1, 3), (5, 7)), Readings(90, 60)),
            Previous(RUN, 7, Readings(70, 60), closed=False),
            _arrived([(1, 3), (5, 5)], 40),
            "batches 6-7 were acknowledged as stored and never came, 20 readings or more",
        ),
    ],
)
def test_every_batch_that_a_shortfall_may_be_of_is_listed(
    ledger: Ledger | None, previous: Previous, arrived: Arrived, said: str
) -> None:
    account = _account(ledger, previous, arrived)

    assert account.lost
    assert said in account.findings[0]


def test_what_was_called_discarded_and_came_all_the_same_is_taken_off() -> None:
    ledger = _ledger(
        4,
        ((1, 4),),
        Readings(accepted=40, stored=40, discarded=20),
        discarded=((2, 3, 20, "stream_full"),),
        final=True,
    )
    arrived = Arrived([(1, 2), (4, 4)], 30, 0, 30, kept=10)

    account = _account(ledger, None, arrived)

    assert (account.missing, account.discarded, account.open_tail, account.lost) == (0, 10, None, False)
    assert account.findings[0].endswith("discarded at the edge: stream_full; batches 2 of them had arrived")


def test_a_batch_that_is_lost_beside_discarded_ones_is_a_loss() -> None:
    ledger = _ledger(
        5,
        ((1, 5),),
        Readings(accepted=50, stored=50, discarded=20),
        discarded=((1, 2, 20, "stream_full"),),
        final=True,
    )

    account = _account(ledger, None, _arrived([(3, 3), (5, 5)], 20))

    assert (account.missing, account.discarded, account.lost) == (10, 20, True)
    assert "batches 4 were acknowledged as stored and never came, 10 readings" in account.findings[0]


def test_a_count_of_discarded_readings_without_their_names_explains_nothing() -> None:
    ledger = _ledger(2, ((1, 2),), Readings(accepted=20, stored=20, discarded=10), final=True)

    account = _account(ledger, None, _arrived([(1, 1)], 10))

    assert (account.missing, account.discarded, account.lost) == (10, 0, True)


def test_a_later_run_names_what_was_discarded_of_one_that_had_ended() -> None:
    newest = _ledger(3, ((1, 3),), Readings(accepted=30, stored=30), final=True)
    naming = _ledger(
        3,
        ((2, 3),),
        Readings(accepted=20, stored=20, discarded=20),
        discarded=((2, 3, 20, "stream_full"),),
    )

    account = _account(merged(newest, naming), None, _arrived([(1, 1)], 10))

    assert (account.stored, account.discarded, account.missing) == (30, 20, 0)
    assert (account.open_tail, account.lost) == (None, False)
    alone = _account(naming, None, _arrived([], 0))
    assert (alone.discarded, alone.missing, alone.lost) == (20, 0, False)


def test_two_records_of_a_run_say_together_the_most_that_either_does() -> None:
    before = Previous(OTHER_RUN, 4, Readings(accepted=40, stored=40), closed=True)
    newest = _ledger(5, ((1, 5),), Readings(accepted=50, stored=50), previous=before)
    named = ((2, 2, 10, "stream_full"),)
    naming = _ledger(4, ((1, 4),), Readings(accepted=40, stored=40, discarded=10), discarded=named)

    both = merged(newest, naming)

    assert (both.n, both.stored, both.previous, both.discarded) == (5, ((1, 5),), before, named)
    assert both.readings == Readings(accepted=50, stored=50, discarded=10)
    other = merged(naming, replace(newest, stored=((5, 7),), n=7))
    assert (other.n, other.stored, other.previous) == (7, ((1, 7),), before)


def test_what_is_refused_is_no_open_tail_and_a_run_that_was_closed_has_none() -> None:
    said = Readings(accepted=60, stored=40, refused=15)
    open_one = _ledger(3, ((1, 2),), said, refused=((3, 3, "stream_full"),))
    closed = Previous(RUN, 2, said, closed=True)

    assert _account(open_one, None, _arrived([(1, 2)], 40)).open_tail == 5
    assert _account(open_one, closed, _arrived([(1, 2)], 40)).open_tail is None


def test_messages_of_devices_that_were_discarded_are_named_by_their_sequences() -> None:
    named = ((3, 9, 4, "stream_full"),)

    account = of_direct("edge-1", "normal", Arrived(in_bronze=5, in_readings=5, kept=1), named)

    assert (account.accepted, account.discarded, account.lost) == (8, 3, False)
    assert account.findings[0].endswith(
        "sequences 3-9 of its stream, 4 messages of devices among them, were discarded at the edge: "
        "stream_full"
    )
    assert account.findings[1:] == ["edge-1, class normal: 1 of these messages had arrived"]


def test_a_run_that_goes_on_is_open_and_one_without_any_record_says_so() -> None:
    going_on = _account(_ledger(2, ((1, 1),), Readings(accepted=20, stored=10)), None, _arrived([(1, 1)], 10))
    unknown = _account(None, None, _arrived([(1, 1)], 10))

    assert (going_on.open_tail, going_on.lost) == (10, False)
    assert "the run is not closed: it goes on" in going_on.findings[0]
    assert (unknown.accepted, unknown.open_tail, unknown.lost) == (10, 0, False)
    assert "is not known" in unknown.findings[0]


def test_a_reading_lost_or_doubled_between_bronze_and_readings_is_a_loss() -> None:
    ledger = _ledger(1, ((1, 1),), Readings(accepted=10, stored=10), final=True)
    for missing, doubled in ((1, 0), (0, 1)):
        arrived = Arrived([(1, 1)], 10, 0, 9, 0, missing, doubled, ("batch 1",))

        account = _account(ledger, None, arrived)

        assert account.lost
        assert account.findings == ["batch 1"]


def test_what_was_accepted_and_could_not_be_stored_is_named() -> None:
    said = Readings(accepted=50, stored=30, refused=20, refused_late=12)
    refused = ((4, 4, "stream_full after acceptance"), (5, 5, "stream_full"))

    account = _account(_ledger(5, ((1, 3),), said, final=True, refused=refused), None, _arrived([(1, 3)], 30))

    (finding,) = account.findings
    assert "12 readings were acknowledged as accepted and could not be stored" in finding
    assert finding.endswith("batches 4-4 (stream_full after acceptance)")
    assert account.open_tail == 0 or account.open_tail is None


def test_unheard_are_the_batches_before_the_last_that_came_of_which_no_record_tells() -> None:
    told = _ledger(8, ((1, 4),), Readings(accepted=9, stored=8), refused=((8, 8, "full"),))

    assert RunClaims(told).unheard([(1, 2), (9, 12)]) == [(5, 7)]
    assert RunClaims().unheard([(3, 3)]) == [(1, 2)]
    assert RunClaims().unheard([]) == []
