from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hub_jobs.source.plan import (
    MAX_PARTITIONS,
    WORTH_A_TASK,
    OffsetLost,
    PlanError,
    Range,
    parse_moment,
    parse_offsets,
    resolve,
    split,
    usual_partitions,
)
from hub_jobs.source.streams import HubStream

MADE = "2026-11-21T06:00:00Z"


def stream(first: int, last: int, name: str = "S") -> HubStream:
    return HubStream(name, MADE, first, last, last - first + 1, 0, 0)


def bounds(info: HubStream, start: str, end: str, fail: bool = True) -> tuple[int, int]:
    found = resolve(info, parse_offsets(start, "startingOffsets"), parse_offsets(end, "endingOffsets"), fail)
    return found.first, found.last


ranges = st.lists(
    st.tuples(st.integers(1, 10**12), st.integers(0, 10**7)).map(
        lambda pair: Range(f"S{pair[0]}", MADE, pair[0], pair[0] + pair[1] - 1)
    ),
    max_size=5,
)


@given(ranges, st.integers(1, 300), st.integers(1, 10**6))
def test_partitions_cover_each_range_once_in_order(whole: list[Range], least: int, most: int) -> None:
    total = sum(one.size for one in whole)
    assume(total // most + least + len(whole) < MAX_PARTITIONS)
    parts = split(whole, least, most)
    at = 0
    for one in whole:
        position = one.first
        while position <= one.last:
            part = parts[at]
            assert (part.stream, part.created, part.first) == (one.stream, one.created, position)
            assert 1 <= part.size <= most
            position = part.last + 1
            at += 1
        assert position == one.last + 1
    assert at == len(parts)
    assert len(parts) >= min(least, total)


def test_a_range_of_one_record_is_a_partition() -> None:
    one = Range("S", MADE, 7, 7)
    assert split([one]) == [one]


def test_sizes_of_one_range_differ_by_one_at_most() -> None:
    sizes = {part.size for part in split([Range("S", MADE, 1, 1003)], 7)}
    assert max(sizes) - min(sizes) <= 1


def test_sizes_that_make_no_plan_are_refused() -> None:
    with pytest.raises(PlanError, match="1 or more"):
        split([], 0)
    with pytest.raises(PlanError, match="raise maxRecordsPerPartition"):
        split([Range("S", MADE, 1, 10**9)], 1, 10)


def test_the_start_is_read_and_the_end_is_not() -> None:
    held = stream(1, 100)
    assert bounds(held, "earliest", "latest") == (1, 100)
    assert bounds(held, '{"S": 10}', '{"S": 20}') == (10, 19)
    assert bounds(held, '{"S": -2}', '{"S": -1}') == (1, 100)
    assert bounds(held, '{"S": 20}', '{"S": 20}') == (20, 19)
    assert bounds(held, "latest", "latest") == (101, 100)
    assert bounds(held, json.dumps({"S": {"seq": 5, "created": MADE}}), "latest") == (5, 100)


@pytest.mark.parametrize("empty", [stream(0, 0), stream(51, 50)])
def test_an_empty_stream_gives_nothing_to_read(empty: HubStream) -> None:
    first, last = bounds(empty, "earliest", "latest")
    assert last == first - 1
    assert split([Range("S", MADE, first, last)]) == []


@pytest.mark.parametrize(
    ("start", "end", "what"),
    [
        ('{"S": 5}', "latest", "begins at 11: 6 records"),
        ('{"S": 10}', "latest", "begins at 11: 1 records"),
        ('{"S": 102}', "latest", "ends before 101"),
        ("earliest", '{"S": 102}', "ends before 101"),
    ],
)
def test_records_that_are_gone_are_an_error_or_are_passed_over(start: str, end: str, what: str) -> None:
    held = stream(11, 100)
    with pytest.raises(OffsetLost, match=what):
        bounds(held, start, end)
    first, last = bounds(held, start, end, fail=False)
    assert 11 <= first <= last + 1 <= 101


def test_an_offset_of_another_incarnation_is_always_an_error() -> None:
    start = json.dumps({"S": {"seq": 5, "created": "2025-01-01T00:00:00Z"}})
    for fail in (True, False):
        with pytest.raises(OffsetLost, match="recreated"):
            bounds(stream(1, 100), start, "latest", fail)


def test_an_end_before_the_start_is_an_error() -> None:
    with pytest.raises(PlanError, match="startingOffsets is 20, after endingOffsets, 10"):
        bounds(stream(1, 100), '{"S": 20}', '{"S": 10}')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "[1]",
        "{}",
        '{"S": 0}',
        '{"S": -3}',
        '{"S": true}',
        '{"S": 1.5}',
        '{"S": "7"}',
        '{"S": {}}',
    ],
)
def test_offsets_in_another_form_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match="startingOffsets"):
        parse_offsets(text, "startingOffsets")


def test_a_stream_that_is_not_named_is_an_error() -> None:
    with pytest.raises(PlanError, match="does not name the stream S;"):
        bounds(stream(1, 2), '{"T": 1}', "latest")


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026-11-21T06:00:00Z", 1_795_240_800_000_000_000),
        ("2026-11-21T07:00:00.123456789+01:00", 1_795_240_800_123_456_789),
        ("2026-11-21T06:00:00.5Z", 1_795_240_800_500_000_000),
        ("1795240800123", 1_795_240_800_123_000_000),
        (" 0 ", 0),
    ],
)
def test_a_moment_is_rfc_3339_or_milliseconds(text: str, ns: int) -> None:
    assert parse_moment(text, "startingTimestamp").moment == ns


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-21T06:00:00", "1969-12-31T23:59:59Z", "9" * 30])
def test_another_moment_is_refused_in_words(text: str) -> None:
    with pytest.raises(PlanError, match="startingTimestamp is"):
        parse_moment(text, "startingTimestamp")


@pytest.mark.parametrize(("sequence", "first"), [(1, 41), (60, 60), (101, 101), (500, 101)])
def test_a_moment_before_the_first_record_is_no_loss(sequence: int, first: int) -> None:
    info = stream(41, 100)
    starting = parse_moment("2026-11-21T06:00:00Z", "startingTimestamp").located(info, sequence)
    assert resolve(info, starting, parse_offsets("latest", "endingOffsets"), True).first == first


@given(st.lists(st.integers(0, 10**7), max_size=4), st.integers(1, 500))
def test_by_default_every_task_has_its_partition_and_none_is_too_small_for_one(
    sizes: list[int], tasks: int
) -> None:
    ranges = [Range("S", "", 1, size) for size in sizes]
    count = usual_partitions(ranges, tasks)
    assert 1 <= count <= tasks
    assert count == tasks or (count + 1) * WORTH_A_TASK > sum(sizes)
    assert count == 1 or sum(sizes) // count >= WORTH_A_TASK
