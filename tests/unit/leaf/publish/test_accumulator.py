"""Chunks gather into drafts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.contract import Request
from agent.leaf.intake import Chunk
from agent.leaf.publish.accumulator import (
    LARGE,
    MAX_REQUESTS,
    OVERDUE,
    Accumulator,
    BatchLimits,
    OpenBatch,
    PendingChunk,
)
from agent.leaf.publish.limits import MAX_WAIT, Lingers

LIMITS = BatchLimits(100, 10, Lingers(default=0.5))
AT_ONCE = BatchLimits(100, 10)
KEY = ("http", "normal")


def entry(size: int = 10, count: int = 1, **more: object) -> PendingChunk[int]:
    """A chunk of `size` bytes."""
    return PendingChunk(Chunk(b"x" * size, count, **more), 0)  # type: ignore[arg-type]


def test_a_chunk_waits_for_more_until_it_has_lingered() -> None:
    one: Accumulator[int] = Accumulator(LIMITS)
    assert one.add(KEY, entry(), now=1.0) == []
    assert one.due(KEY) == 1.5
    assert one.seal(KEY, now=1.4) is None
    draft = one.seal(KEY, now=1.5)
    assert draft is not None
    assert len(draft.entries) == 1
    assert one.due(KEY) is None


def test_a_draft_is_sealed_when_its_bytes_are_full() -> None:
    one: Accumulator[int] = Accumulator(LIMITS)
    assert one.add(KEY, entry(60), 0) == []
    (draft,) = one.add(KEY, entry(40), 0)
    assert draft.bytes == 100


def test_a_draft_is_sealed_when_its_readings_are_full() -> None:
    one: Accumulator[int] = Accumulator(LIMITS)
    assert one.add(KEY, entry(count=6), 0) == []
    (draft,) = one.add(KEY, entry(count=4), 0)
    assert draft.readings == 10


def test_a_draft_is_sealed_when_it_holds_as_many_requests_as_a_header_may_name() -> None:
    one: Accumulator[int] = Accumulator(BatchLimits(10**6, 10**6, Lingers(default=1.0)))
    sealed = [
        draft
        for number in range(MAX_REQUESTS)
        for draft in one.add(KEY, entry(request=Request(str(number), b"0" * 16, "0" * 16)), 0)
    ]
    assert [draft.requests for draft in sealed] == [MAX_REQUESTS]


def test_a_chunk_with_a_position_is_not_kept_waiting() -> None:
    one: Accumulator[int] = Accumulator(LIMITS)
    (draft,) = one.add(KEY, entry(position="7"), 0)
    assert draft.entries[0].chunk.position == "7"


def test_a_chunk_that_does_not_fit_any_more_begins_the_next_draft() -> None:
    one: Accumulator[int] = Accumulator(LIMITS)
    one.add(KEY, entry(60), 0)
    (first,) = one.add(KEY, entry(60), 1)
    assert first.bytes == 60
    assert one.due(KEY) == 1.5


def test_a_chunk_above_all_limits_goes_alone() -> None:
    one: Accumulator[int] = Accumulator(LIMITS)
    one.add(KEY, entry(10), 0)
    small, large = one.add(KEY, entry(1000), 0)
    assert (small.bytes, large.bytes) == (10, 1000)


def test_inputs_and_classes_do_not_share_a_draft() -> None:
    one: Accumulator[int] = Accumulator(LIMITS)
    for key in (KEY, ("file", "normal"), ("http", "alarms")):
        assert one.add(key, entry(60), 0) == []
    assert {(draft.input, draft.cls) for draft in one.flush()} == {
        KEY,
        ("file", "normal"),
        ("http", "alarms"),
    }
    assert one.flush() == []


def test_a_withdrawn_chunk_is_left_out_of_its_batch() -> None:
    draft: OpenBatch[int] = OpenBatch(*KEY, due=0, entries=[entry(1), entry(2), entry(3)])
    draft.entries[1].withdrawn = True
    assert [len(one.chunk.payload) for one in draft.live()] == [1, 3]


chunks = st.tuples(
    st.sampled_from(["a", "b"]), st.integers(0, 150), st.integers(1, 15), st.booleans(), st.floats(0, 0.3)
)


@given(st.lists(chunks, max_size=50))
def test_nothing_is_split_lost_or_put_in_another_order(plan: list[tuple[str, int, int, bool, float]]) -> None:
    one: Accumulator[int] = Accumulator(LIMITS)
    given: dict[str, list[PendingChunk[int]]] = {"a": [], "b": []}
    drafts: list[OpenBatch[int]] = []
    now = 0.0
    for name, size, count, positioned, pause in plan:
        now += pause
        for key in (("a", "normal"), ("b", "normal")):
            if (draft := one.seal(key, now)) is not None:
                drafts.append(draft)
        added = entry(size, count, position="p" if positioned else None)
        given[name].append(added)
        drafts += one.add((name, "normal"), added, now)
    drafts += one.flush()
    for name, entries in given.items():
        found = [one for draft in drafts if draft.input == name for one in draft.entries]
        assert [id(one) for one in found] == [id(one) for one in entries]
    for draft in drafts:
        assert draft.bytes == sum(len(one.chunk.payload) for one in draft.entries)
        assert draft.readings == sum(one.chunk.count for one in draft.entries)
        if len(draft.entries) > 1:
            assert draft.bytes <= LIMITS.bytes
            assert draft.readings <= LIMITS.readings
        assert all(one.chunk.position is None for one in draft.entries[:-1])


def test_readings_and_dead_letters_share_no_draft() -> None:
    one: Accumulator[int] = Accumulator(LIMITS)
    assert one.add(KEY, entry(), 0) == []
    (readings,) = one.add(KEY, entry(dead=True), 0)
    (letters,) = one.add(KEY, entry(), 0)
    assert (readings.dead, letters.dead) == (False, True)


def settle(accumulator: Accumulator[int], batch: OpenBatch[int]) -> list[tuple[str, str]]:
    """The outcome of all that a batch holds is known; returns the keys whose open batch waits no more."""
    released = [accumulator.settled(entry) for entry in batch.entries]
    return [key for key in released if key is not None]


def test_while_nothing_is_under_way_a_chunk_waits_for_nothing() -> None:
    accumulator: Accumulator[int] = Accumulator(AT_ONCE)
    assert accumulator.add(KEY, entry(), now=1.0) == []
    assert accumulator.due(KEY) == 1.0
    assert accumulator.seal(KEY, now=1.0) is not None


def test_a_chunk_waits_until_all_of_the_batch_before_it_is_settled() -> None:
    accumulator: Accumulator[int] = Accumulator(AT_ONCE)
    accumulator.add(KEY, entry(), 1.0)
    accumulator.add(KEY, entry(), 1.0)
    before = accumulator.seal(KEY, 1.0)
    assert before is not None
    accumulator.add(KEY, entry(), 2.0)
    assert accumulator.due(KEY) is None
    assert accumulator.seal(KEY, 3.0) is None
    assert accumulator.settled(before.entries[0]) is None
    assert accumulator.due(KEY) is None
    assert accumulator.settled(before.entries[1]) == KEY
    assert accumulator.seal(KEY, 3.0) is not None


def test_a_chunk_does_not_wait_for_the_batches_of_another_input_or_class() -> None:
    accumulator: Accumulator[int] = Accumulator(AT_ONCE)
    accumulator.add(KEY, entry(), 1.0)
    accumulator.seal(KEY, 1.0)
    for other in (("file", "normal"), ("http", "alarms")):
        accumulator.add(other, entry(), 1.0)
        assert accumulator.due(other) == 1.0


def test_a_full_batch_does_not_wait_for_the_one_before_it() -> None:
    accumulator: Accumulator[int] = Accumulator(AT_ONCE)
    accumulator.add(KEY, entry(100), 1.0)
    (second,) = accumulator.add(KEY, entry(100), 1.0)
    accumulator.add(KEY, entry(), 1.0)
    assert accumulator.due(KEY) is None
    assert settle(accumulator, second) == [KEY]


def test_where_the_answer_to_the_batch_before_it_is_lost_a_chunk_waits_for_a_second() -> None:
    accumulator: Accumulator[int] = Accumulator(AT_ONCE)
    accumulator.add(KEY, entry(100), 1.0)
    accumulator.add(KEY, entry(), 1.0)
    assert accumulator.overdue(1.0 + OVERDUE - 0.01) == []
    assert [batch.bytes for batch in accumulator.overdue(1.0 + OVERDUE)] == [10]


def test_what_is_withdrawn_and_settled_before_it_is_sealed_is_waited_for_by_nothing() -> None:
    accumulator: Accumulator[int] = Accumulator(AT_ONCE)
    withdrawn = entry()
    accumulator.add(KEY, withdrawn, 1.0)
    withdrawn.withdrawn = True
    assert accumulator.settled(withdrawn) is None
    assert accumulator.seal(KEY, 1.0) is not None
    accumulator.add(KEY, entry(), 1.0)
    assert accumulator.due(KEY) == 1.0


def test_a_batch_that_lingers_does_not_wait_for_the_one_before_it() -> None:
    accumulator: Accumulator[int] = Accumulator(LIMITS)
    accumulator.add(KEY, entry(100), 1.0)
    accumulator.add(KEY, entry(), 1.0)
    assert accumulator.due(KEY) == 1.5


def sealed_by(accumulator: Accumulator[int], until: float, every: float, size: int = 10) -> int:
    """How many batches are sealed where a chunk comes `every` so many seconds and is stored at once."""
    count, now = 0, 0.0
    while now < until:
        for batch in accumulator.add(KEY, entry(size), now):
            count += 1
            settle(accumulator, batch)
        if (due := accumulator.seal(KEY, now)) is not None:
            count += 1
            settle(accumulator, due)
        now += every
    return count


def test_a_class_seals_what_it_left_unused_and_then_its_rate() -> None:
    limits = BatchLimits(10**6, 10**6, batches_per_second=2.0, credit=50.0)
    assert sealed_by(Accumulator(limits), 8.95, 0.1) == 90
    sealed = sealed_by(Accumulator(limits), 1000.0, 0.1)
    assert 2000 <= sealed <= 2000 + 100 + 1


def test_a_full_batch_is_not_held_back_and_puts_off_no_other() -> None:
    accumulator: Accumulator[int] = Accumulator(BatchLimits(100, 10, batches_per_second=2.0, credit=10.0))
    assert sealed_by(accumulator, 100.0, 0.1, size=100) >= 1000
    accumulator.add(KEY, entry(), 100.0)
    due = accumulator.due(KEY)
    assert due is not None
    assert due <= 100.6


def test_a_chunk_with_a_position_is_held_back_above_the_bound_unless_it_is_large() -> None:
    limits = BatchLimits(10**6, 10**6, batches_per_second=1.0, credit=0.0)
    accumulator: Accumulator[int] = Accumulator(limits)
    (first,) = accumulator.add(KEY, entry(position="1"), 7.0)
    settle(accumulator, first)
    assert accumulator.add(KEY, entry(position="2"), 7.0) == []
    assert accumulator.due(KEY) == 8.0
    assert [batch.readings for batch in accumulator.add(KEY, entry(LARGE, position="3"), 7.5)] == [1, 1]


def test_the_bound_holds_no_batch_back_for_longer_than_its_sender_waits() -> None:
    accumulator: Accumulator[int] = Accumulator(BatchLimits(10**6, 10**6, batches_per_second=1.0, credit=0.0))
    for number in range(20):
        accumulator.add((f"input-{number}", "normal"), entry(), 1.0)
    assert max(batch.due for batch in accumulator.open_batches()) == 1.0 + MAX_WAIT


def test_an_inputs_linger_goes_before_its_classs_and_a_command_before_all() -> None:
    lingers = Lingers({"http": 0.0}, {"alarms": 0.2}, default=1.0)
    assert [lingers.of(key) for key in (("http", "alarms"), ("mqtt", "alarms"), ("mqtt", "normal"))] == [
        0.0,
        0.2,
        1.0,
    ]
    lingers.override = 0.5
    assert lingers.of(("http", "alarms")) == 0.5
