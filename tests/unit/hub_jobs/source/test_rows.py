from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_jobs.source.rows import SCHEMA, RangeFilter, narrowed, to_batch
from tests.harness.stream_records import StreamRecord, columns_of

SOURCED = (
    b"NATS/1.0\r\nNats-Msg-Id: run-normal-1\r\nPetiole-Count: 5\r\n"
    b"Nats-Stream-Source: TEL_a:JE7QNXai:C=hLBOXiOY 17 > > tel.a.x tXwJ5ZgK\r\n\r\n"
)


def test_a_record_becomes_a_row_with_where_it_came_from() -> None:
    columns = columns_of(
        [
            StreamRecord(b"tel.a.x", SOURCED, b"\x00\xff", 7, 1_500_000_001_234_567_891),
            StreamRecord(b"s", b"", b"", 9, 999),
        ]
    )
    batch = to_batch("TELEMETRY_0", columns, {"TEL_a:JE7QNXai": "edge1"}, include_headers=True)
    assert batch.schema == SCHEMA
    first, second = batch.to_pylist()
    assert first == {
        "subject": "tel.a.x",
        "value": b"\x00\xff",
        "stream": "TELEMETRY_0",
        "seq": 7,
        "timestamp": datetime(2017, 7, 14, 2, 40, 1, 234567, UTC),
        "source_domain": "edge1",
        "source_stream": "TEL_a",
        "source_ident": "tXwJ5ZgK",
        "source_seq": 17,
        "source_subject": "tel.a.x",
        "msg_id": "run-normal-1",
        "headers": [
            {"key": "Nats-Msg-Id", "value": b"run-normal-1"},
            {"key": "Petiole-Count", "value": b"5"},
            {"key": "Nats-Stream-Source", "value": b"TEL_a:JE7QNXai:C=hLBOXiOY 17 > > tel.a.x tXwJ5ZgK"},
        ],
    }
    assert second["headers"] == []
    assert {name for name, value in second.items() if value is None} == {
        "source_domain",
        "source_stream",
        "source_ident",
        "source_seq",
        "source_subject",
        "msg_id",
    }


def test_what_is_malformed_becomes_a_row_too() -> None:
    block = b"NATS/1.0\r\nNats-Stream-Source: nonsense\r\nNats-Msg-Id: \xff\r\n\xfe: x\r\n\r\n"
    batch = to_batch("S", columns_of([StreamRecord(b"a.\xff", block, b"v", 1, 0)]), {}, include_headers=True)
    (row,) = batch.to_pylist()
    assert (row["subject"], row["msg_id"]) == ("a.\N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}")
    assert row["source_stream"] is None
    assert row["headers"][0] == {"key": "Nats-Stream-Source", "value": b"nonsense"}


def test_one_malformed_source_does_not_touch_the_others() -> None:
    seqs = [b"17", b"x17", b"9" * 30]
    blocks = [SOURCED.replace(b" 17 ", b" %s " % seq) for seq in seqs]
    blocks += [SOURCED.replace(b" tXwJ5ZgK", b""), b"", SOURCED]
    columns = columns_of(StreamRecord(b"a", block, b"", seq, 0) for seq, block in enumerate(blocks, 1))
    table = to_batch("S", columns, {"TEL_a:JE7QNXai": "edge1"}, include_headers=False)
    assert table["source_seq"].to_pylist() == [17, None, None, 17, None, 17]
    assert table["source_domain"].to_pylist() == ["edge1", None, None, "edge1", None, "edge1"]
    assert table["source_ident"].to_pylist() == ["tXwJ5ZgK", None, None, None, None, "tXwJ5ZgK"]
    last = columns_of([StreamRecord(b"a", SOURCED, b"", 6, 0)])
    alone = to_batch("S", last, {"TEL_a:JE7QNXai": "edge1"}, include_headers=False)
    assert table.slice(5).equals(alone)


def test_headers_are_left_out_unless_asked_for() -> None:
    columns = columns_of([StreamRecord(b"a", SOURCED, b"v", 1, 0)])
    batch = to_batch("S", columns, {}, include_headers=False)
    (row,) = batch.to_pylist()
    assert row["headers"] is None
    assert (row["source_domain"], row["source_stream"]) == (None, "TEL_a")


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
