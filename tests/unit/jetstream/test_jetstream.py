"""Comparing and merging configurations as JetStream writes them, and its reply subjects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.nats_server import merged
from agent.jetstream import covers, nanoseconds
from agent.jetstream.readers import ack_position

leaves = st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
)
configs = st.dictionaries(st.sampled_from("abcd"), values, max_size=4)


@pytest.mark.parametrize(
    ("have", "want", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({}, {"a": 0, "b": "", "c": [], "d": False, "e": None, "f": {}}, True),
        ({"a": 5}, {"a": 0}, False),
        ({"metadata": {"x": "1", "_nats.ver": "2"}}, {"metadata": {"x": "1"}}, True),
        ({"metadata": {"x": "2"}}, {"metadata": {"x": "1"}}, False),
        ({"sources": [1, 2]}, {"sources": [1]}, False),
    ],
)
def test_a_configuration_covers_another_when_it_holds_all_that_is_set(
    have: dict[str, Any], want: dict[str, Any], expected: bool
) -> None:
    assert covers(have, want) is expected


@given(have=configs, want=configs)
def test_what_was_merged_covers_what_was_wanted_and_keeps_the_rest(
    have: dict[str, Any], want: dict[str, Any]
) -> None:
    result = merged(have, want)
    assert covers(result, want)
    assert all(result[key] == value for key, value in have.items() if key not in want)


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("1970-01-01T00:00:01Z", 10**9),
        ("1970-01-01T00:00:00.5Z", 500_000_000),
        ("2026-11-21T09:20:16.543326029Z", 1_795_252_816_543_326_029),
    ],
)
def test_a_servers_time_is_read_to_the_nanosecond(time: str, expected: int) -> None:
    assert nanoseconds(time) == expected


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.TEL_a_normal.consumer.1.42.7.1700000000500000000.3",
        "$JS.ACK.edge-1.AbCdEf.TEL_a_normal.consumer.1.42.7.1700000000500000000.3.tOkEn",
        "$JS.ACK._.AbCdEf.S.c.1.42.7.1700000000500000000.3",
    ],
)
def test_where_a_message_is_stored_is_read_with_domain_and_account_and_without(reply: str) -> None:
    assert ack_position(reply) == (42, 1_700_000_000_500_000_000)


@pytest.mark.parametrize(
    "reply", ["", "_INBOX.x", "$JS.ACK.S.c", "$JS.FC.S.c.1.42.7.1.3", "$JS.ACK.S.c.1.x.7.1.3"]
)
def test_another_subject_is_refused(reply: str) -> None:
    with pytest.raises(ValueError):
        ack_position(reply)
