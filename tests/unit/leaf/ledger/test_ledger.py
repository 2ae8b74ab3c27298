"""The ledger of one class and run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.contract import LostStream, Previous, Readings, StreamState, new_run, parse_ledger
from agent.leaf.ledger import MAX_RANGES, ClassLedger

STREAM = StreamState("2026-11-21T06:00:00Z", 1, 9)


def ledger() -> ClassLedger:
    """A ledger that nothing was entered in."""
    return ClassLedger("edge-1", "normal", new_run())


def test_numbers_count_from_one() -> None:
    one = ledger()
    assert [one.number(5), one.number(5)] == [1, 2]


def test_the_record_says_which_batches_became_what() -> None:
    one = ledger()
    for _ in range(6):
        one.number(10)
    for n in (1, 2, 5):
        one.store(n, 10)
    one.refuse(3, 10, "stream_full")
    one.refuse(6, 10, "stream_full")
    one.refuse(4, 10, "too_large")
    record = one.record(STREAM)
    assert record.n == 6
    assert record.stored == ((1, 2), (5, 5))
    assert record.refused == ((3, 3, "stream_full"), (4, 4, "too_large"), (6, 6, "stream_full"))
    assert record.readings == Readings(accepted=60, stored=30, refused=30)
    assert not record.final
    assert one.highest_stored == 5


def test_the_record_is_read_back_as_it_was() -> None:
    one = ledger()
    one.store(one.number(3), 3)
    one.previous = Previous(new_run(), 7, Readings(70, 70), closed=True)
    one.lost = (
        LostStream("2026-11-20T06:00:00Z", 40),
        LostStream("2026-11-21T06:00:00Z", 9, 0, 1_795_000_000_000_000_001),
    )
    record = one.record(STREAM, final=True)
    assert parse_ledger(record.encode()) == record
    assert (record.previous, record.lost, record.final) == (one.previous, one.lost, True)


def test_what_was_discarded_and_what_was_refused_after_acceptance_is_named() -> None:
    one = ledger()
    one.accept(3)
    one.refuse(one.number(7), 10, "stream_full after acceptance", late=3)
    for batches, gone in (((), ()), (((1, 2, 20, "stream_full"),), ((4, 6, 1, "stream_full"),))):
        one.discard(batches, 10 * len(batches), gone)
    record = one.record(STREAM)
    assert (record.discarded, record.gone) == (((1, 2, 20, "stream_full"),), ((4, 6, 1, "stream_full"),))
    assert record.readings == Readings(accepted=10, refused=10, refused_late=3, discarded=10)


def test_a_record_is_bounded_and_gives_up_the_oldest_refused_ranges_first() -> None:
    one = ledger()
    reasons = ("stream_full", "too_large")
    for turn in range(MAX_RANGES // 2 + 100):
        one.store(one.number(10), 10)
        one.refuse(one.number(10), 10, reasons[turn % 2])
    turns = MAX_RANGES // 2 + 100
    record = one.record(STREAM)
    assert record.stored == tuple((n, n) for n in range(1, 2 * turns, 2))
    kept = MAX_RANGES - turns
    assert [first for first, _, _ in record.refused] == list(
        range(2 * turns - 2 * kept + 2, 2 * turns + 1, 2)
    )
    assert record.readings == Readings(accepted=20 * turns, stored=10 * turns, refused=10 * turns)


def test_a_record_never_names_more_than_its_bound_nor_what_was_not_stored() -> None:
    one = ledger()
    for _ in range(2 * MAX_RANGES):
        one.store(one.number(1), 1)
        one.refuse(one.number(1), 1, "stream_full")
    record = one.record(STREAM)
    assert len(record.stored) + len(record.refused) == MAX_RANGES
    assert all(first == last and first % 2 == 1 for first, last in record.stored)
    assert one.highest_stored == record.n - 1
    assert len(record.encode()) < 100_000
    assert parse_ledger(record.encode()) == record


@given(st.lists(st.tuples(st.integers(1, 100), st.sampled_from(["store", "refuse", "wait"])), max_size=60))
def test_what_was_accepted_is_stored_refused_or_in_flight_at_every_moment(
    batches: list[tuple[int, str]],
) -> None:
    one = ledger()
    in_flight = 0
    for readings, fate in batches:
        n = one.number(readings)
        in_flight += readings
        if fate != "wait":
            in_flight -= readings
        if fate == "store":
            one.store(n, readings)
        elif fate == "refuse":
            one.refuse(n, readings, "stream_full")
        counts = one.readings
        assert counts.accepted == counts.stored + counts.refused + in_flight
    record = one.record(STREAM)
    stored = {n for first, last in record.stored for n in range(first, last + 1)}
    refused = {n for first, last, _ in record.refused for n in range(first, last + 1)}
    assert not stored & refused
    assert stored | refused == {n for n, (_, fate) in enumerate(batches, 1) if fate != "wait"}


def test_dead_letters_take_numbers_and_count_as_accepted_and_dead() -> None:
    one = ledger()
    one.store(one.number(10), 10)
    one.store_dead(one.number(3), 3)
    one.omit(4)
    record = one.record(STREAM)
    assert record.stored == ((1, 2),)
    assert record.readings == Readings(accepted=17, stored=10, dead=7)
