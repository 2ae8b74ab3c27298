"""Who has sent too much within an hour, and how often a domain may ask."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.hub.registrar.fleet_events import LinkId
from agent.hub.registrar.quota import HOUR, Allowance, Quota

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


def test_what_a_link_carried_between_the_last_look_and_its_end_is_counted_once() -> None:
    quota = Quota(100)
    quota.count({ONE: 60}, {ONE: "a"}, 0)
    quota.ended(ONE, "a", 90, 4)
    quota.ended(TWO, "a", 10, 5)  # never looked at
    assert quota.sent("a", 5) == 100
    quota.ended(ONE, "a", 90, 6)
    quota.count({ONE: 90}, {ONE: "a"}, 6)  # by a look that began before it was down
    assert quota.sent("a", 6) == 100
    assert quota.sent("a", 6 + HOUR) == 0
    assert quota.totals == {"a": 100}


def test_links_that_are_down_are_not_remembered_without_end() -> None:
    quota = Quota(100)
    for number in range(30_000):
        quota.ended(("HUB", number), "a", 0, 0)
    assert len(quota._ended) == 10_000


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


def test_a_look_at_some_domains_says_nothing_of_the_others() -> None:
    quota = Quota(100)
    quota.count({ONE: 101, TWO: 101}, {ONE: "a", TWO: "b"}, 0)
    assert quota.changed(0, ["a"]) == ({"a"}, set())
    assert quota.changed(HOUR, ["c"]) == (set(), set())
    assert quota.changed(1) == ({"b"}, set())
    assert quota.changed(HOUR, ["b"]) == (set(), {"b"})
    assert quota.over == {"a"}


@given(gaps=st.lists(st.floats(0, 5), max_size=60), at_once=st.integers(1, 5))
def test_an_allowance_is_never_exceeded(gaps: list[float], at_once: int) -> None:
    allowance, now, taken = Allowance(at_once, 2.0), 0.0, 0
    for gap in gaps:
        now += gap
        taken += allowance.take(now)
    assert taken <= at_once + now / 2.0


def test_an_allowance_comes_back_with_time() -> None:
    allowance = Allowance(2, 10.0)
    assert [allowance.take(now) for now in (0.0, 0.0, 0.0, 9.0, 10.0, 11.0, 20.0)] == [
        True,
        True,
        False,
        False,
        True,
        False,
        True,
    ]
