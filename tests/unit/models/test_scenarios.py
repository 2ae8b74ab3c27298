"""Courses of the publish path by hand: each shows one promise at the one moment at which it can be broken."""

from __future__ import annotations

import pytest

from agent.contract import Ledger, StreamState
from tests.unit.models import promises
from tests.unit.models.promises import CLASSES, MOST_BATCHES
from tests.unit.models.publish_path import RUN, PublishScenario
from tests.unit.models.stream import WINDOW, Mood

CLS, OTHER = CLASSES
FULL_DRAFT = 6
"""So many readings are a draft that waits for no more."""


def told(scenario: PublishScenario) -> list[str | None]:
    return [one.told for one in scenario.handed]


def sends(
    scenario: PublishScenario,
    level: str,
    cls: str,
    count: int,
    *,
    wide: bool = False,
    key: tuple[str, int] | None = None,
) -> None:
    """Hand in readings, and let them linger no more."""
    scenario.hand_in(level, cls, count, wide=wide, key=key)
    scenario.time.passes(0.2)


def counts(scenario: PublishScenario) -> tuple[int, int, int]:
    """Accepted, refused, and refused after acceptance."""
    readings = scenario.ledgers[CLS].readings
    return readings.accepted, readings.refused, readings.refused_late


def test_what_lingers_alone_behind_a_full_draft_is_sent_too(scenario: PublishScenario) -> None:
    scenario.hand_in("stored", CLS, 5)
    sends(scenario, "stored", CLS, 3)  # does not fit: the first is sealed, and this begins the next
    scenario.flows()
    assert told(scenario) == ["stored", "stored"]


def test_what_was_sent_is_of_unknown_outcome_when_nobody_answers(scenario: PublishScenario) -> None:
    sends(scenario, "stored", CLS, 1)
    scenario.time.passes(11.0)
    assert told(scenario) == ["nothing"], "it may still be stored"


def test_what_was_refused_before_it_was_sent_is_never_sent(scenario: PublishScenario) -> None:
    scenario.cut()
    scenario.hand_in("stored", CLS, 1)
    scenario.time.passes(11.0)
    assert told(scenario) == ["refused"]
    scenario.connect()
    scenario.flows()
    assert scenario.streams[CLS].ever == []
    promises.check(scenario)


def test_who_gives_up_takes_nobody_elses_readings_along(scenario: PublishScenario) -> None:
    scenario.cut()
    scenario.hand_in("stored", CLS, 1)
    scenario.time.passes(2.0)
    scenario.hand_in("stored", OTHER, 1)
    scenario.time.passes(8.5)
    assert told(scenario) == ["refused", None]
    scenario.connect()
    scenario.flows()
    assert told(scenario) == ["refused", "stored"]


def test_who_asks_for_the_hub_is_told_when_it_is_there(scenario: PublishScenario) -> None:
    sends(scenario, "hub", CLS, 1)
    scenario.flows()
    assert told(scenario) == [None]
    scenario.hub_takes(CLS, 1.0)
    assert told(scenario) == ["stored"]


def test_while_a_stream_is_known_to_be_full_nothing_is_acknowledged_early(scenario: PublishScenario) -> None:
    stream = scenario.streams[CLS]
    stream.mood = Mood.FULL
    sends(scenario, "accepted", CLS, 2)
    assert told(scenario) == ["accepted"]
    scenario.flows()
    record = scenario.ledgers[CLS].record(StreamState("", 0, 0))
    assert record.refused == ((1, 1, "stream_full after acceptance"),), "the loss is named"
    sends(scenario, "accepted", CLS, 3)
    assert told(scenario) == ["accepted", "refused"]
    assert (counts(scenario), scenario.ledgers[CLS].n) == ((2, 2, 2), 1), "it needs no number"
    stream.mood = Mood.WELL
    scenario.sender.has_room(CLS)
    sends(scenario, "accepted", CLS, 1)
    scenario.flows()
    scenario.hand_in("accepted", CLS, 1)
    assert told(scenario)[2:] == ["accepted", "accepted"], "and early again once something was stored"


def test_of_a_draft_that_is_refused_only_what_was_promised_is_entered_as_lost(
    scenario: PublishScenario,
) -> None:
    stream = scenario.streams[CLS]
    stream.mood = Mood.FULL
    sends(scenario, "accepted", CLS, 1)
    scenario.hand_in("accepted", CLS, 2)  # promised, and lingers
    scenario.flows()
    sends(scenario, "accepted", CLS, 3)  # into the same draft, and not promised any more
    assert told(scenario) == ["accepted", "accepted", "refused"]
    assert counts(scenario) == (3, 3, 3)


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_what_a_full_disk_keeps_waiting_is_counted_and_sent_in_its_order(
    scenario: PublishScenario, looks: int
) -> None:
    scenario.cut()
    for _ in range(2):
        scenario.hand_in("accepted", CLS, FULL_DRAFT)
    scenario.trouble = "the disk is full"
    scenario.connect()
    scenario.hand_in("accepted", CLS, 1)
    assert told(scenario) == ["accepted", "accepted", "refused"]
    promises.check(scenario)
    drained = scenario.time.spawn(scenario.sender.drained())
    scenario.time.passes(0.5 * looks)
    assert not drained.done()
    scenario.trouble = None
    scenario.time.passes(0.6)
    scenario.flows()
    assert drained.done()
    lines = [line for held in scenario.streams[CLS].held for line in promises._lines(held)]
    assert lines == [line for one in scenario.handed[:2] for line in one.lines]


def test_what_comes_once_the_disk_has_room_stands_behind_what_waited_for_it(
    scenario: PublishScenario,
) -> None:
    scenario.cut()
    for _ in range(2):
        scenario.hand_in("accepted", CLS, FULL_DRAFT)
    scenario.trouble = "the disk is full"
    scenario.connect()
    scenario.time.passes(0.1)
    scenario.trouble = None
    scenario.hand_in("accepted", CLS, FULL_DRAFT)
    scenario.flows()
    scenario.time.passes(0.6)
    scenario.flows()
    lines = [line for held in scenario.streams[CLS].held for line in promises._lines(held)]
    assert lines == [line for one in scenario.handed for line in one.lines]


def test_what_waits_for_the_disk_when_the_agent_ends_is_entered_as_lost() -> None:
    scenario = PublishScenario()
    try:
        scenario.hand_in("accepted", CLS, FULL_DRAFT)
        scenario.trouble = "the disk is full"
        scenario.connect()
        scenario.stop()
        scenario.abandon()
        assert counts(scenario) == (FULL_DRAFT, FULL_DRAFT, FULL_DRAFT)
    finally:
        scenario.time.close()


def test_an_input_that_is_acknowledged_early_is_so_while_the_server_is_away(
    scenario: PublishScenario,
) -> None:
    scenario.cut()
    scenario.time.passes(5.0)
    scenario.hand_in("accepted", CLS, 1)
    scenario.hand_in("stored", CLS, 1)
    assert told(scenario) == ["accepted", "refused"]


def test_a_batch_whose_answer_was_lost_is_settled_by_a_look_at_the_stream(scenario: PublishScenario) -> None:
    sends(scenario, "stored", CLS, 1)
    scenario.reads(1, answer=False)
    sends(scenario, "stored", CLS, 1)
    scenario.reads(1)
    scenario.answer_comes()  # of the second, behind which the third begins to look
    sends(scenario, "stored", CLS, 1)
    scenario.reads(1, answer=False)
    scenario.cut()
    scenario.connect()
    assert scenario.acks.keys() == {f"{RUN}-{CLS}-{n}" for n in (1, 2, 3)}
    assert told(scenario) == ["stored"] * 3


def test_in_a_store_that_was_lost_a_batch_is_looked_for_from_its_beginning(scenario: PublishScenario) -> None:
    scenario.device_publishes(CLS, 5)
    scenario.cut()
    scenario.connect()
    sends(scenario, "stored", CLS, 1)
    scenario.cut()
    scenario.lose_store(CLS, 0)
    scenario.connect()
    scenario.reads(1, answer=False)
    scenario.cut()
    scenario.connect()
    assert told(scenario) == ["stored"]


def test_a_refusal_over_a_new_connection_is_believed_at_once(scenario: PublishScenario) -> None:
    sends(scenario, "stored", CLS, 1)
    scenario.cut()
    scenario.connect()
    scenario.streams[CLS].mood = Mood.FULL
    scenario.flows()
    assert told(scenario) == ["refused"]
    promises.check(scenario)


def test_an_answer_over_the_connection_before_decides_nothing(scenario: PublishScenario) -> None:
    stream = scenario.streams[CLS]
    stream.mood = Mood.FULL
    sends(scenario, "stored", CLS, 1)
    scenario.reads(1)
    scenario.cut()
    stream.mood = Mood.WELL
    scenario.connect()
    scenario.old_answer_comes(0)
    assert told(scenario) == [None]
    scenario.flows()
    assert told(scenario) == ["stored"]


def test_a_refusal_is_not_believed_while_another_attempt_is_under_way(scenario: PublishScenario) -> None:
    stream = scenario.streams[CLS]
    sends(scenario, "stored", CLS, 1)
    scenario.time.passes(6.0)  # it is sent again
    stream.mood = Mood.FULL
    scenario.reads(1)
    stream.mood = Mood.WELL
    scenario.reads(1)
    scenario.answer_comes()
    assert told(scenario) == [None]
    scenario.flows()
    assert told(scenario) == ["stored"]


def settled(scenario: PublishScenario) -> Ledger:
    """What the ledger says of the numbers once nothing is under way any more."""
    for _ in range(5):
        scenario.flows()
        scenario.time.passes()
    return scenario.ledgers[CLS].record(StreamState("", 0, 0))


def test_a_batch_whose_id_a_device_has_taken_is_stored_under_a_later_number(
    scenario: PublishScenario,
) -> None:
    scenario.device_forges(CLS, 1, 2)
    sends(scenario, "stored", CLS, 3)
    sends(scenario, "stored", CLS, 1)
    record = settled(scenario)
    assert told(scenario) == ["stored", "stored"]
    assert (record.refused, record.stored) == (((1, 2, "message_id_taken"),), ((3, 4),))
    assert (record.readings.accepted, record.readings.stored, record.readings.refused) == (4, 4, 0)


def test_what_a_device_published_under_an_id_is_not_at_the_hub_as_the_batch(
    scenario: PublishScenario,
) -> None:
    scenario.device_forges(CLS, 1, 1)
    sends(scenario, "hub", CLS, 1)
    scenario.reads(1)
    scenario.hub_takes(CLS, 1.0)
    settled(scenario)
    assert told(scenario) == [None]
    scenario.hub_takes(CLS, 1.0)
    assert told(scenario) == ["stored"]


def test_an_id_that_is_taken_while_the_connection_is_away_settles_nothing(scenario: PublishScenario) -> None:
    sends(scenario, "stored", CLS, 1)
    scenario.cut()
    scenario.device_forges(CLS, 0, 0)
    scenario.connect()
    assert told(scenario) == [None]
    assert settled(scenario).stored == ((2, 2),)


def test_an_id_that_is_taken_after_a_refused_attempt_settles_nothing(scenario: PublishScenario) -> None:
    stream = scenario.streams[CLS]
    stream.mood = Mood.LATER
    sends(scenario, "stored", CLS, 1)
    scenario.flows()
    stream.mood = Mood.WELL
    scenario.device_forges(CLS, 0, 0)
    scenario.time.passes(0.6)
    assert settled(scenario).stored == ((2, 2),)


def test_an_id_is_given_up_only_once_no_attempt_under_it_can_be_stored_any_more(
    scenario: PublishScenario,
) -> None:
    scenario.device_forges(CLS, 1, 1)
    scenario.time.passes(WINDOW - 3)
    sends(scenario, "stored", CLS, 1)
    scenario.reads(1)
    scenario.time.passes(6.0)  # it is sent again, and by then the stream has forgotten the device's message
    scenario.answer_comes()
    assert settled(scenario).stored == ((1, 1),)
    assert told(scenario) == ["stored"]


def test_a_batch_that_an_earlier_connection_stored_late_keeps_its_number(scenario: PublishScenario) -> None:
    sends(scenario, "stored", CLS, 1)
    scenario.cut()
    scenario.connect(late=1)
    assert settled(scenario).stored == ((1, 1),)


def test_a_look_that_fails_is_repeated(scenario: PublishScenario) -> None:
    scenario.device_forges(CLS, 1, 1)
    sends(scenario, "stored", CLS, 1)
    scenario.looks_fail = 2
    scenario.flows()
    scenario.time.passes(1.1)
    assert settled(scenario).stored == ((2, 2),)


@pytest.mark.parametrize("lost", [True, False])
def test_a_look_over_the_connection_before_decides_nothing(scenario: PublishScenario, lost: bool) -> None:
    sends(scenario, "stored", CLS, 1)
    scenario.cut()
    scenario.connect(late=1)
    scenario.look_takes = 1.0
    scenario.flows()
    scenario.cut()
    if lost:
        scenario.lose_store(CLS, 0)
    scenario.streams[CLS].mood = Mood.LATER
    scenario.connect()
    scenario.flows()
    scenario.time.passes(2.0)
    assert told(scenario) == [None if lost else "stored"]


def test_what_a_store_held_that_is_lost_does_not_keep_a_batch_from_being_sent_again(
    scenario: PublishScenario,
) -> None:
    scenario.device_forges(CLS, 1, 1)
    sends(scenario, "stored", CLS, 1)
    scenario.looks_fail = 1
    scenario.flows()
    scenario.cut()
    scenario.lose_store(CLS, 0)
    scenario.streams[CLS].mood = Mood.LATER
    scenario.connect()
    scenario.flows()
    scenario.streams[CLS].mood = Mood.WELL
    scenario.time.passes(0.6)
    assert settled(scenario).stored == ((1, 1),)


def test_an_input_may_ask_for_its_position_once_none_of_its_batches_is_in_flight(
    scenario: PublishScenario,
) -> None:
    scenario.pull(2)
    idle = scenario.time.spawn(scenario.sender.idle("pull"))
    scenario.time.passes(0.2)
    assert not idle.done()
    scenario.flows()
    scenario.time.passes(0.2)
    assert idle.done()


def test_no_more_batches_are_in_flight_than_the_window_holds(scenario: PublishScenario) -> None:
    for _ in range(MOST_BATCHES + 2):
        scenario.hand_in("stored", CLS, FULL_DRAFT)
    assert scenario.wire is not None
    assert len(scenario.wire.asked) == MOST_BATCHES
    for _ in range(2):
        scenario.flows()
    assert told(scenario) == ["stored"] * (MOST_BATCHES + 2)


def test_attempts_end_inside_the_duplicate_window_and_begin_anew_with_a_connection(
    scenario: PublishScenario,
) -> None:
    sends(scenario, "accepted", CLS, 1)
    scenario.time.passes(100.0)
    assert scenario.wire is None, "a new connection looks first"
    scenario.connect()
    scenario.time.passes(2.0)
    assert scenario.wire is not None, "and has its whole time"


def test_a_draft_that_is_larger_than_a_message_is_refused_and_not_sent(scenario: PublishScenario) -> None:
    sends(scenario, "stored", CLS, 2, wide=True)
    assert scenario.wire is not None
    assert (told(scenario), scenario.wire.asked, scenario.ledgers[CLS].n) == (["refused"], [], 0)


def test_dead_letters_are_stored_and_counted_as_such(scenario: PublishScenario) -> None:
    scenario.dead_letter(CLS, 2)
    sends(scenario, "stored", CLS, 1)
    scenario.flows()
    assert [one.subject.split(".")[3] for one in scenario.streams[CLS].held] == ["_dead", "_batch"]
    readings = scenario.ledgers[CLS].readings
    assert (readings.accepted, readings.stored, readings.dead) == (3, 1, 2)


def test_all_who_wait_for_room_are_told_when_the_agent_ends() -> None:
    scenario = PublishScenario()
    try:
        scenario.hand_in("accepted", CLS, 1, wide=True)  # more than may be in flight
        for _ in range(2):
            scenario.hand_in("accepted", CLS, 1, wide=True)
        scenario.stop()
        scenario.abandon()
        assert told(scenario) == ["accepted", "refused", "refused"]
    finally:
        scenario.time.close()
