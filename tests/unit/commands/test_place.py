from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.commands.place import Course, Place, parse_place, unanswered
from agent.contract import ContractError

LAST = Place("first", "o", 5, 50, "e", "set")


def _course(last: Place | None, created: str, origin: str = "p") -> Course:
    course = Course(last)
    course.enter(created, origin)
    return course


def test_whoever_ran_nothing_runs_all_from_the_beginning() -> None:
    course = _course(None, "first")
    assert course.next == 1
    assert course.take(3, 30, "c", "ping") == Place("first", "p", 3, 30, "c", "ping")
    assert course.next == 4


def test_in_the_same_stream_the_sequence_decides_whatever_the_hubs_clock_says() -> None:
    course = _course(LAST, "first")
    assert course.next == 6
    assert course.take(6, 10, "f", "ping") == Place("first", "p", 6, 50, "f", "ping")


def test_a_stream_that_was_made_anew_is_looked_through_for_what_is_later() -> None:
    course = _course(LAST, "second")
    assert course.next == 1
    assert course.take(1, 40, "x", "ping") is None
    assert course.take(2, 60, "y", "ping") == Place("second", "p", 2, 60, "y", "ping")
    assert course.take(3, 55, "z", "ping") == Place("second", "p", 3, 60, "z", "ping")


def test_what_follows_the_last_command_run_is_new_although_the_hubs_clock_went_back() -> None:
    course = _course(LAST, "second")
    assert course.take(4, 20, "d", "ping") is None
    assert course.take(5, 50, "e", "set") is None
    assert course.take(6, 20, "f", "ping") == Place("second", "p", 6, 50, "f", "ping")


def test_what_stands_above_the_last_command_of_the_same_origin_is_new_whatever_the_clock_says() -> None:
    course = _course(LAST, "second", origin="o")
    assert course.take(4, 20, "d", "ping") is None
    assert course.take(6, 20, "f", "ping") == Place("second", "o", 6, 50, "f", "ping")


def test_another_command_at_the_sequence_of_the_last_one_is_not_taken_for_it() -> None:
    course = _course(LAST, "second")
    assert course.take(5, 45, "other", "set") is None
    assert course.take(6, 46, "f", "ping") is None


def test_a_stream_made_anew_while_the_agent_runs_is_entered_from_its_beginning() -> None:
    course = _course(LAST, "first")
    course.take(6, 60, "f", "ping")
    course.enter("second", "p")
    assert course.next == 1
    assert course.take(1, 70, "g", "ping") is not None


def test_what_holds_nothing_of_ours_is_not_looked_through_again() -> None:
    course = _course(LAST, "first")
    course.skip(90)
    assert course.next == 91
    course.skip(7)
    assert course.next == 91


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9), st.sampled_from(["run", "recreated", "restarted", "origin", "put back"])
        ),
        max_size=40,
    )
)
def test_no_command_is_run_twice_and_none_is_left_out_while_the_origin_stands(
    events: list[tuple[int, str]],
) -> None:
    """The hub's clock goes on by so much before each command; between them the mirror is made anew, the agent
    restarted, or the hub's stream made anew or put
    back to an older copy."""
    clock, seq, incarnation, origin = 0, 0, 0, 0
    held: list[tuple[int, int, str]] = []
    course = Course(None)
    last: Place | None = None
    sent: list[str] = []
    run: list[str] = []
    for number, (step, event) in enumerate(events):
        if event == "recreated":
            incarnation += 1
        elif event == "restarted":
            course = Course(None if last is None else parse_place(last.encode()))
        elif event == "origin":
            incarnation, origin, seq, held = incarnation + 1, origin + 1, 0, []
        elif event == "put back":
            incarnation, held = incarnation + 1, held[: len(held) // 2]
            seq = len(held)
        clock, seq = clock + step + 1, seq + 1
        held.append((seq, clock, f"c{number}"))
        sent.append(f"c{number}")
        course.enter(str(incarnation), str(origin))
        for at, when, ident in held:
            if at >= course.next and (place := course.take(at, when, ident, "ping")) is not None:
                run.append(ident)
                last = place
    assert run == sent


@pytest.mark.parametrize(
    ("begun", "answered", "open_"),
    [
        (None, None, False),
        (None, LAST, False),
        (LAST, None, True),
        (LAST, LAST, False),
        (Place("first", "o", 6, 50, "f", "set"), LAST, True),
        (Place("first", "o", 4, 50, "d", "set"), LAST, False),
        (Place("second", "o", 1, 60, "g", "set"), LAST, True),
        (Place("zeroth", "o", 9, 40, "a", "set"), LAST, False),
    ],
)
def test_a_command_is_unanswered_when_it_comes_after_the_last_answer(
    begun: Place | None, answered: Place | None, open_: bool
) -> None:
    assert unanswered(begun, answered) is open_


@given(st.builds(Place, st.text(), st.text(), st.integers(), st.integers(), st.text(), st.text()))
def test_a_place_travels_as_printable_ascii(place: Place) -> None:
    text = place.encode()
    assert text.isascii()
    assert text.isprintable()
    assert parse_place(text) == place


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"created":"","origin":"","seq":"1","time":1,"id":"","verb":""}', "1"]
)
def test_a_place_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ContractError, match="place of a command"):
        parse_place(text)
