"""How long until the hub is full."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hub.registrar.time_to_full import COMMIT_SECONDS, TimeToFull
from agent.jetstream import StreamInfo

LIMIT = 10**9
SIZE = 1000
A, B = "TELEMETRY_0", "TELEMETRY_1"


def info(last: int, held: int | None = None, name: str = A, created: str = "now") -> StreamInfo:
    messages = last if held is None else held
    config = {"max_bytes": LIMIT}
    return StreamInfo(name, created, last - messages + 1, last, messages, messages * SIZE, config, [])


def flowing(horizon: TimeToFull, rate: int, seconds: int, name: str = A) -> None:
    """So many messages a second for a while, looked at every ten."""
    for now in range(0, seconds + 1, 10):
        horizon.see([info(1 + rate * now, name=name)], now)


def test_a_hub_that_fills_is_full_when_its_room_is_used_up_at_the_rate_of_late() -> None:
    horizon = TimeToFull()
    flowing(horizon, rate=10, seconds=7200)
    room = LIMIT - (1 + 10 * 7200) * SIZE
    assert horizon.seconds(A, None) == pytest.approx(room / (10 * SIZE), rel=0.01)


def test_what_is_purged_gives_room_and_does_not_lower_the_rate() -> None:
    horizon = TimeToFull()
    flowing(horizon, rate=10, seconds=7200)
    before = horizon.seconds(A, None)
    horizon.see([info(1 + 72_100, held=1)], 7210)
    assert horizon.seconds(A, None) == pytest.approx(LIMIT / (10 * SIZE), rel=0.01)
    assert horizon.seconds(A, None) > before


def test_the_disk_is_filled_by_all_aggregates_together() -> None:
    horizon = TimeToFull()
    for now in range(0, 7201, 10):
        horizon.see([info(1 + 10 * now, name=A), info(1 + 30 * now, name=B)], now)
    assert horizon.seconds(A, 40_000_000) == pytest.approx(1000, rel=0.01)
    assert horizon.seconds(B, 40_000_000) == pytest.approx(1000, rel=0.01)


def test_a_hub_into_which_nothing_comes_does_not_fill_and_a_full_one_has_no_time() -> None:
    horizon = TimeToFull()
    horizon.see([info(1000)], 0)
    horizon.see([info(1000)], 10)
    assert math.isinf(horizon.seconds(A, 5))
    assert horizon.seconds(A, 0) == 0.0, "the disk has no room"
    horizon.see([info(LIMIT // SIZE)], 20)
    assert horizon.seconds(A, None) == 0.0
    assert "run ingest" in horizon.words(A, None, 20)


def test_a_stream_into_which_hardly_anything_comes_is_not_said_to_fill_in_a_thousand_years() -> None:
    horizon = TimeToFull()
    horizon.see([info(1)], 0)
    horizon.see([info(2)], 10 * 365 * 86_400)
    assert "so it does not fill" in horizon.words(A, None, 10 * 365 * 86_400)


def test_a_stream_that_was_made_anew_begins_with_no_rate() -> None:
    horizon = TimeToFull()
    flowing(horizon, rate=10, seconds=100)
    horizon.see([info(5, created="later")], 110)
    assert math.isinf(horizon.seconds(A, None))


def test_what_spark_has_not_committed_is_said_with_the_time_that_is_left() -> None:
    horizon = TimeToFull()
    flowing(horizon, rate=10, seconds=7200)
    assert horizon.words(A, None, 7200).startswith(
        "Spark has not committed since this agent started, 2 hours ago"
    )
    horizon.committed(A, 7200)
    assert horizon.words(A, None, 7230).startswith("Spark committed 30 seconds ago; full in about")
    late = 7200 + 3 * COMMIT_SECONDS
    assert horizon.words(A, None, late).startswith(
        "Spark has not committed for 3 hours; full in about 26 hours"
    )


@given(st.lists(st.tuples(st.floats(0.1, 1000), st.integers(0, 10_000)), min_size=1, max_size=50))
def test_the_time_that_is_left_is_never_negative(steps: list[tuple[float, int]]) -> None:
    horizon, now, last = TimeToFull(), 0.0, 1
    for gap, count in steps:
        now, last = now + gap, last + count
        horizon.see([info(last, held=min(last, 900_000))], now)
        assert horizon.seconds(A, 1) >= 0.0
