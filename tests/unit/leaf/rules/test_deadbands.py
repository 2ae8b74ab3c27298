"""Deadbands while batches are under way: whatever becomes of these, the value that is stored last is within
the deadband of a reading that was acknowledged and held back."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.leaf.rules.deadbands import Band, Deadbands, Flight, LastSent, Moves, Span, moved

KEY = b"series"
BAND = Band("rule", 1.0, None)
VALUES: tuple[float | bool | bytes, ...] = (0.0, 0.6, 1.2, 5.0, True, b"open")


def sent(value: float | bool | bytes, at: float = 0.0, ts: float = 0.0) -> LastSent:
    return LastSent(value, ts, at)


@dataclass
class Handed:
    """A chunk under way: its last move, and where the stream holds it."""

    last: LastSent
    flight: Flight
    seq: int | None = None
    over: bool = False


@dataclass
class Watch:
    """A reading that was acknowledged and held back, and the chunks that were stored or under way then."""

    one: LastSent
    before: list[Handed]


@dataclass
class Course:
    """One series, its chunks, and what becomes of them in an order that the draws decide."""

    deadbands: Deadbands = field(default_factory=Deadbands)
    handed: list[Handed] = field(default_factory=list)
    watched: list[Watch] = field(default_factory=list)
    seq: int = 0

    def hand_in(self, values: list[float | bool | bytes]) -> None:
        moves: Moves = {}
        readings = [sent(value) for value in values]
        took = [self.deadbands.sends(KEY, one, BAND, moves) for one in readings]
        if moves:
            assert not moved(moves[KEY], readings[-1], BAND.width, BAND.after)
            self.handed.append(Handed(moves[KEY], self.deadbands.begin(moves)))
        else:
            assert not any(took)
            self.watched.append(Watch(readings[-1], list(self.handed)))

    def settle(self, pick: int, what: str) -> None:
        """One of the chunks under way is stored, refused, or answered; an answer may be lost for good."""
        if what == "both":
            self.settle(pick, "stored")
            self.settle(pick, "answered")
            return
        wanted = {"stored": False, "refused": False, "answered": True}
        fit = [
            one
            for one in self.handed
            if not one.over and wanted.get(what, one.seq is not None) == (one.seq is not None)
        ]
        if not fit:
            return
        one = fit[pick % len(fit)]
        if what == "stored":
            self.seq += 1
            one.seq = self.seq
        elif what == "answered":
            self.deadbands.settle(one.flight, one.seq)
            one.over = True
        else:
            self.deadbands.settle(one.flight, None)
            one.over = True

    def check(self) -> None:
        for watch in self.watched:
            stored = [one for one in watch.before if one.seq is not None]
            assert stored, "a reading is held back only for one that is stored"
            last = max(stored, key=lambda one: one.seq or 0).last
            assert not moved(last, watch.one, BAND.width, BAND.after), (watch.one, last)


values = st.sampled_from(VALUES)
OUTCOMES = ("both", "both", "stored", "answered")


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32), st.booleans())
def test_what_is_stored_last_is_within_the_deadband_of_what_was_held_back(seed: int, loses: bool) -> None:
    draws, course = random.Random(seed), Course()
    outcomes = (*OUTCOMES, "refused", "lost") if loses else OUTCOMES
    few = draws.sample(VALUES, 3)
    for _ in range(40):
        if draws.random() < 0.5:
            course.hand_in(draws.choices(few, k=draws.choice((1, 1, 1, 3))))
        else:
            course.settle(draws.choice((0, -1, 1)), draws.choice(outcomes))
    while not all(one.over for one in course.handed):
        course.settle(draws.randrange(8), draws.choice(outcomes))
    course.check()
    stored = [one for one in course.handed if one.seq is not None]
    if stored and not loses:
        last = max(stored, key=lambda one: one.seq or 0).last
        assert not course.deadbands.sends(KEY, last, BAND, {}), "the last stored value is known"
    assert not course.deadbands._busy, "nothing is under way any more"


@given(
    st.lists(st.builds(sent, values, st.integers(0, 9), st.integers(0, 9)), max_size=6),
    st.builds(sent, values, st.integers(0, 9), st.integers(0, 9)),
    st.sampled_from((0.0, 0.6, 4.0)),
    st.none() | st.integers(1, 9),
)
def test_a_span_tells_as_its_readings_do_one_by_one(
    readings: list[LastSent], one: LastSent, width: float, after: int | None
) -> None:
    assert Span(readings).moved(one, width, after) == any(
        moved(other, one, width, after) for other in readings
    )


def stored(deadbands: Deadbands, value: float, seq: int) -> Flight:
    """A chunk with this value is handed in and stored."""
    moves: Moves = {}
    assert deadbands.sends(KEY, sent(value), BAND, moves)
    flight = deadbands.begin(moves)
    deadbands.settle(flight, seq)
    return flight


def test_the_way_back_is_sent_while_the_move_is_in_flight_and_after_that_was_refused_held_back() -> None:
    deadbands = Deadbands()
    stored(deadbands, 0.0, 1)
    flights = []
    for value in (5.0, 0.0):
        moves: Moves = {}
        assert deadbands.sends(KEY, sent(value), BAND, moves)
        flights.append(deadbands.begin(moves))
    for flight in flights:
        deadbands.settle(flight, None)
    assert deadbands.sends(KEY, sent(0.0), BAND, {}), "the input may hand the 5 in again"
    stored(deadbands, 0.0, 2)
    assert not deadbands.sends(KEY, sent(0.0), BAND, {})


def test_a_move_that_is_stored_behind_a_later_one_holds_nothing_back() -> None:
    deadbands = Deadbands()
    stored(deadbands, 0.0, 1)
    flights = []
    for value, ts in ((5.0, 1.0), (0.0, 2.0)):
        moves: Moves = {}
        assert deadbands.sends(KEY, sent(value, ts=ts), BAND, moves)
        flights.append(deadbands.begin(moves))
    deadbands.settle(flights[1], 2)
    deadbands.settle(flights[0], 3)
    for value in (0.0, 5.0):
        assert deadbands.sends(KEY, sent(value, ts=3.0), BAND, {})


def test_a_stream_that_begins_anew_moves_the_value_on() -> None:
    deadbands = Deadbands()
    stored(deadbands, 0.0, 1_000)
    stored(deadbands, 5.0, 1)
    assert not deadbands.sends(KEY, sent(5.0), BAND, {})


def test_what_a_lost_store_held_is_known_no_more() -> None:
    deadbands = Deadbands()
    stored(deadbands, 0.0, 1)
    moves: Moves = {}
    assert deadbands.sends(KEY, sent(5.0), BAND, moves)
    flight = deadbands.begin(moves)
    deadbands.forget()
    assert deadbands.sends(KEY, sent(0.0), BAND, {})
    deadbands.settle(flight, 2)
    assert deadbands.sends(KEY, sent(5.0), BAND, {}), "it may have gone with the store"


def test_series_in_flight_are_not_forgotten_for_others() -> None:
    deadbands = Deadbands(max_series=1)
    moves: Moves = {}
    for number in range(3):
        assert deadbands.sends(b"%d" % number, sent(0.0), BAND, moves)
    flight = deadbands.begin(moves)
    assert len(deadbands) == 3
    deadbands.settle(flight, 1)
    assert len(deadbands) == 1


@pytest.mark.parametrize("count", [100, 10_000])
def test_comparing_with_many_moves_in_flight_looks_at_few_of_them(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = 0
    add = Span.add

    def counting(self: Span, one: LastSent) -> None:
        nonlocal added
        added += 1
        add(self, one)

    monkeypatch.setattr(Span, "add", counting)
    deadbands = Deadbands()
    stored(deadbands, 0.0, 1)
    flights = []
    for _ in range(count):
        moves: Moves = {}
        assert deadbands.sends(KEY, sent(1.2), BAND, moves)
        flights.append(deadbands.begin(moves))
        assert not deadbands.sends(KEY, sent(0.6), BAND, {})
    for seq, flight in enumerate(flights, 2):
        deadbands.settle(flight, seq)
        assert not deadbands.sends(KEY, sent(1.2 if seq > count else 0.6), BAND, {})
    assert added <= 5 * count


@pytest.mark.parametrize("values", [(0.0, 5.0), (5.0, 0.0, 5.0), (0.0, 5.0, 0.0, 1.2)])
def test_of_several_chunks_in_one_batch_the_last_is_what_is_stored_last(values: tuple[float, ...]) -> None:
    deadbands, flights = Deadbands(), []
    stored(deadbands, 99.0, 1)
    for value in values:
        moves: Moves = {}
        assert deadbands.sends(KEY, sent(value), BAND, moves)
        flights.append(deadbands.begin(moves))
    for flight in flights:
        deadbands.settle(flight, 2)
    assert not deadbands.sends(KEY, sent(values[-1]), BAND, {})
    for value in set(values) - {values[-1]}:
        if abs(value - values[-1]) > BAND.width:
            assert deadbands.sends(KEY, sent(value), BAND, {})
