"""What is read as a time, and what becomes of an hour that a clock change repeats or skips."""

from __future__ import annotations

from typing import Any

import pytest

from agent.mapping.times import REPEATED, SKIPPED, Stamp, TimeError, reader, zone_of

BERLIN = zone_of("Europe/Berlin")


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        ("s", 1_700_000_000, "2023-11-14T22:13:20Z"),
        ("s", 1_700_000_000.5, "2023-11-14T22:13:20.5Z"),
        ("s", "1700000000.123456789", "2023-11-14T22:13:20.123456789Z"),
        ("ms", 1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        ("us", 1_700_000_000_123_456, "2023-11-14T22:13:20.123456Z"),
        ("ns", 1_700_000_000_123_456_789, "2023-11-14T22:13:20.123456789Z"),
        ("s", -1, "1969-12-31T23:59:59Z"),
        ("rfc3339", "2022-07-18T09:34:15.775023242+00:00", "2022-07-18T09:34:15.775023242+00:00"),
        ("rfc3339", "2026-07-01T12:00:00.123456789", "2026-07-01T10:00:00.123456789Z"),
        ("%d.%m.%Y %H:%M:%S", "01.07.2026 12:00:00", "2026-07-01T10:00:00Z"),
        ("%m/%d/%Y %I:%M %p", "07/01/2026 01:00 PM", "2026-07-01T11:00:00Z"),
        ("%Y-%m-%d %H:%M %%Z%%I", "2026-07-01 12:00 %Z%I", "2026-07-01T10:00:00Z"),
        ("%Y-%m-%dT%H:%M:%S.%f%z", "2026-07-01T12:00:00.5+0530", "2026-07-01T06:30:00.5Z"),
    ],
)
def test_a_time_is_read(form: str, value: Any, text: str) -> None:
    assert reader(form, BERLIN)(value, None) == Stamp(text)


def test_nanoseconds_are_added() -> None:
    assert reader("s", None)(1_700_000_000, 123_456_789).ts == "2023-11-14T22:13:20.123456789Z"
    for wrong in (10**9, -1, 1.5, "1"):
        with pytest.raises(TimeError, match="time_nanos"):
            reader("s", None)(1_700_000_000, wrong)


def test_a_repeated_hour_is_its_first_pass_and_a_skipped_one_goes_on_as_before() -> None:
    read = reader("rfc3339", BERLIN)
    assert read("2026-10-25T02:30:00", None) == Stamp("2026-10-25T00:30:00Z", REPEATED)
    assert read("2026-10-25T03:00:00", None) == Stamp("2026-10-25T02:00:00Z")
    assert read("2026-03-29T02:30:00.5", None) == Stamp("2026-03-29T01:30:00.5Z", SKIPPED)
    assert read("2026-03-29T03:00:00", None) == Stamp("2026-03-29T01:00:00Z")


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("s", 1_700_000_000_000),
        ("ms", 10**300),
        ("s", 1e300),
        ("s", "1e5000"),
        ("s", "nan"),
        ("s", True),
        ("s", None),
        ("s", [1]),
        ("rfc3339", 1_700_000_000),
        ("rfc3339", "2026-02-30T00:00:00Z"),
        ("rfc3339", "2026-06-30T23:59:60Z"),
        ("rfc3339", "2026-02-30T00:00:00"),
        ("rfc3339", "0001-01-01T00:00:00"),
        ("%d.%m.%Y", "1.13.2026"),
        ("%d.%m.%Y", "0" * 100),
    ],
)
def test_any_other_time_is_refused(form: str, value: Any) -> None:
    with pytest.raises(TimeError):
        reader(form, zone_of("Asia/Tokyo"))(value, None)


def test_a_time_without_offset_needs_a_zone() -> None:
    with pytest.raises(TimeError, match="has no offset; set zone"):
        reader("rfc3339", None)("2026-07-01T12:00:00", None)
