"""Windows of aggregated readings, against a slow reference."""

from __future__ import annotations

import json
from collections import defaultdict
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.config import Rule, Seconds
from agent.contract import parse_reading
from agent.leaf.rules import Rulebook
from agent.leaf.rules.deadbands import Deadbands
from agent.leaf.rules.split import Split, Splitter, aggregate_lines
from agent.leaf.rules.windows import OpenWindow, OpenWindows

RULE = Rule(aggregate=["mean", "min", "max", "last", "count"], window=Seconds(60.0), late=Seconds(10.0))
SHAPES = {(tuple(RULE.aggregate), 60)}
ALL_DUE = 1e12


def line(ts: object, value: object, **more: Any) -> bytes:
    return json.dumps({"ts": ts, "device": "d", "metric": "m", "value": value, **more}).encode() + b"\n"


def split(windows: OpenWindows, *lines: bytes, rule: Rule = RULE) -> Split:
    return Splitter(Rulebook([rule], "http"), Deadbands(), windows).split(b"".join(lines), "normal", 0.0)


def add(windows: OpenWindows, *lines: bytes, now: float = 0.0) -> None:
    for part in split(windows, *lines).gathered.parts():
        windows.add(msgspec.json.decode(msgspec.json.encode(part), type=OpenWindow), now)


def closed(windows: OpenWindows, now: float) -> list[dict[str, Any]]:
    """The readings of what is due, which is closed."""
    due = windows.due(now, SHAPES, 1000)
    lines = [one for window in due for one in aggregate_lines(window, windows.part(window))]
    windows.close([window.key for window in due])
    for one in lines:
        parse_reading(one)
    return [json.loads(one) for one in lines]


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1)
values = numbers | st.booleans() | st.sampled_from(["on", "off"])
chunks = st.lists(
    st.tuples(
        st.floats(0, 500), st.lists(st.tuples(st.integers(0, 300), st.sampled_from("ab"), values), max_size=8)
    ),
    max_size=6,
)


@settings(deadline=None)
@given(chunks)
def test_each_reading_is_in_one_part_of_its_window_whatever_the_order_and_lateness(
    given_chunks: list[tuple[float, list[tuple[int, str, Any]]]],
) -> None:
    windows, now = OpenWindows(), 0.0
    held: dict[tuple[str, int], list[tuple[int, Any]]] = defaultdict(list)
    parts: dict[tuple[str, int], int] = defaultdict(int)
    opened: dict[tuple[str, int], float] = {}

    def close_and_compare() -> None:
        found: dict[tuple[str, int, int], dict[str, Any]] = defaultdict(dict)
        for row in closed(windows, now):
            begin = int(row["ts"][14:16]) * 60 + int(row["ts"][11:13]) * 3600
            part = int(row["tags"].get("window_part", 1))
            found[row["tags"]["s"], begin, part][row["metric"]] = row["value"]
        expected = {}
        for (series, begin), readings in list(held.items()):
            newest = max(ts for key, several in held.items() if key[0] == series for ts, _ in several)
            if (newest >= begin + 70 and not parts[series, begin]) or now >= opened[series, begin] + 70:
                parts[series, begin] += 1
                expected[series, begin, parts[series, begin]] = reference(readings)
        for series, begin, _ in expected:
            del held[series, begin]
        assert found == expected

    for passed, readings in given_chunks:
        now += passed
        rows = [line(ts, value, tags={"s": series}) for ts, series, value in readings]
        if rows:
            add(windows, *rows, now=now)
        for ts, series, value in readings:
            key = (series, ts // 60 * 60)
            if key not in held:
                opened[key] = now
            held[key].append((ts, value))
        close_and_compare()
    now = ALL_DUE
    close_and_compare()
    assert len(windows) == 0


def reference(readings: list[tuple[int, Any]]) -> dict[str, Any]:
    latest = max(ts for ts, _ in readings)
    row = {"m_last": [value for ts, value in readings if ts == latest][-1], "m_count": len(readings)}
    found = [value for _, value in readings if not isinstance(value, bool | str)]
    if found:
        mean = sum(map(Fraction, found)) / len(found)
        row |= {"m_mean": float(mean), "m_min": min(found), "m_max": max(found)}
    return row


def test_aggregates_are_at_the_begin_of_the_window_in_the_time_in_which_the_readings_were_stamped() -> None:
    windows = OpenWindows()
    add(windows, line("2026-11-23T04:31:58+01:00", 1), line("2026-11-23T03:31:59.5-00:00", 2))
    assert [(row["ts"], row["value"]) for row in closed(windows, ALL_DUE) if row["metric"] == "m_count"] == [
        ("2026-11-23T03:31:00Z", 1),
        ("2026-11-23T03:31:00-00:00", 1),
    ]


@pytest.mark.parametrize(
    "sent", [line(1, "x" * 3000), line(1, 1, metric="m" * 255), line("0001-01-01T00:00:00+01:00", 1)]
)
def test_what_a_window_cannot_hold_is_sent_as_it_is(sent: bytes) -> None:
    found = split(OpenWindows(), sent)
    assert [part.payload for part in found.routed] == [sent]
    assert found.gathered.wanted
    assert found.gathered.numbers == []


def test_text_is_sent_as_it_is_where_no_function_takes_it() -> None:
    rule = Rule(aggregate=["mean"], window=Seconds(60.0))
    found = split(OpenWindows(), line(1, 1), line(2, "on"), line(3, True), rule=rule)
    assert [part.numbers for part in found.routed] == [[1, 2]]
    assert found.gathered.bitmap == 0b001


def test_above_the_bound_readings_of_further_windows_are_sent_as_they_are() -> None:
    windows = OpenWindows(max_open=2)
    add(windows, line(1, 1))
    found = split(windows, line(61, 2), line(121, 3), line(2, 4), line(62, 5))
    assert found.gathered.numbers == [0, 2, 3]
    assert [part.numbers for part in found.routed] == [[1]]


def test_windows_of_a_rule_that_is_gone_are_due_at_once() -> None:
    windows = OpenWindows()
    add(windows, line(1, 1))
    assert windows.due(0.0, SHAPES, 10) == []
    assert windows.due(0.0, {(("mean",), 60)}, 10) == windows.open()


def test_closed_windows_are_remembered_up_to_a_bound_the_latest_of_them() -> None:
    windows = OpenWindows(max_closed=2)
    for ts in (1, 61, 1, 121):
        add(windows, line(ts, 1))
        windows.close([window.key for window in windows.open()])
    assert [part for _, part in windows.closed()] == [2, 1]
    again = OpenWindows(max_closed=1)
    again.remember(windows.closed())
    assert again.closed() == windows.closed()[1:]
    add(windows, line(1, 1), line(61, 1), line(121, 1))
    assert [windows.part(window) for window in windows.open()] == [3, 1, 2]


def test_a_reading_from_far_ahead_closes_the_windows_of_its_series_early_but_once() -> None:
    windows = OpenWindows()
    add(windows, line(0, 1), line(4102444800, 1), line(0, 1, tags={"s": "other"}))
    assert [row["value"] for row in closed(windows, 0.0) if row["metric"] == "m_count"] == [1]
    add(windows, line(1, 1), now=1.0)
    assert closed(windows, 69.9) == []
    add(windows, line(2, 1), now=69.9)
    found = [row for row in closed(windows, 71.0) if row["metric"] == "m_count" and row["ts"] < "2100"]
    assert {row["value"]: row.get("tags") for row in found} == {1: {"s": "other"}, 2: {"window_part": "2"}}


def test_windows_are_due_from_the_moment_on_that_their_rule_says_the_earliest_first() -> None:
    windows = OpenWindows()
    add(windows, line(130, 1), line(69.9, 1), line(59, 1))
    assert [window.begin for window in windows.due(69.9, SHAPES, 9)] == [0, 60]
    assert [window.begin for window in windows.due(70.0, SHAPES, 2)] == [0, 60]
    assert [window.begin for window in windows.due(70.0, SHAPES, 9)] == [0, 60, 120]
