from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_jobs.source.pushdown import RangeFilter, narrowed

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
TRUE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda row, value: row == value,
    ">": lambda row, value: row > value,
    ">=": lambda row, value: row >= value,
    "<": lambda row, value: row < value,
    "<=": lambda row, value: row <= value,
    "in": lambda row, value: row in value,
    "prefix": lambda row, value: row.startswith(value),
}
comparisons = st.sampled_from(["=", ">", ">=", "<", "<="])
words = st.sampled_from(["a", "a.b", "a.", "a.b.", "a.*", "b c", "", ">", "a.b.c", "ä.ö"])
filters = st.one_of(
    st.tuples(comparisons, st.just("seq"), st.integers(-5, 25)),
    st.tuples(
        comparisons,
        st.just("timestamp"),
        st.integers(0, 20).map(lambda us: NOON + timedelta(microseconds=us)),
    ),
    st.tuples(st.sampled_from(["=", "prefix"]), st.just("subject"), words),
    st.tuples(st.just("in"), st.just("subject"), st.lists(words, max_size=3).map(tuple)),
    st.tuples(comparisons, st.just("value"), st.just(b"x")),
)


def passes(limits: RangeFilter, seq: int, ns: int, subject: str) -> bool:
    """Whether the server would give this record."""

    def matches(wanted: str) -> bool:
        return subject == wanted or (wanted.endswith(".>") and subject.startswith(wanted[:-1]))

    return (
        limits.first <= seq <= (seq if limits.last is None else limits.last)
        and (limits.since is None or ns >= limits.since)
        and (limits.until is None or ns < limits.until)
        and (not limits.subjects or any(map(matches, limits.subjects)))
    )


@given(
    st.lists(filters, max_size=5),
    st.integers(1, 20),
    st.integers(0, 20_999),
    st.sampled_from(["a", "a.b", "a.b.c", "b", "ä.ö"]),
)
def test_no_record_that_the_filters_want_is_left_out(
    given_filters: list[tuple[str, str, Any]], seq: int, ns: int, subject: str
) -> None:
    moment = int(NOON.timestamp()) * 10**9 + ns
    row = {
        "seq": seq,
        "timestamp": NOON + timedelta(microseconds=ns // 1000),
        "subject": subject,
        "value": b"x",
    }
    limits = RangeFilter()
    for operator, column, value in given_filters:
        limits = narrowed(limits, operator, column, value)
    if all(TRUE[operator](row[column], value) for operator, column, value in given_filters):
        assert passes(limits, seq, moment, subject)


@pytest.mark.parametrize(
    ("operator", "column", "value", "found"),
    [
        (">", "seq", 7, RangeFilter(first=8)),
        ("<", "seq", 7, RangeFilter(last=6)),
        ("=", "seq", 7, RangeFilter(first=7, last=7)),
        ("=", "subject", "a.b", RangeFilter(subjects=("a.b",))),
        ("in", "subject", ("a", "b", "a"), RangeFilter(subjects=("a", "b"))),
        ("prefix", "subject", "tel.edge-1.", RangeFilter(subjects=("tel.edge-1.>",))),
        ("prefix", "subject", "tel.edge", RangeFilter()),
        ("=", "subject", "tel.*", RangeFilter()),
        ("in", "subject", tuple(f"s{number}" for number in range(65)), RangeFilter()),
        (">=", "seq", True, RangeFilter()),
    ],
)
def test_what_can_be_used_narrows(operator: str, column: str, value: Any, found: RangeFilter) -> None:
    assert narrowed(RangeFilter(), operator, column, value) == found


def test_a_moment_counts_to_the_end_of_its_microsecond() -> None:
    start = int(NOON.timestamp()) * 10**9
    assert narrowed(RangeFilter(), "<=", "timestamp", NOON).until == start + 1000
    assert narrowed(RangeFilter(), ">", "timestamp", NOON).since == start + 1000
    assert narrowed(RangeFilter(), "<", "timestamp", NOON).until == start
    assert narrowed(RangeFilter(), ">=", "timestamp", NOON).since == start
    exactly = narrowed(RangeFilter(), "=", "timestamp", NOON)
    assert (exactly.since, exactly.until) == (start, start + 1000)
