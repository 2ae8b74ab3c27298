"""Accumulator, publisher and sender under every course of events: answers that are lost, doubled, late and
out of order, connections that go and come, refusals, stores that are lost, a stop in the middle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent.contract import H_ENCODING
from agent.leaf.publish import limits
from hub_jobs.refine.messages import unpack
from tests.harness.examples import machine
from tests.unit.models import promises
from tests.unit.models.promises import CLASSES
from tests.unit.models.publish_path import PublishScenario
from tests.unit.models.stream import Mood, own_id

classes = st.sampled_from(CLASSES)
few = st.integers(1, 3)
which = st.integers(0, 7)
MOST_UNPACKED = 300
"""Bytes, a little more than a draft gathers."""
KEYS = ("a0", "a1", "b0")
kinds = st.sampled_from(["plain", "plain", "plain", "wide", "dead", *KEYS])
chunks = st.tuples(st.sampled_from(["accepted", "stored", "hub"]), classes, few, kinds)


class PublishPath(RuleBasedStateMachine):
    """A course; what must hold is looked at after each step, and at the end when all is well again."""

    def __init__(self) -> None:
        super().__init__()
        self.scenario = PublishScenario()

    @initialize(linger=st.sampled_from([0.0, 0.0, 0.1]), rate=st.sampled_from([1000.0, 1.0]))
    def begin(self, linger: float, rate: float) -> None:
        self.scenario.time.close()
        self.scenario = PublishScenario(linger=linger, batches_per_second=rate)
        self.scenario.connect()

    @precondition(lambda self: not self.scenario.stopped)
    @rule(some=st.lists(chunks, min_size=1, max_size=5), seconds=st.sampled_from([0.0, 0.2]))
    def hand_in(self, some: list[tuple[str, str, int, str]], seconds: float) -> None:
        for name, cls, count, kind in some:
            key = (kind[0], int(kind[1])) if kind in KEYS else None
            if kind == "dead":
                self.scenario.dead_letter(cls, count)
            else:
                self.scenario.hand_in(name, cls, count, wide=kind == "wide", key=key)
        self.scenario.time.passes(seconds)

    @precondition(lambda self: not self.scenario.stopped and self.scenario.pull_may_go_on)
    @rule(count=few)
    def pull(self, count: int) -> None:
        self.scenario.pull(count)

    @rule(seconds=st.sampled_from([0.2, 0.2, 0.6, 6.0, 6.0, 11.0, 40.0, 130.0]))
    def time_passes(self, seconds: float) -> None:
        self.scenario.time.passes(seconds)

    @rule()
    def all_that_is_under_way_arrives(self) -> None:
        self.scenario.time.passes(0.2)
        self.scenario.flows()

    @rule(count=few, answer=st.sampled_from([True, True, True, False]))
    def the_server_reads(self, count: int, answer: bool) -> None:
        self.scenario.reads(count, answer=answer)

    @rule(one=which, times=st.sampled_from([1, 1, 1, 2, 0]))
    def an_answer_comes_or_is_lost(self, one: int, times: int) -> None:
        self.scenario.answer_comes(one, times)

    @rule(one=which)
    def an_answer_of_the_connection_before_comes(self, one: int) -> None:
        self.scenario.old_answer_comes(one)

    @rule(cls=classes, mood=st.sampled_from(list(Mood)))
    def a_stream_answers_otherwise(self, cls: str, mood: Mood) -> None:
        self.scenario.streams[cls].mood = mood

    @rule(cls=classes, mood=st.sampled_from(list(Mood)), count=few)
    def a_stream_answers_otherwise_for_a_moment(self, cls: str, mood: Mood, count: int) -> None:
        before, self.scenario.streams[cls].mood = self.scenario.streams[cls].mood, mood
        self.scenario.reads(count)
        self.scenario.streams[cls].mood = before

    @rule(seconds=st.sampled_from([0.0, 6.0, 40.0]))
    def all_answers_are_lost(self, seconds: float) -> None:
        self.scenario.reads(99, answer=False)
        self.scenario.time.passes(seconds)

    @rule(read=st.integers(0, 4))
    def the_connection_ends(self, read: int) -> None:
        self.scenario.cut(read)

    @precondition(lambda self: self.scenario.wire is None and not self.scenario.stopped)
    @rule(late=st.integers(0, 3))
    def the_connection_comes(self, late: int) -> None:
        self.scenario.connect(late)

    @precondition(lambda self: not self.scenario.stopped)
    @rule(read=few, late=st.integers(0, 3), seconds=st.sampled_from([0.0, 0.0, 2.0, 130.0]))
    def the_connection_is_made_anew(self, read: int, late: int, seconds: float) -> None:
        self.scenario.cut(read)
        self.scenario.time.passes(seconds)
        self.scenario.connect(late)

    @precondition(lambda self: self.scenario.wire is None)
    @rule(cls=classes, left=st.sampled_from([0.0, 0.5]))
    def a_store_is_wiped_or_put_back(self, cls: str, left: float) -> None:
        self.scenario.lose_store(cls, left)

    @rule(cls=classes, left=st.sampled_from([0.0, 0.5]), mood=st.sampled_from([Mood.WELL, Mood.FULL]))
    def a_store_is_lost_with_what_it_had_not_answered(self, cls: str, left: float, mood: Mood) -> None:
        self.scenario.reads(99, answer=False)
        self.scenario.cut()
        self.scenario.lose_store(cls, left)
        self.scenario.streams[cls].mood = mood

    @rule(cls=classes, count=few, what=st.sampled_from(["device", "trim", "full disk", "room", "leave"]))
    def something_happens_beside(self, cls: str, count: int, what: str) -> None:
        match what:
            case "device":
                self.scenario.device_publishes(cls, count)
            case "trim":
                self.scenario.sender.has_room(cls)
            case "leave":
                self.scenario.leave(count)
            case _:
                self.scenario.trouble = "the disk is full" if what == "full disk" else None

    @rule(cls=classes, first=st.integers(-2, 1), count=few)
    def a_device_publishes_under_ids_of_the_agent(self, cls: str, first: int, count: int) -> None:
        self.scenario.device_forges(cls, first, first + count - 1)

    @rule(cls=classes, share=st.sampled_from([0.5, 1.0]))
    def the_hub_takes(self, cls: str, share: float) -> None:
        self.scenario.hub_takes(cls, share)

    @rule(chance=st.integers(0, 9))
    def the_agent_stops(self, chance: int) -> None:
        if chance == 0:
            self.scenario.stop()
        elif chance == 1:
            self.scenario.stop()
            self.scenario.abandon()

    @invariant()
    def all_holds(self) -> None:
        promises.check(self.scenario)

    def teardown(self) -> None:
        try:
            self.scenario.ends_well()
        finally:
            self.scenario.time.close()


TestPublishPath = PublishPath.TestCase
TestPublishPath.settings = machine(60, 40)


def test_a_repeat_is_not_told_accepted_while_the_first_of_its_key_may_still_be_refused() -> None:
    scenario = PublishScenario()
    try:
        scenario.hand_in("accepted", CLASSES[0], 1, wide=True)  # more than may be in flight
        for _ in range(2):
            scenario.hand_in("accepted", CLASSES[0], 1, key=("key", 0))
        scenario.time.passes(20.0)
        assert [one.told for one in scenario.handed] == ["accepted", "refused", "refused"]
        scenario.ends_well()
    finally:
        scenario.time.close()


def test_a_repeat_is_told_accepted_once_the_first_of_its_key_was() -> None:
    scenario = PublishScenario()
    try:
        for _ in range(2):
            scenario.hand_in("accepted", CLASSES[0], 1, key=("key", 0))
        assert [one.told for one in scenario.handed] == ["accepted", "accepted"]
        scenario.ends_well()
    finally:
        scenario.time.close()


@pytest.mark.parametrize("key", [None, ("key", 0)], ids=["without a key", "under a key"])
@pytest.mark.parametrize("left", [0.0, 0.5], ids=["wiped", "restored"])
def test_a_batch_that_a_lost_store_may_have_passed_on_is_not_refused_and_keeps_its_id(
    key: tuple[str, int] | None, left: float
) -> None:
    scenario, cls = PublishScenario(), CLASSES[0]
    stream = scenario.streams[cls]
    try:
        scenario.connect()
        scenario.hand_in("stored", cls, 1, key=key)
        scenario.time.passes(0.2)
        scenario.reads(99, answer=False)
        scenario.hub_takes(cls, 1.0)
        scenario.cut()
        scenario.lose_store(cls, left)
        scenario.connect()
        stream.mood = Mood.FULL
        for _ in range(60):
            scenario.time.passes(3.0)
            scenario.flows()
        assert scenario.handed[0].told != "refused", "the hub may have it"
        scenario.hand_in("stored", CLASSES[1], 1)
        scenario.time.passes(0.2)
        scenario.flows()
        assert scenario.handed[1].told == "stored", "another class does not wait for it"
        if key is not None:
            scenario.hand_in("stored", cls, 1, key=key)
        stream.mood = Mood.WELL
        scenario.ends_well()
        assert len(stream.ever) == 2
        assert len({own_id(one) for one in stream.ever}) == 1, "the hub tells that they are one"
    finally:
        scenario.time.close()


def test_who_waits_for_room_when_the_agent_stops_is_refused_and_not_told_accepted() -> None:
    scenario = PublishScenario()
    try:
        scenario.hand_in("accepted", CLASSES[0], 1, wide=True)  # more than may be in flight
        scenario.hand_in("accepted", CLASSES[0], 1)
        scenario.stop()
        scenario.abandon()
        assert [one.told for one in scenario.handed] == ["accepted", "refused"]
    finally:
        scenario.time.close()


@settings(max_examples=40)
@given(
    some=st.lists(
        st.tuples(st.sampled_from(["accepted", "stored", "hub"]), st.integers(1, 60), st.booleans()),
        min_size=1,
        max_size=8,
    )
)
def test_no_batch_unpacks_to_more_than_the_jobs_take(some: list[tuple[str, int, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(limits, "MAX_UNPACKED_BYTES", MOST_UNPACKED)
        scenario = PublishScenario()
        try:
            scenario.connect()
            for level, count, dead in some:
                if dead:
                    scenario.dead_letter(CLASSES[0], count)
                else:
                    scenario.hand_in(level, CLASSES[0], count)
            for _ in scenario.handed:
                scenario.time.passes(0.2)
                scenario.flows()
                scenario.hub_takes(CLASSES[0], 1.0)
            for held in scenario.streams[CLASSES[0]].ever:
                unpack(held.payload, compressed=H_ENCODING in held.headers, limit=MOST_UNPACKED)
            small = [one for one in scenario.handed if one.size <= MOST_UNPACKED]
            assert all(one.told in ("stored", "accepted") for one in small)
            assert all(one.told == "refused" for one in scenario.handed if one not in small)
        finally:
            scenario.time.close()
