from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_jobs.source.plan import OffsetLost, PlanError, Range, parse_offsets
from hub_jobs.source.progress import (
    StreamPosition,
    StreamPositions,
    advance,
    check,
    decode,
    encode,
    ends,
    ranges,
    remaining,
    shares,
)
from hub_jobs.source.streams import HubStream

MADE, AGAIN = "2026-11-21T06:00:00Z", "2026-11-21T07:00:00Z"


def stream(name: str, first: int, last: int, created: str = MADE) -> HubStream:
    return HubStream(name, created, first, last, last - first + 1, 0, 0)


def step(
    positions: StreamPositions, infos: dict[str, HubStream], most: int | None = None, fail: bool = True
) -> StreamPositions:
    return advance(positions, infos, ends(infos), most, fail)


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 10**12), max_size=6), st.integers(1, 10**6))
def test_shares_are_whole_and_leave_nobody_waiting_for_another(backlog: dict[str, int], most: int) -> None:
    taken = shares(backlog, most)
    total = sum(backlog.values())
    assert sum(taken.values()) == min(total, most)
    for name, size in backlog.items():
        assert 0 <= taken[name] <= size
        assert total <= most or abs(taken[name] - size * most / total) <= 1


appended = st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 40)), max_size=30)


@given(appended, st.integers(1, 25))
def test_what_is_appended_is_read_once_within_the_limit(events: list[tuple[str, int]], most: int) -> None:
    held = dict.fromkeys("AB", 0)
    positions = step({}, {name: stream(name, 1, 0) for name in held})
    read: Counter[tuple[str, int]] = Counter()

    def batch() -> bool:
        nonlocal positions
        infos = {name: stream(name, 1, last) for name, last in held.items()}
        after = decode(json.loads(json.dumps(encode(step(positions, infos, most)))))
        found = ranges(positions, after)
        assert sum(one.size for one in found) <= most
        for one in found:
            check(one, infos[one.stream])
            read.update((one.stream, seq) for seq in range(one.first, one.last + 1))
        moved, positions = after != positions, after
        return moved

    for name, count in events:
        held[name] = held.get(name, 0) + count  # C is a stream that is met later
        batch()
    while batch():
        pass
    assert read == Counter((name, seq) for name, last in held.items() for seq in range(1, last + 1))


def test_a_stream_that_is_met_later_is_noted_before_anything_of_it_is_read() -> None:
    both = {"A": stream("A", 1, 5), "B": stream("B", 41, 90)}
    noted = step({"A": StreamPosition(MADE, 6)}, both)
    assert noted == {"A": StreamPosition(MADE, 6), "B": StreamPosition(MADE, 41)}
    assert ranges({"A": StreamPosition(MADE, 6)}, noted) == []
    after = step(noted, both)
    assert [(one.stream, one.first, one.last) for one in ranges(noted, after)] == [("B", 41, 90)]


def test_a_target_that_was_fixed_is_where_the_query_ends() -> None:
    then, now = {"A": stream("A", 1, 5)}, {"A": stream("A", 1, 50)}
    positions = advance({"A": StreamPosition(MADE, 1)}, now, ends(then), None, True)
    assert positions == {"A": StreamPosition(MADE, 6)}
    assert advance(positions, now, ends(then), None, True) == positions


def test_of_a_stream_that_was_made_anew_since_the_target_was_fixed_all_is_read() -> None:
    target, now = ends({"A": stream("A", 1, 5)}), {"A": stream("A", 1, 50, AGAIN)}
    assert advance({"A": StreamPosition(AGAIN, 1)}, now, target, None, False) == {
        "A": StreamPosition(AGAIN, 51)
    }


@pytest.mark.parametrize(
    ("now", "said", "goes_on_at"),
    [
        (
            stream("A", 41, 90),
            "begins at 41, and 11 was to be read next: 30 records",
            StreamPosition(MADE, 91),
        ),
        (stream("A", 1, 4), "ends at 4, and the query has read or planned up to 10", StreamPosition(MADE, 5)),
        (
            stream("A", 1, 9),
            "ends at 9, and the query has read or planned up to 10",
            StreamPosition(MADE, 10),
        ),
        (stream("A", 20, 90, AGAIN), "was recreated", StreamPosition(AGAIN, 20)),
    ],
)
def test_what_was_lost_fails_the_query_unless_that_is_allowed(
    now: HubStream, said: str, goes_on_at: StreamPosition
) -> None:
    positions = {"A": StreamPosition(MADE, 11)}
    with pytest.raises(OffsetLost, match=said):
        step(positions, {"A": now})
    after = step(positions, {"A": now}, fail=False)
    assert after == {"A": goes_on_at}
    if goes_on_at.created == AGAIN:
        assert ranges(positions, after) == []
        assert step(after, {"A": now}, fail=False) == {"A": StreamPosition(AGAIN, 91)}


def test_a_stream_that_is_gone_fails_the_query_unless_that_is_allowed() -> None:
    positions = {"A": StreamPosition(MADE, 11)}
    with pytest.raises(OffsetLost, match="A is not there any more"):
        step(positions, {})
    assert step(positions, {}, fail=False) == positions


@pytest.mark.parametrize(
    "now", [None, stream("A", 5, 20), stream("A", 1, 9), stream("A", 1, 20, AGAIN)], ids=lambda one: str(one)
)
def test_a_batch_that_is_run_again_is_checked_against_what_is_left(now: HubStream | None) -> None:
    (part,) = ranges({"A": StreamPosition(MADE, 4)}, {"A": StreamPosition(MADE, 11)})
    check(part, stream("A", 4, 10))
    with pytest.raises(OffsetLost):
        check(part, now)


def test_a_checkpoint_of_something_else_is_refused() -> None:
    with pytest.raises(PlanError, match="none of this source"):
        decode({"A": 17})


@given(st.dictionaries(st.text(min_size=1), st.integers(1, 2**60), min_size=1))
def test_an_offset_can_be_given_as_the_start_of_another_query(seqs: dict[str, int]) -> None:
    text = json.dumps(encode({name: StreamPosition(MADE, seq) for name, seq in seqs.items()}))
    offsets = parse_offsets(text, "startingOffsets")
    assert {name: offsets.of(name).at for name in seqs} == seqs


def test_records_that_are_gone_do_not_count_against_the_limit() -> None:
    assert step({"A": StreamPosition(MADE, 11)}, {"A": stream("A", 41, 90)}, most=5, fail=False) == {
        "A": StreamPosition(MADE, 46)
    }


def test_a_query_that_goes_on_with_what_is_there_can_end_a_batch_that_was_planned_before_the_loss() -> None:
    planned = Range("A", MADE, 5, 20)
    assert remaining(planned, stream("A", 1, 30)) == planned
    assert remaining(planned, stream("A", 1, 12)) == Range("A", MADE, 5, 12), "it was restored"
    assert remaining(planned, stream("A", 1, 30, AGAIN)).size == 0, "it was recreated"
    assert remaining(planned, stream("A", 1, 2)).size == 0
    assert remaining(planned, None).size == 0, "it is not there any more"
