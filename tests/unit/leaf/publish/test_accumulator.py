"""Chunks gather into drafts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.contract import Request
from agent.leaf.intake import Chunk
from agent.leaf.publish.accumulator import MAX_REQUESTS, Accumulator, BatchLimits, OpenBatch, PendingChunk

LIMITS = BatchLimits(bytes=100, readings=10, linger=0.5)
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
    one: Accumulator[int] = Accumulator(BatchLimits(10**6, 10**6, 1.0))
    sealed = [
        draft
        for number in range(MAX_REQUESTS)
        for draft in one.add(KEY, entry(request=Request(str(number), 0)), 0)
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
def test_nothing_is_split_lost_or_put_in_another_order(
    plan: list[tuple[str, int, int, bool, float]],
) -> None:
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
