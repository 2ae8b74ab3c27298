"""What is to change in an aggregate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import Committed, ContractError, aggregate, leaf_stream
from agent.hub.registrar.aggregate import (
    ALIVE,
    AggregateSettings,
    aggregate_config,
    differences,
    faults,
    is_full,
    moved_by_hand,
    observed,
    parse_source_header,
    planned,
    purge_up_to,
    source,
)
from agent.jetstream import StreamInfo, covers
from agent.jetstream.info import CopyStatus

EPOCHS = ["0000000000000", "1111111111111"]
DOMAINS = ["a", "b", "c"]


def info(
    *, last: int = 100, first: int = 1, sources: list[dict[str, Any]] | None = None, **config: Any
) -> StreamInfo:
    name = aggregate(0)
    return StreamInfo(
        name,
        "2026-01-01T00:00:00Z",
        first,
        last,
        last - first + 1,
        last,
        {"name": name, **config},
        sources or [],
    )


def names(sources: list[dict[str, Any]] | None) -> list[str] | None:
    return None if sources is None else [one["name"] for one in sources]


def stream(domain: str) -> str:
    return leaf_stream(domain, "normal")


a, b = source("a", "normal", EPOCHS[0]), source("b", "normal", EPOCHS[0])
other_a = source("a", "normal", EPOCHS[1])


@pytest.mark.parametrize(
    ("have", "want", "known", "expected"),
    [
        ([], {}, [], None),
        ([], {stream("a"): a}, [stream("a")], [a]),
        ([a], {stream("a"): a}, [stream("a")], None),
        ([a], {stream("a"): other_a}, [stream("a")], [other_a]),
        ([a], {stream("b"): b}, [stream("a"), stream("b")], [a, b]),
        ([a], {}, [stream("a")], None),
        ([a, b], {}, [stream("b")], [b]),
    ],
    ids=["nothing", "new", "same", "new epoch", "one more", "known but silent", "not known any more"],
)
def test_the_sources_become_what_the_fleet_announced(
    have: list[Any], want: dict[str, Any], known: list[str], expected: list[Any] | None
) -> None:
    assert planned(have, want, known.__contains__) == expected


sources = st.builds(source, st.sampled_from(DOMAINS), st.just("normal"), st.sampled_from(EPOCHS))
unique = st.lists(sources, unique_by=lambda one: str(one["name"]))


@given(have=unique, want=unique)
def test_a_plan_that_was_carried_out_leaves_nothing_to_do(have: list[Any], want: list[Any]) -> None:
    wanted = {one["name"]: one for one in want}
    known = [stream(domain) for domain in DOMAINS]
    new = planned(have, wanted, known.__contains__)
    after = have if new is None else new
    assert all(one in after for one in want)
    assert set(names(have) or []) <= set(names(after) or [])
    assert planned(after, wanted, known.__contains__) is None


def test_a_source_as_its_server_writes_it_is_not_changed() -> None:
    written = {key: a[key] for key in ("subject_transforms", "name", "external", "consumer")}
    assert planned([written], {stream("a"): a}, lambda _: False) is None


def test_the_state_of_a_source_is_read_with_its_absent_and_negative_fields() -> None:
    seen = observed(
        info(
            sources=[
                {"name": "A", "active": -1, "lag": 0},
                {"name": "B", "active": 1_500_000_000, "seq": 7, "error": {"description": "no"}},
            ]
        ),
        asked=0.0,
    )
    assert seen.states == {"A": CopyStatus(0, None), "B": CopyStatus(7, 1.5, "no")}
    assert not seen.states["A"].alive(ALIVE)
    assert seen.states["B"].alive(ALIVE)
    assert not CopyStatus(1, ALIVE).alive(ALIVE)


def test_what_is_dangerous_in_an_aggregate_is_named_and_the_configuration_sets_it_right() -> None:
    bad = {
        **aggregate_config(aggregate(0), AggregateSettings(10), [a]),
        "duplicate_window": 1,
        "max_age": 1,
        "discard": "old",
        "subjects": ["x"],
        "max_msgs_per_subject": 1,
    }
    assert len(faults(bad)) == 5
    assert not covers(bad, aggregate_config(aggregate(0), AggregateSettings(10), [a]))
    assert faults(aggregate_config(aggregate(0), AggregateSettings(10), [a])) == []


def test_what_differs_from_the_configuration_is_named_once() -> None:
    want = aggregate_config(aggregate(0), AggregateSettings(10), [a])
    told = differences({**want, "max_bytes": 5, "compression": "none", "max_age": 7}, want)
    assert len(told) == 2
    assert "max_age was not 0" in told[0]
    assert "its compression, max_bytes differed from" in told[1]
    assert differences(want, want) == []


@pytest.mark.parametrize(
    ("have", "placed", "words"),
    [
        ([a], [a], []),
        ([], [a], ["TEL_a_normal had been removed"]),
        ([other_a], [a], ["TEL_a_normal had been changed"]),
        ([a, b], [a], ["TEL_b_normal had been added"]),
        ([], [a, b], ["TEL_a_normal, TEL_b_normal had been removed"]),
    ],
)
def test_whose_sources_were_moved_by_hand_is_named(
    have: list[Any], placed: list[Any], words: list[str]
) -> None:
    told = moved_by_hand(have, {one["name"]: one for one in placed})
    assert len(told) == len(words)
    assert all(word in sentence for word, sentence in zip(words, told, strict=True))


def test_an_aggregate_without_sources_is_left_as_its_server_makes_it() -> None:
    config = aggregate_config(aggregate(0), AggregateSettings(10), [])
    made = {**config, "subjects": ["TELEMETRY_0"], "duplicate_window": 1}
    assert faults(made) == []
    assert covers(made, config)


@given(
    seq=st.integers(0, 200), keep=st.integers(0, 200), first=st.integers(1, 100), last=st.integers(100, 150)
)
def test_never_more_is_purged_than_is_committed_less_the_margin(
    seq: int, keep: int, first: int, last: int
) -> None:
    stream_info = info(first=first, last=last)
    committed = Committed(stream_info.name, stream_info.created, seq)
    if seq > last:
        with pytest.raises(ContractError, match="cannot be committed"):
            purge_up_to(committed, stream_info, keep)
    else:
        assert purge_up_to(committed, stream_info, keep) == max(0, seq - keep)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (Committed("TELEMETRY_9", "2026-01-01T00:00:00Z", 1), "is not TELEMETRY_0"),
        (Committed("TELEMETRY_0", "2025-01-01T00:00:00Z", 1), "of a stream that is gone"),
    ],
)
def test_what_was_committed_of_another_stream_purges_nothing(record: Committed, words: str) -> None:
    with pytest.raises(ContractError, match=words):
        purge_up_to(record, info(), 0)


def test_an_aggregate_is_full_when_two_large_batches_do_not_fit() -> None:
    assert is_full(info(last=1000, max_bytes=1000 + 512 * 1024 - 1))
    assert not is_full(info(last=1000, max_bytes=1000 + 512 * 1024))
    assert not is_full(info(max_bytes=-1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TEL_a_normal:k6gjV4f2:C=NKX8O3OE 5 tel.*.> tel.a.> tel.a.normal.x.y 13qWZ8JB", ("TEL_a_normal", 5)),
        ("TEL_a_b_normal:k6gjV4f2 17 > > tel.x", ("TEL_a_b_normal", 17)),
        ("TEL_a_normal 3", ("TEL_a_normal", 3)),
    ],
)
def test_the_origin_of_a_message_is_read_from_what_the_server_wrote(
    text: str, expected: tuple[str, int]
) -> None:
    assert parse_source_header(text) == expected


@pytest.mark.parametrize("text", ["", "TEL_a_normal", "TEL_a_normal x", " 5", "TEL_a_normal -5 >"])
def test_a_broken_origin_is_refused_in_words(text: str) -> None:
    with pytest.raises(ContractError, match="Nats-Stream-Source"):
        parse_source_header(text)
