"""Courses of the publish path by hand, with requests under idempotency keys: what a repeat is answered, and
what of it is left in memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest

from agent.contract import Request
from agent.leaf.intake import Chunk
from tests.unit.models import promises
from tests.unit.models.publish_path import SCOPE, PublishScenario
from tests.unit.models.stream import Mood
from tests.unit.models.test_scenarios import CLS, sends, told

KEY = ("key", 0)


def test_a_key_whose_sender_left_before_there_was_room_is_free_again(scenario: PublishScenario) -> None:
    scenario.cut()
    scenario.hand_in("stored", CLS, 1, wide=True)  # more than may be in flight
    scenario.hand_in("stored", CLS, 1, key=("key", 0))
    scenario.leave(1)
    scenario.connect()
    scenario.flows()
    sends(scenario, "stored", CLS, 1, key=("key", 0))
    scenario.flows()
    assert told(scenario)[1:] == ["nothing", "stored"]


def test_a_key_that_was_refused_is_free_and_one_that_was_stored_is_known(scenario: PublishScenario) -> None:
    stream = scenario.streams[CLS]
    stream.mood = Mood.FULL
    sends(scenario, "stored", CLS, 1, key=("key", 0))
    scenario.flows()
    stream.mood = Mood.WELL
    scenario.sender.has_room(CLS)
    assert not scenario.notified, "nothing was stored"
    sends(scenario, "stored", CLS, 1, key=("key", 0))
    scenario.flows()
    assert told(scenario) == ["refused", "stored"]
    assert (CLS, f"{SCOPE}:key-key") in scenario.publisher.requests.known(scenario.time.now)
    assert scenario.publisher.requests.count(scenario.time.now + promises.KNOWN) == 0


def no_room(scenario: PublishScenario) -> None:
    scenario.trouble = "the disk is full"


def no_server(scenario: PublishScenario) -> None:
    scenario.cut()
    scenario.time.passes(5.0)


def stops(scenario: PublishScenario) -> None:
    scenario.stop()


@pytest.mark.parametrize("happens", [no_room, no_server, stops])
def test_a_repeat_of_what_is_in_flight_is_not_refused(
    scenario: PublishScenario, happens: Callable[[PublishScenario], None]
) -> None:
    sends(scenario, "stored", CLS, 1, key=KEY)
    scenario.reads(1, answer=False)
    happens(scenario)
    scenario.hand_in("stored", CLS, 1, key=KEY)
    scenario.hand_in("stored", CLS, 1)
    assert told(scenario) == [None, None, "refused"]
    scenario.time.passes(11.0)
    assert told(scenario) == ["nothing", "nothing", "refused"]


@pytest.mark.parametrize("happens", [no_room, no_server, stops])
def test_a_repeat_of_what_is_stored_is_acknowledged_whatever_keeps_others_out(
    scenario: PublishScenario, happens: Callable[[PublishScenario], None]
) -> None:
    sends(scenario, "stored", CLS, 1, key=KEY)
    scenario.flows()
    happens(scenario)
    scenario.hand_in("stored", CLS, 1, key=KEY)
    scenario.hand_in("stored", CLS, 1)
    assert told(scenario) == ["stored", "stored", "refused"]


def test_while_the_keys_of_an_earlier_run_are_not_known_a_key_is_not_refused(
    scenario: PublishScenario,
) -> None:
    scenario.publisher.recalled.clear()
    scenario.hand_in("stored", CLS, 1, key=("first", 0))
    no_server(scenario)
    scenario.hand_in("stored", CLS, 1, key=KEY)
    scenario.hand_in("stored", CLS, 1)
    assert told(scenario) == [None, "nothing", "refused"]
    scenario.time.passes(6.0)
    assert told(scenario) == ["nothing", "nothing", "refused"]
    assert scenario.ledgers[CLS].n == 0
    scenario.publisher.recalled.set()


def test_a_repeat_of_what_was_in_flight_when_the_agent_ended_is_not_refused() -> None:
    scenario = PublishScenario()
    try:
        scenario.connect()
        sends(scenario, "stored", CLS, 1, key=KEY)
        scenario.reads(1, answer=False)
        scenario.abandon()
        scenario.hand_in("stored", CLS, 1, key=KEY)
        assert told(scenario) == ["nothing", "nothing"]
    finally:
        scenario.time.close()


@pytest.mark.parametrize("gives_up", ["at the deadline", "leaves"])
def test_repeats_of_what_is_in_flight_leave_nothing_in_memory_once_they_have_given_up(
    scenario: PublishScenario, gives_up: str
) -> None:
    sends(scenario, "stored", CLS, 1, key=KEY)
    scenario.reads(1, answer=False)
    scenario.cut()
    (first,) = scenario.handed
    lines = "".join(f"{line}\n" for line in first.lines)
    request, settlement = scenario.publisher.requests._in_flight[CLS, f"{SCOPE}:key-key"]
    for _ in range(3):
        waits_for = 1.0 if gives_up == "leaves" else 11.0
        assert is_forgotten(scenario, "stored", lines.encode(), request, waits_for)
    assert len(settlement._waits) <= 1


@pytest.mark.parametrize("level", ["stored", "hub"])
def test_what_was_refused_or_is_not_at_the_hub_in_time_leaves_nothing_in_memory(
    scenario: PublishScenario, level: str
) -> None:
    if level == "stored":
        scenario.cut()
    assert is_forgotten(scenario, level, b"1 aa\n", None, 11.0)


class Marker:
    """Is called with where a chunk is stored, and shows whether that chunk is still held."""

    def __call__(self, seq: int | None) -> None: ...


def is_forgotten(
    scenario: PublishScenario, level: str, payload: bytes, request: Request | None, seconds: float
) -> bool:
    """Whether nothing holds a chunk any more whose sender gave up or was answered within so many seconds,
    without a look for circles."""
    marker = Marker()
    held, chunk = weakref.ref(marker), Chunk(payload, 1, request, on_settled=marker)
    task = scenario.time.spawn(scenario.publisher.submit(level, CLS, chunk))
    del marker, chunk
    scenario.time.passes(0.2)
    scenario.flows()
    scenario.time.passes(seconds)
    task.cancel()
    scenario.time.passes(11.0)
    assert task.cancelled() or task.exception() is not None
    del task
    return held() is None


def test_a_keyed_request_waits_until_the_keys_before_it_are_known_again(scenario: PublishScenario) -> None:
    scenario.publisher.recalled.clear()
    sends(scenario, "stored", CLS, 1, key=("key", 0))
    scenario.flows()
    assert (told(scenario), scenario.ledgers[CLS].n) == ([None], 0)
    scenario.publisher.recalled.set()
    scenario.time.passes(0.2)
    scenario.flows()
    assert told(scenario) == ["stored"]


def test_a_repeat_of_what_stood_in_a_lost_store_is_not_told_to_be_at_the_hub(
    scenario: PublishScenario,
) -> None:
    for _ in range(2):
        sends(scenario, "hub", CLS, 1, key=("key", 0))
        scenario.flows()
        scenario.hub_takes(CLS, 1.0)
        scenario.cut()
        scenario.lose_store(CLS, 0)
        scenario.connect()
    assert told(scenario) == ["stored", "nothing"]
