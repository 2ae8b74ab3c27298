"""Times and lengths of time as people write and read them, and as the tables compare them."""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_jobs.times import at_micros, micros, moment, short, stretch

ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=ZONES))
def test_every_moment_is_a_whole_number_of_microseconds(found: datetime) -> None:
    assert at_micros(micros(found)) == found
    assert at_micros(micros(found)).tzinfo is UTC


def test_times_are_taken_with_any_offset_and_lengths_in_any_unit() -> None:
    assert moment("2026-11-21T08:00:00+02:00") == datetime(2026, 11, 21, 6, tzinfo=UTC)
    assert moment("2026-11-21T06:00:00Z").tzinfo is UTC
    assert [stretch(text).total_seconds() for text in ("90s", "15m", "12h", "7d")] == [
        90,
        900,
        43_200,
        604_800,
    ]
    with pytest.raises(ArgumentTypeError):
        stretch("1w")


@given(st.floats(0, 1e9))
def test_a_length_of_time_reads_as_about_what_it_is(seconds: float) -> None:
    text = short(seconds)
    assert len(text) <= 9
    units = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
    total, number = 0.0, ""
    for letter in text:
        if letter in units:
            total, number = total + float(number) * units[letter], ""
        else:
            number += letter
    assert number == ""
    assert abs(total - seconds) <= max(0.5, seconds * 0.04)
