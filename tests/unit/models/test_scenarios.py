"""Courses of the publish path by hand: each shows one promise at the one moment at which it can be broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from agent.contract import Ledger, StreamState
from tests.unit.models import promises
from tests.unit.models.promises import CLASSES, MOST_BATCHES
from tests.unit.models.publish_path import RUN, SCOPE, Course
from tests.unit.models.stream import WINDOW, Mood

CLS, OTHER = CLASSES
FULL_DRAFT = 6
"""So many readings are a draft that waits for no more."""


@pytest.fixture
def course() -> Iterator[Course]:
    """Connected; at the end all is well again, and everybody was told the truth."""
    one = Course()
    try:
        one.connect()
        yield one
        promises.check(one)
        one.ends_well()
    finally:
        one.time.close()


def told(course: Course) -> list[str | None]:
    return [one.told for one in course.handed]


def sends(
    course: Course,
    level: str,
    cls: str,
    count: int,
    *,
    wide: bool = False,
    key: tuple[str, int] | None = None,
) -> None:
    """Hand in readings, and let them linger no more."""
    course.hand_in(level, cls, count, wide=wide, key=key)
    course.time.passes(0.2)


def counts(course: Course) -> tuple[int, int, int]:
    """Accepted, refused, and refused after acceptance."""
    readings = course.ledgers[CLS].readings
    return readings.accepted, readings.refused, readings.refused_late


def test_what_lingers_alone_behind_a_full_draft_is_sent_too(course: Course) -> None:
    course.hand_in("stored", CLS, 5)
    sends(course, "stored", CLS, 3)  # does not fit: the first is sealed, and this begins the next
    course.flows()
    assert told(course) == ["stored", "stored"]


def test_what_was_sent_is_of_unknown_outcome_when_nobody_answers(course: Course) -> None:
    sends(course, "stored", CLS, 1)
    course.time.passes(11.0)
    assert told(course) == ["nothing"], "it may still be stored"


def test_what_was_refused_before_it_was_sent_is_never_sent(course: Course) -> None:
    course.cut()
    course.hand_in("stored", CLS, 1)
    course.time.passes(11.0)
    assert told(course) == ["refused"]
    course.connect()
    course.flows()
    assert course.streams[CLS].ever == []
    promises.check(course)


def test_who_gives_up_takes_nobody_elses_readings_along(course: Course) -> None:
    course.cut()
    course.hand_in("stored", CLS, 1)
    course.time.passes(2.0)
    course.hand_in("stored", OTHER, 1)
    course.time.passes(8.5)
    assert told(course) == ["refused", None]
    course.connect()
    course.flows()
    assert told(course) == ["refused", "stored"]


def test_a_key_whose_sender_left_before_there_was_room_is_free_again(course: Course) -> None:
    course.cut()
    course.hand_in("stored", CLS, 1, wide=True)  # more than may be in flight
    course.hand_in("stored", CLS, 1, key=("key", 0))
    course.leave(1)
    course.connect()
    course.flows()
    sends(course, "stored", CLS, 1, key=("key", 0))
    course.flows()
    assert told(course)[1:] == ["nothing", "stored"]


def test_a_key_that_was_refused_is_free_and_one_that_was_stored_is_known(course: Course) -> None:
    stream = course.streams[CLS]
    stream.mood = Mood.FULL
    sends(course, "stored", CLS, 1, key=("key", 0))
    course.flows()
    stream.mood = Mood.WELL
    course.sender.has_room(CLS)
    assert not course.notified, "nothing was stored"
    sends(course, "stored", CLS, 1, key=("key", 0))
    course.flows()
    assert told(course) == ["refused", "stored"]
    assert (CLS, f"{SCOPE}:key-key") in course.publisher.requests.known(course.time.now)
    assert course.publisher.requests.count(course.time.now + promises.KNOWN) == 0


KEY = ("key", 0)


def no_room(course: Course) -> None:
    course.trouble = "the disk is full"


def no_server(course: Course) -> None:
    course.cut()
    course.time.passes(5.0)


def stops(course: Course) -> None:
    course.stop()


@pytest.mark.parametrize("happens", [no_room, no_server, stops])
def test_a_repeat_of_what_is_in_flight_is_not_refused(
    course: Course, happens: Callable[[Course], None]
) -> None:
    sends(course, "stored", CLS, 1, key=KEY)
    course.reads(1, answer=False)
    happens(course)
    course.hand_in("stored", CLS, 1, key=KEY)
    course.hand_in("stored", CLS, 1)
    assert told(course) == [None, None, "refused"]
    course.time.passes(11.0)
    assert told(course) == ["nothing", "nothing", "refused"]


@pytest.mark.parametrize("happens", [no_room, no_server, stops])
def test_a_repeat_of_what_is_stored_is_acknowledged_whatever_keeps_others_out(
    course: Course, happens: Callable[[Course], None]
) -> None:
    sends(course, "stored", CLS, 1, key=KEY)
    course.flows()
    happens(course)
    course.hand_in("stored", CLS, 1, key=KEY)
    course.hand_in("stored", CLS, 1)
    assert told(course) == ["stored", "stored", "refused"]


def test_while_the_keys_of_an_earlier_run_are_not_known_a_key_is_not_refused(course: Course) -> None:
    course.publisher.recalled.clear()
    course.hand_in("stored", CLS, 1, key=("first", 0))
    no_server(course)
    course.hand_in("stored", CLS, 1, key=KEY)
    course.hand_in("stored", CLS, 1)
    assert told(course) == [None, "nothing", "refused"]
    course.time.passes(6.0)
    assert told(course) == ["nothing", "nothing", "refused"]
    assert course.ledgers[CLS].n == 0
    course.publisher.recalled.set()


def test_a_repeat_of_what_was_in_flight_when_the_agent_ended_is_not_refused() -> None:
    course = Course()
    try:
        course.connect()
        sends(course, "stored", CLS, 1, key=KEY)
        course.reads(1, answer=False)
        course.abandon()
        course.hand_in("stored", CLS, 1, key=KEY)
        assert told(course) == ["nothing", "nothing"]
    finally:
        course.time.close()


def test_a_keyed_request_waits_until_the_keys_before_it_are_known_again(course: Course) -> None:
    course.publisher.recalled.clear()
    sends(course, "stored", CLS, 1, key=("key", 0))
    course.flows()
    assert (told(course), course.ledgers[CLS].n) == ([None], 0)
    course.publisher.recalled.set()
    course.time.passes(0.2)
    course.flows()
    assert told(course) == ["stored"]


def test_who_asks_for_the_hub_is_told_when_it_is_there(course: Course) -> None:
    sends(course, "hub", CLS, 1)
    course.flows()
    assert told(course) == [None]
    course.hub_takes(CLS, 1.0)
    assert told(course) == ["stored"]


def test_a_repeat_of_what_stood_in_a_lost_store_is_not_told_to_be_at_the_hub(course: Course) -> None:
    for _ in range(2):
        sends(course, "hub", CLS, 1, key=("key", 0))
        course.flows()
        course.hub_takes(CLS, 1.0)
        course.cut()
        course.lose_store(CLS, 0)
        course.connect()
    assert told(course) == ["stored", "nothing"]


def test_while_a_stream_is_known_to_be_full_nothing_is_acknowledged_early(course: Course) -> None:
    stream = course.streams[CLS]
    stream.mood = Mood.FULL
    sends(course, "accepted", CLS, 2)
    assert told(course) == ["accepted"]
    course.flows()
    record = course.ledgers[CLS].record(StreamState("", 0, 0))
    assert record.refused == ((1, 1, "stream_full after acceptance"),), "the loss is named"
    sends(course, "accepted", CLS, 3)
    assert told(course) == ["accepted", "refused"]
    assert (counts(course), course.ledgers[CLS].n) == ((2, 2, 2), 1), "it needs no number"
    stream.mood = Mood.WELL
    course.sender.has_room(CLS)
    sends(course, "accepted", CLS, 1)
    course.flows()
    course.hand_in("accepted", CLS, 1)
    assert told(course)[2:] == ["accepted", "accepted"], "and early again once something was stored"


def test_of_a_draft_that_is_refused_only_what_was_promised_is_entered_as_lost(course: Course) -> None:
    stream = course.streams[CLS]
    stream.mood = Mood.FULL
    sends(course, "accepted", CLS, 1)
    course.hand_in("accepted", CLS, 2)  # promised, and lingers
    course.flows()
    sends(course, "accepted", CLS, 3)  # into the same draft, and not promised any more
    assert told(course) == ["accepted", "accepted", "refused"]
    assert counts(course) == (3, 3, 3)


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_what_a_full_disk_keeps_waiting_is_counted_and_sent_in_its_order(course: Course, looks: int) -> None:
    course.cut()
    for _ in range(2):
        course.hand_in("accepted", CLS, FULL_DRAFT)
    course.trouble = "the disk is full"
    course.connect()
    course.hand_in("accepted", CLS, 1)
    assert told(course) == ["accepted", "accepted", "refused"]
    promises.check(course)
    drained = course.time.spawn(course.sender.drained())
    course.time.passes(0.5 * looks)
    assert not drained.done()
    course.trouble = None
    course.time.passes(0.6)
    course.flows()
    assert drained.done()
    lines = [line for held in course.streams[CLS].held for line in promises._lines(held)]
    assert lines == [line for one in course.handed[:2] for line in one.lines]


def test_what_comes_once_the_disk_has_room_stands_behind_what_waited_for_it(course: Course) -> None:
    course.cut()
    for _ in range(2):
        course.hand_in("accepted", CLS, FULL_DRAFT)
    course.trouble = "the disk is full"
    course.connect()
    course.time.passes(0.1)
    course.trouble = None
    course.hand_in("accepted", CLS, FULL_DRAFT)
    course.flows()
    course.time.passes(0.6)
    course.flows()
    lines = [line for held in course.streams[CLS].held for line in promises._lines(held)]
    assert lines == [line for one in course.handed for line in one.lines]


def test_what_waits_for_the_disk_when_the_agent_ends_is_entered_as_lost() -> None:
    course = Course()
    try:
        course.hand_in("accepted", CLS, FULL_DRAFT)
        course.trouble = "the disk is full"
        course.connect()
        course.stop()
        course.abandon()
        assert counts(course) == (FULL_DRAFT, FULL_DRAFT, FULL_DRAFT)
    finally:
        course.time.close()


def test_an_input_that_is_acknowledged_early_is_so_while_the_server_is_away(course: Course) -> None:
    course.cut()
    course.time.passes(5.0)
    course.hand_in("accepted", CLS, 1)
    course.hand_in("stored", CLS, 1)
    assert told(course) == ["accepted", "refused"]


def test_a_batch_whose_answer_was_lost_is_settled_by_a_look_at_the_stream(course: Course) -> None:
    sends(course, "stored", CLS, 1)
    course.reads(1, answer=False)
    sends(course, "stored", CLS, 1)
    course.reads(1)
    course.answer_comes()  # of the second, behind which the third begins to look
    sends(course, "stored", CLS, 1)
    course.reads(1, answer=False)
    course.cut()
    course.connect()
    assert course.acks.keys() == {f"{RUN}-{CLS}-{n}" for n in (1, 2, 3)}
    assert told(course) == ["stored"] * 3


def test_in_a_store_that_was_lost_a_batch_is_looked_for_from_its_beginning(course: Course) -> None:
    course.device_publishes(CLS, 5)
    course.cut()
    course.connect()
    sends(course, "stored", CLS, 1)
    course.cut()
    course.lose_store(CLS, 0)
    course.connect()
    course.reads(1, answer=False)
    course.cut()
    course.connect()
    assert told(course) == ["stored"]


def test_a_refusal_over_a_new_connection_is_believed_at_once(course: Course) -> None:
    sends(course, "stored", CLS, 1)
    course.cut()
    course.connect()
    course.streams[CLS].mood = Mood.FULL
    course.flows()
    assert told(course) == ["refused"]
    promises.check(course)


def test_an_answer_over_the_connection_before_decides_nothing(course: Course) -> None:
    stream = course.streams[CLS]
    stream.mood = Mood.FULL
    sends(course, "stored", CLS, 1)
    course.reads(1)
    course.cut()
    stream.mood = Mood.WELL
    course.connect()
    course.old_answer_comes(0)
    assert told(course) == [None]
    course.flows()
    assert told(course) == ["stored"]


def test_a_refusal_is_not_believed_while_another_attempt_is_under_way(course: Course) -> None:
    stream = course.streams[CLS]
    sends(course, "stored", CLS, 1)
    course.time.passes(6.0)  # it is sent again
    stream.mood = Mood.FULL
    course.reads(1)
    stream.mood = Mood.WELL
    course.reads(1)
    course.answer_comes()
    assert told(course) == [None]
    course.flows()
    assert told(course) == ["stored"]


def settled(course: Course) -> Ledger:
    """What the ledger says of the numbers once nothing is under way any more."""
    for _ in range(5):
        course.flows()
        course.time.passes()
    return course.ledgers[CLS].record(StreamState("", 0, 0))


def test_a_batch_whose_id_a_device_has_taken_is_stored_under_a_later_number(course: Course) -> None:
    course.device_forges(CLS, 1, 2)
    sends(course, "stored", CLS, 3)
    sends(course, "stored", CLS, 1)
    record = settled(course)
    assert told(course) == ["stored", "stored"]
    assert (record.refused, record.stored) == (((1, 2, "message_id_taken"),), ((3, 4),))
    assert (record.readings.accepted, record.readings.stored, record.readings.refused) == (4, 4, 0)


def test_what_a_device_published_under_an_id_is_not_at_the_hub_as_the_batch(course: Course) -> None:
    course.device_forges(CLS, 1, 1)
    sends(course, "hub", CLS, 1)
    course.reads(1)
    course.hub_takes(CLS, 1.0)
    settled(course)
    assert told(course) == [None]
    course.hub_takes(CLS, 1.0)
    assert told(course) == ["stored"]


def test_an_id_that_is_taken_while_the_connection_is_away_settles_nothing(course: Course) -> None:
    sends(course, "stored", CLS, 1)
    course.cut()
    course.device_forges(CLS, 0, 0)
    course.connect()
    assert told(course) == [None]
    assert settled(course).stored == ((2, 2),)


def test_an_id_that_is_taken_after_a_refused_attempt_settles_nothing(course: Course) -> None:
    stream = course.streams[CLS]
    stream.mood = Mood.LATER
    sends(course, "stored", CLS, 1)
    course.flows()
    stream.mood = Mood.WELL
    course.device_forges(CLS, 0, 0)
    course.time.passes(0.6)
    assert settled(course).stored == ((2, 2),)


def test_an_id_is_given_up_only_once_no_attempt_under_it_can_be_stored_any_more(course: Course) -> None:
    course.device_forges(CLS, 1, 1)
    course.time.passes(WINDOW - 3)
    sends(course, "stored", CLS, 1)
    course.reads(1)
    course.time.passes(6.0)  # it is sent again, and by then the stream has forgotten the device's message
    course.answer_comes()
    assert settled(course).stored == ((1, 1),)
    assert told(course) == ["stored"]


def test_a_batch_that_an_earlier_connection_stored_late_keeps_its_number(course: Course) -> None:
    sends(course, "stored", CLS, 1)
    course.cut()
    course.connect(late=1)
    assert settled(course).stored == ((1, 1),)


def test_a_look_that_fails_is_repeated(course: Course) -> None:
    course.device_forges(CLS, 1, 1)
    sends(course, "stored", CLS, 1)
    course.looks_fail = 2
    course.flows()
    course.time.passes(1.1)
    assert settled(course).stored == ((2, 2),)


@pytest.mark.parametrize("lost", [True, False])
def test_a_look_over_the_connection_before_decides_nothing(course: Course, lost: bool) -> None:
    sends(course, "stored", CLS, 1)
    course.cut()
    course.connect(late=1)
    course.look_takes = 1.0
    course.flows()
    course.cut()
    if lost:
        course.lose_store(CLS, 0)
    course.streams[CLS].mood = Mood.LATER
    course.connect()
    course.flows()
    course.time.passes(2.0)
    assert told(course) == [None if lost else "stored"]


def test_what_a_store_held_that_is_lost_does_not_keep_a_batch_from_being_sent_again(course: Course) -> None:
    course.device_forges(CLS, 1, 1)
    sends(course, "stored", CLS, 1)
    course.looks_fail = 1
    course.flows()
    course.cut()
    course.lose_store(CLS, 0)
    course.streams[CLS].mood = Mood.LATER
    course.connect()
    course.flows()
    course.streams[CLS].mood = Mood.WELL
    course.time.passes(0.6)
    assert settled(course).stored == ((1, 1),)


def test_an_input_may_ask_for_its_position_once_none_of_its_batches_is_in_flight(course: Course) -> None:
    course.pull(2)
    idle = course.time.spawn(course.sender.idle("pull"))
    course.time.passes(0.2)
    assert not idle.done()
    course.flows()
    course.time.passes(0.2)
    assert idle.done()


def test_no_more_batches_are_in_flight_than_the_window_holds(course: Course) -> None:
    for _ in range(MOST_BATCHES + 2):
        course.hand_in("stored", CLS, FULL_DRAFT)
    assert course.wire is not None
    assert len(course.wire.asked) == MOST_BATCHES
    for _ in range(2):
        course.flows()
    assert told(course) == ["stored"] * (MOST_BATCHES + 2)


def test_attempts_end_inside_the_duplicate_window_and_begin_anew_with_a_connection(course: Course) -> None:
    sends(course, "accepted", CLS, 1)
    course.time.passes(100.0)
    assert course.wire is None, "a new connection looks first"
    course.connect()
    course.time.passes(2.0)
    assert course.wire is not None, "and has its whole time"


def test_a_draft_that_is_larger_than_a_message_is_refused_and_not_sent(course: Course) -> None:
    sends(course, "stored", CLS, 2, wide=True)
    assert course.wire is not None
    assert (told(course), course.wire.asked, course.ledgers[CLS].n) == (["refused"], [], 0)


def test_dead_letters_are_stored_and_counted_as_such(course: Course) -> None:
    course.bury(CLS, 2)
    sends(course, "stored", CLS, 1)
    course.flows()
    assert [one.subject.split(".")[3] for one in course.streams[CLS].held] == ["_dead", "_batch"]
    readings = course.ledgers[CLS].readings
    assert (readings.accepted, readings.stored, readings.dead) == (3, 1, 2)


def test_all_who_wait_for_room_are_told_when_the_agent_ends() -> None:
    course = Course()
    try:
        course.hand_in("accepted", CLS, 1, wide=True)  # more than may be in flight
        for _ in range(2):
            course.hand_in("accepted", CLS, 1, wide=True)
        course.stop()
        course.abandon()
        assert told(course) == ["accepted", "refused", "refused"]
    finally:
        course.time.close()
