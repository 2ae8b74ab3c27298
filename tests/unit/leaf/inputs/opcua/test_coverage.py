"""Which values of a variable are stored, and which holes the history may fill."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from agent.leaf.inputs.opcua.coverage import Coverage, CoverageFile, Kind, Record, digest, has_reached

KEY = digest(b"n")


def live(time: float, value: str = "") -> Record:
    return Record(Kind.LIVE, KEY, time, digest(f"{value or time}".encode()))


def filled(time: float, value: str = "") -> Record:
    return live(time, value)._replace(kind=Kind.FILLED)


OPENED, LOST, CLOSED = (Record(kind, KEY) for kind in (Kind.OPENED, Kind.LOST, Kind.CLOSED))
records = st.lists(
    st.one_of(
        st.builds(live, st.integers(1, 9).map(float), st.sampled_from("ab")),
        st.builds(filled, st.integers(1, 9).map(float), st.sampled_from("ab")),
        st.sampled_from([OPENED, LOST, CLOSED]),
        st.builds(lambda time: Record(Kind.ENDED, KEY, time), st.integers(1, 9).map(float)),
    ),
    max_size=20,
)


def played(*noted: Record) -> Coverage:
    coverage = Coverage()
    for record in noted:
        coverage.note(record)
    return coverage


@given(records, records)
def test_a_rewritten_log_goes_on_as_the_state_it_was_made_of(
    before: list[Record], after: list[Record]
) -> None:
    one = played(*before)
    other = played(*one.records())
    assert [one.note(record) for record in after] == [other.note(record) for record in after]
    assert list(one.records()) == list(other.records())


@given(st.lists(st.integers(1, 40), min_size=2, max_size=12, unique=True), st.data())
def test_every_value_is_new_once_however_the_history_is_read(times: list[int], data: st.DataObject) -> None:
    """Live up to a break and from its end on; history is read in pages that overlap and repeat."""
    times.sort()
    begin, end = sorted(data.draw(st.lists(st.sampled_from(range(len(times))), min_size=2, max_size=2)))
    stored = times[: begin + 1]
    coverage = played(*map(live, stored), OPENED)
    for time in times[max(end, begin + 1) :] or [times[-1]]:
        if coverage.note(live(time)):
            stored.append(time)
    while any(coverage.holes()):
        ((_, hole),) = coverage.holes()
        page = [time for time in times if time >= hole.start.time][: data.draw(st.integers(2, 5))]
        for time in page:
            is_end = has_reached(hole, time, live(time).value)
            if coverage.note(filled(time)):
                stored.append(time)
        if is_end:
            coverage.note(CLOSED)
    assert sorted(stored) == times


def test_the_present_value_is_not_new_where_nothing_changed_and_no_hole_stays() -> None:
    coverage = played(live(1.0), OPENED)
    assert not coverage.note(live(1.0))
    assert list(coverage.holes()) == []


@pytest.mark.parametrize(
    ("time", "value", "reached"),
    [
        (5.0, "end", True),
        (5.0, "other", False),
        (6.0, "other", True),
        (4.9, "end", False),
        (5.123, "end", True),
        (5.122, "end", False),
    ],
)
def test_a_history_that_cuts_its_times_reaches_the_end_of_a_hole(
    time: float, value: str, reached: bool
) -> None:
    end = 5.123456 if time != 5.0 and time != 6.0 else 5.0
    coverage = played(live(1.0), OPENED, live(end, "end"))
    ((_, hole),) = coverage.holes()
    assert has_reached(hole, time, filled(time, value).value) is reached


def test_values_of_the_time_of_the_last_value_are_new_if_they_differ() -> None:
    coverage = played(live(1.0, "a"), OPENED, live(2.0))
    assert [coverage.note(filled(1.0, value)) for value in "aba"] == [False, True, False]


def test_a_source_whose_clock_went_back_has_its_value_stored_and_no_hole() -> None:
    coverage = played(live(5.0), OPENED)
    assert coverage.went_back(KEY, 4.0)
    assert coverage.note(live(4.0))
    assert list(coverage.holes()) == []


def test_a_hole_begins_at_most_a_day_before_the_last_message_unless_the_clock_is_far_behind() -> None:
    heard = 1_000_000.0
    opened = OPENED._replace(time=heard)
    ((_, hole),) = played(live(1.0), opened, live(heard + 5)).holes()
    assert hole.begin == heard - 86_400
    ((_, hole),) = played(live(1.0), opened, live(9.0)).holes()
    assert hole.begin == 1.0


async def test_records_of_a_piece_that_was_never_stored_do_not_count_after_a_restart(tmp_path: Path) -> None:
    def log() -> CoverageFile:
        return CoverageFile(tmp_path / "opcua" / "x.times", structlog.get_logger())

    first = log()
    await first.load(0)
    for number, record in enumerate([live(1.0), live(2.0), live(3.0)], 1):
        first.coverage.note(record)
        await first.write(number, [record])
    again = log()
    await again.load(2)
    assert again.coverage.tracks[KEY].live.time == 2.0
    assert not again.is_behind
    again.coverage.note(live(4.0))
    await again.write(3, [live(4.0)])
    third = log()
    await third.load(3)
    assert third.coverage.tracks[KEY].live.time == 4.0
    await third.load(5)
    assert third.is_behind


async def test_a_torn_log_is_read_up_to_its_tear(tmp_path: Path) -> None:
    path = tmp_path / "x.times"
    one = CoverageFile(path, structlog.get_logger())
    await one.load(0)
    await one.write(1, [live(1.0)])
    await one.write(2, [live(2.0)])
    path.write_bytes(path.read_bytes()[:-5] + bytes(100))
    await one.load(2)
    assert one.coverage.tracks[KEY].live.time == 1.0
    assert one.is_behind
