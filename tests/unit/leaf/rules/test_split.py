"""What rules make of lines, against a slow reference that reads each line as JSON."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.config import Rule, Seconds
from agent.contract import MAX_TAGS, parse_reading
from agent.leaf.rules import Rulebook, compile_patterns
from agent.leaf.rules.deadbands import Deadbands, Flight, Moves
from agent.leaf.rules.split import Splitter, with_tags
from agent.leaf.rules.windows import OpenWindows

names = st.sampled_from(["a", "ab", "alarm", "Alarm", "b", "temp.1", "ä*", "[x]"])
patterns = st.sampled_from(["*", "a*", "!a*", "alarm", "?", "[ab]", "!b", "*.1", "ä[*]", ""])
rules = st.lists(
    st.builds(
        Rule,
        metric=patterns | st.lists(patterns, max_size=3),
        device=st.just("*") | patterns,
        input=st.sampled_from(["*", "http", "!http", "f*"]),
        class_=st.none() | st.sampled_from(["critical", "bulk"]),
        drop=st.booleans(),
        tags=st.dictionaries(st.sampled_from(["site", "x", 'q"']), st.sampled_from(["n", "ö"]), max_size=2),
        deadband=st.none() | st.sampled_from([0.0, 1.5]),
        after=st.none() | st.just(Seconds(10.0)),
        sample=st.none() | st.just(Seconds(20.0)),
    ),
    max_size=4,
)
readings = st.fixed_dictionaries(
    {
        "ts": st.sampled_from([0, 5.5, 30, "1970-01-01T00:00:20Z", "1970-01-01T01:00:02+01:00"]),
        "device": names,
        "metric": names,
        "value": st.sampled_from(
            [0, 1, 1.0, 2.75, True, False, "on", "", '{"tags":{}}', [1, 2.5], [2], {"base64": "AA=="}]
        ),
    },
    optional={"tags": st.dictionaries(st.sampled_from(["site", "y"]), st.sampled_from(["own", "{}"]))},
)


def matches(given: str | list[str], name: str) -> bool:
    """The reference for patterns."""
    several = [given] if isinstance(given, str) else given
    wanted = [one for one in several if not one.startswith("!")]
    unwanted = [one[1:] for one in several if one.startswith("!")]
    return (not wanted or any(fnmatchcase(name, one) for one in wanted)) and not any(
        fnmatchcase(name, one) for one in unwanted
    )


def seconds(ts: float | str) -> float:
    return datetime.fromisoformat(ts).astimezone(UTC).timestamp() if isinstance(ts, str) else float(ts)


class Reference:
    """The rules of input `http`, one reading at a time."""

    def __init__(self, rules: list[Rule]) -> None:
        self.rules = [(number, rule) for number, rule in enumerate(rules, 1) if matches(rule.input, "http")]
        self.sent: dict[str, tuple[Any, float, float]] = {}

    def judge(self, row: dict[str, Any], now: float) -> tuple[str, dict[str, Any]] | tuple[str, str, str]:
        cls, tags, band = "normal", dict[str, str](), None
        for number, rule in self.rules:
            if matches(rule.metric, row["metric"]) and matches(rule.device, row["device"]):
                if rule.drop:
                    return "", f"rule-{number}", "drop"
                cls, tags = rule.class_ or cls, {**tags, **rule.tags}
                band = (f"rule-{number}", rule) if (rule.deadband, rule.sample) != (None, None) else band
        if band is not None:
            key = json.dumps([row["metric"], row["device"], row.get("tags")])
            new, last = (row["value"], seconds(row["ts"]), now), self.sent.get(key)
            if last is not None and not moved(last, new, band[1]):
                return "", band[0], "sample" if band[1].deadband is None else "deadband"
            self.sent[key] = new
        tagged = {**tags, **row.get("tags", {})}
        return cls, {**row, **({"tags": tagged} if tagged or "tags" in row else {})}


def moved(last: tuple[Any, float, float], new: tuple[Any, float, float], rule: Rule) -> bool:
    if rule.deadband is None:
        assert rule.sample is not None
        return new[1] // rule.sample != last[1] // rule.sample
    if rule.after is not None and max(abs(new[1] - last[1]), new[2] - last[2]) >= rule.after:
        return True
    values = (last[0], new[0])
    if all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
        return bool(abs(new[0] - last[0]) > rule.deadband)
    return bool((isinstance(last[0], bool), last[0]) != (isinstance(new[0], bool), new[0]))


@settings(deadline=None)
@given(rules, st.lists(st.lists(readings, max_size=6), max_size=4), st.integers(0, 63))
def test_a_chunk_is_taken_apart_as_the_reference_takes_each_reading(
    given_rules: list[Rule], chunks: list[list[dict[str, Any]]], left_out: int
) -> None:
    reference, deadbands = Reference(given_rules), Deadbands()
    splitter = Splitter(Rulebook(given_rules, "http"), deadbands)
    for turn, rows in enumerate(chunks):
        now = turn * 6.0
        lines = [json.dumps(row, ensure_ascii=False).encode() for row in rows]
        payload = b"".join(line + b"\n" for line in lines)
        split = splitter.split(payload, "normal", now, left_out)
        expected: dict[str, list[dict[str, Any]]] = {}
        numbers: dict[str, list[int]] = {}
        dropped: Counter[tuple[str, str]] = Counter()
        for number, row in enumerate(rows):
            if left_out >> number & 1:
                continue
            verdict = reference.judge(row, now)
            if len(verdict) == 3:
                dropped[verdict[1], verdict[2]] += 1
            else:
                expected.setdefault(verdict[0], []).append(verdict[1])
                numbers.setdefault(verdict[0], []).append(number)
        assert split.dropped == dropped
        if split.as_it_is is not None:
            assert {split.as_it_is: rows} == expected
            continue
        assert {
            one.cls: [json.loads(line) for line in one.payload.splitlines()] for one in split.routed
        } == expected
        assert {one.cls: one.numbers for one in split.routed} == numbers
        for one in split.routed:
            stored(deadbands, one.moves)
            for line in one.rows:
                parse_reading(line)


@given(st.lists(st.lists(st.integers(0, 29), max_size=3), max_size=9), st.randoms())
def test_every_span_in_which_a_reading_came_has_a_stored_one_whatever_is_refused_in_between(
    chunks: list[list[int]], chance: Random
) -> None:
    deadbands, under_way = Deadbands(), list[tuple[Flight, list[int]]]()
    splitter = Splitter(Rulebook([Rule(sample=Seconds(10.0))], "http"), deadbands)
    answered, kept = set[int](), set[int]()
    for seq, times in enumerate(chunks, 1):
        lines = [b'{"ts":%d,"device":"d","metric":"m","value":%d}\n' % (ts, ts) for ts in times]
        split = splitter.split(b"".join(lines), "normal", 0.0)
        rows = [json.loads(row)["value"] for one in split.routed for row in one.rows]
        if not rows:
            answered.update(times)  # none is stored for this request, so others stand for it
        under_way.append((deadbands.begin(split.routed[0].moves if split.routed else {}), rows))
        while under_way and chance.random() < 0.6:
            flight, stored_rows = under_way.pop(chance.randrange(len(under_way)))
            if chance.random() < 0.7:
                kept.update(stored_rows)
                deadbands.settle(flight, seq)
            else:
                deadbands.settle(flight, None)
    assert {ts // 10 for ts in answered} <= {ts // 10 for ts in kept}


@given(st.lists(patterns, max_size=3), names)
def test_patterns_are_those_of_a_shell_with_exceptions(given_patterns: list[str], name: str) -> None:
    match = compile_patterns(given_patterns)
    assert (match is None or match(name)) == matches(given_patterns, name)


def test_values_stay_as_they_were_written_when_a_line_is_given_tags() -> None:
    line = b'{"ts":1.50,"device":"d","metric":"m","value":1e3,"tags":{"own":"\\u00e4"}}'
    assert with_tags(line, (("site", "north"), ("own", "other"))) == (
        b'{"ts":1.50,"device":"d","metric":"m","value":1e3,"tags":{"site":"north","own":"\\u00e4"}}'
    )
    assert with_tags(line, (("own", "other"),)) is line


def test_a_reading_is_not_given_more_tags_than_it_may_have() -> None:
    tags = {f"t{number}": "" for number in range(MAX_TAGS - 1)}
    line = json.dumps({"ts": 1, "device": "d", "metric": "m", "value": 1, "tags": tags}).encode()
    tagged = parse_reading(with_tags(line, (("a", "1"), ("b", "2"))))
    assert set(tagged.tags) == {*tags, "a"}


def test_lines_that_no_rule_changes_are_the_bytes_that_came() -> None:
    splitter = Splitter(
        Rulebook([Rule(metric="alarm", class_="critical"), Rule(metric="x", drop=True)], "http"), Deadbands()
    )
    odd = b'{ "ts":1 ,"device":"d","metric":"m","value":1.0e0}\n'
    assert splitter.split(odd, "normal", 0.0).as_it_is == "normal"
    alarm = b'{"ts":1,"device":"d","metric":"alarm","value":1.0e0 }\n'
    assert splitter.split(alarm, "normal", 0.0).as_it_is == "critical"
    split = splitter.split(odd + alarm + odd, "normal", 0.0)
    assert [(one.cls, one.payload) for one in split.routed] == [("normal", odd + odd), ("critical", alarm)]


def stored(deadbands: Deadbands, moves: Moves) -> None:
    """A chunk with these moves is handed in and stored."""
    deadbands.settle(deadbands.begin(moves), 1)


def line(value: object, ts: float = 0, device: str = "d") -> bytes:
    return json.dumps({"ts": ts, "device": device, "metric": "m", "value": value}).encode() + b"\n"


def test_a_reading_is_held_back_only_for_one_that_was_stored() -> None:
    deadbands = Deadbands()
    splitter = Splitter(Rulebook([Rule(deadband=1.0)], "http"), deadbands)
    for _ in range(2):  # the first is refused, so the second is sent again
        (routed,) = splitter.split(line(20.0), "normal", 0.0).routed
    stored(deadbands, routed.moves)
    assert splitter.split(line(20.9), "normal", 1.0).dropped == {("rule-1", "deadband"): 1}
    assert splitter.split(line(21.1), "normal", 2.0).routed


@pytest.mark.parametrize(("ts", "now"), [(300.0, 1.0), (1.0, 300.0), (-300.0, 1.0)])
def test_after_a_while_a_reading_is_sent_though_it_did_not_move(ts: float, now: float) -> None:
    deadbands = Deadbands()
    splitter = Splitter(Rulebook([Rule(deadband=1.0, after=Seconds(300.0))], "http"), deadbands)
    stored(deadbands, splitter.split(line(20.0, ts=1000.0), "normal", 0.0).routed[0].moves)
    assert not splitter.split(line(20.0, ts=1001.0), "normal", 299.0).routed
    assert splitter.split(line(20.0, ts=1000.0 + ts), "normal", now).routed


def test_beyond_the_bound_the_series_that_was_sent_longest_ago_is_sent_again() -> None:
    deadbands = Deadbands(max_series=3)
    splitter = Splitter(Rulebook([Rule(deadband=1.0)], "http"), deadbands)

    def sends(device: str, value: float = 0.0) -> bool:
        split = splitter.split(line(value, device=device), "normal", 0.0)
        for one in split.routed:
            stored(deadbands, one.moves)
        return bool(split.routed)

    assert [sends(device) for device in "abc"] == [True] * 3
    assert [sends(device) for device in "abc"] == [False] * 3
    assert sends("a", 9.0)
    assert sends("d")
    assert len(deadbands) == 3
    assert [sends(device, 9.0 if device == "a" else 0.0) for device in "acd"] == [False] * 3
    assert sends("b")


def test_arrays_and_bytes_are_sent_where_others_are_aggregated() -> None:
    rule = Rule(window=Seconds(60.0), aggregate=["last", "count"])
    splitter = Splitter(Rulebook([rule], "http"), Deadbands(), OpenWindows())
    lines = [
        b'{"ts":1,"device":"d","metric":"m","value":%b}' % value
        for value in (b"1", b"[1,2]", b'{"base64":"AA=="}', b'"on"')
    ]
    split = splitter.split(b"".join(line + b"\n" for line in lines), "normal", 0.0)
    assert [row for part in split.routed for row in part.rows] == lines[1:3]
    assert split.gathered.numbers == [0, 3]


def test_a_deadband_sends_an_array_or_bytes_only_where_they_changed() -> None:
    deadbands = Deadbands()
    splitter = Splitter(Rulebook([Rule(deadband=5.0)], "http"), deadbands)
    sent = []
    for value in (b"[1,2]", b"[1,2]", b"[1,3]", b'{"base64":"AA=="}', b'{"base64":"AA=="}', b"1", b"[1,3]"):
        line = b'{"ts":1,"device":"d","metric":"m","value":%b}\n' % value
        split = splitter.split(line, "normal", 0.0)
        sent.append(bool(split.routed))
        for part in split.routed:
            stored(deadbands, part.moves)
    assert sent == [True, False, True, True, False, True, True]
