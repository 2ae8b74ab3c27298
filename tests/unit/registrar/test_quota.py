"""Who has sent too much within an hour."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.registrar.fleet_events import LinkId
from agent.registrar.quota import HOUR, Quota

ONE: LinkId = ("HUB", 1)
TWO: LinkId = ("HUB", 2)


def test_a_domain_is_over_from_the_byte_above_its_limit_until_the_hour_has_room() -> None:
    quota = Quota(100)
    quota.count({ONE: 100}, {ONE: "a"}, 0)
    assert quota.changed(0) == (set(), set())
    quota.count({ONE: 101}, {ONE: "a"}, 1800)
    assert quota.changed(1800) == ({"a"}, set())
    assert quota.changed(1801) == (set(), set())
    assert quota.changed(HOUR - 1) == (set(), set())
    assert quota.changed(HOUR) == (set(), {"a"})


def test_a_new_link_counts_from_its_beginning_and_one_that_is_gone_no_more() -> None:
    quota = Quota(100)
    quota.count({ONE: 60}, {ONE: "a"}, 0)
    quota.count({TWO: 60}, {TWO: "a"}, 10)
    assert quota.changed(10) == ({"a"}, set())
    assert quota.sent("a", 10) == 120


def test_a_link_of_nobody_counts_for_nobody() -> None:
    quota = Quota(100)
    quota.count({ONE: 500}, {}, 0)
    assert quota.changed(0) == (set(), set())
    assert quota.sent("a", 0) == 0


@given(st.lists(st.tuples(st.floats(0, 600), st.integers(0, 1000)), min_size=1, max_size=60))
def test_the_bytes_of_the_last_hour_are_counted_to_within_a_minute(steps: list[tuple[float, int]]) -> None:
    quota, now, total, sent = Quota(10**9), 0.0, 0, []
    for gap, size in steps:
        now += gap
        total += size
        sent.append((now, size))
        quota.count({ONE: total}, {ONE: "a"}, now)
    within = sum(size for at, size in sent if now - at < HOUR - 60)
    assert within <= quota.sent("a", now) <= sum(size for at, size in sent if now - at < HOUR + 60)
