"""Each leaf in the hub's metrics."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from agent.contract import Announce, ClassState, Previous, Readings, leaf_stream, new_epoch, new_run
from agent.hub.registrar.aggregate import Observation
from agent.hub.registrar.metrics import LeafCollector, shown_leaves
from agent.hub.registrar.records import ClassRecord, HubPosition, LeafRecord
from agent.hub.registrar.status import KnownFleet
from agent.jetstream import StreamInfo
from agent.jetstream.info import CopyStatus

NOW = 1000.0
RUN = new_run()
EPOCH = new_epoch()
ANNOUNCED_AT = "2026-11-22T12:00:00+00:00"
OPEN_METRICS, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
FLOWING = CopyStatus(seq=90, active=0.5)


def class_state(last: int, loss: float | None = math.inf, **readings: int) -> ClassState:
    ledger = Previous(RUN, 7, Readings(**readings), closed=False)
    return ClassState(EPOCH, ANNOUNCED_AT, 1, last, 90, 1000 * last, ledger, loss)


def record(domain: str, version: str = "1.0", **said: ClassState) -> LeafRecord:
    held = HubPosition(90, "", 0, 0)
    classes = {cls: ClassRecord(EPOCH, "", "TELEMETRY_0", "", held=held) for cls in said}
    return LeafRecord(domain, "m", RUN, {"agent": version}, ANNOUNCED_AT, classes, dict(said), every=10.0)


def announced(leaf: LeafRecord, clock: str = "synchronised=yes; boot=b; monotonic=1") -> Announce:
    return Announce(leaf.domain, leaf.machine, leaf.run, leaf.versions, leaf.said, clock=clock)


def look(*leaves: LeafRecord, **given: Any) -> KnownFleet:
    """These leaves are linked, flow, and were heard 3 s ago; `states` are those of their sources."""
    states = {leaf_stream(leaf.domain, cls): FLOWING for leaf in leaves for cls in leaf.classes}
    info = StreamInfo("TELEMETRY_0", "", 1, 0, 0, 0, {}, [])
    flows = KnownFleet(
        domains=[leaf.domain for leaf in leaves],
        leaves={leaf.domain: leaf for leaf in leaves},
        announced={leaf.domain: announced(leaf) for leaf in leaves},
        heard_at={leaf.domain: NOW - 3.0 for leaf in leaves},
        linked={leaf.domain for leaf in leaves},
        revoked=(),
        resting=(),
        seen={"TELEMETRY_0": Observation(info, given.pop("states", states), NOW)},
        trouble={},
        audited={},
        now=NOW,
        at=datetime.fromisoformat(ANNOUNCED_AT) + timedelta(minutes=5),
    )
    return replace(flows, **given)


def samples(fleet: KnownFleet) -> dict[str, float]:
    """What a scrape shows, by name and labels as they are written."""
    registry = CollectorRegistry()
    registry.register(LeafCollector(lambda: fleet))
    text = OPEN_METRICS(registry).decode()
    list(parse_openmetrics(text))  # type: ignore[no-untyped-call]
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def of(fleet: KnownFleet, name: str, domain: str = "a") -> float | None:
    return samples(fleet).get(f'petiole_leaf_{name}{{domain="{domain}"}}')


def word(fleet: KnownFleet, domain: str = "a") -> list[str]:
    ours = f'petiole_leaf_state{{domain="{domain}",state="'
    return [name.removeprefix(ours).rstrip('"}') for name in samples(fleet) if name.startswith(ours)]


def test_a_leaf_is_shown_with_all_that_it_announced_over_its_classes() -> None:
    leaf = record(
        "a",
        normal=class_state(100, 7200.0, refused=3, refused_late=1, discarded=2),
        bulk=class_state(95, 600.0, refused=4, discarded=5),
    )
    assert samples(look(leaf, sent={"a": 12_345})) == {
        'petiole_leaf_state{domain="a",state="flowing"}': 1,
        'petiole_leaf_linked{domain="a"}': 1,
        'petiole_leaf_seconds_since_heard{domain="a"}': 3,
        'petiole_leaf_backlog_messages{domain="a"}': 15,
        'petiole_leaf_stream_bytes{domain="a"}': 195_000,
        'petiole_leaf_seconds_to_loss{domain="a"}': 600,
        'petiole_leaf_refused_readings_total{domain="a"}': 7,
        'petiole_leaf_refused_after_acceptance_readings_total{domain="a"}': 1,
        'petiole_leaf_discarded_readings_total{domain="a"}': 7,
        'petiole_leaf_clock_synchronised{domain="a"}': 1,
        'petiole_leaf_info{domain="a",version="1.0"}': 1,
        'petiole_leaf_link_bytes_total{domain="a"}': 12_345,
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "flowing"),
        ({"heard_at": {"a": NOW - 31.0}}, "silent"),
        ({"states": {}}, "stopped"),
        ({"states": {}, "linked": ()}, "away"),
        ({"states": {}, "resting": {leaf_stream("a", "normal")}}, "flowing"),
        ({"trouble": {"a": "a copy of its machine"}}, "trouble"),
        ({"leaves": {}, "announced": {}, "heard_at": {}, "states": {}, "linked": ()}, "never"),
    ],
)
def test_a_leaf_has_one_series_for_the_state_that_it_is_in(given: dict[str, Any], expected: str) -> None:
    assert word(look(record("a", normal=class_state(100)), **given)) == [expected]


def test_a_leaf_that_never_announced_itself_has_its_state_and_no_figures() -> None:
    assert samples(look(domains=["a"], linked={"a"})) == {
        'petiole_leaf_state{domain="a",state="stopped"}': 1,
        'petiole_leaf_linked{domain="a"}': 1,
    }


def test_after_a_restart_of_the_hub_a_leaf_is_shown_by_its_record() -> None:
    leaf = record("a", normal=class_state(100, 7200.0, discarded=2))
    restarted = look(leaf, announced={}, heard_at={"a": NOW}, linked=(), states={})
    assert word(restarted) == ["away"]
    assert of(restarted, "discarded_readings_total") == 2
    assert of(restarted, "seconds_to_loss") == 7200
    assert of(restarted, "clock_synchronised") is None
    assert of(restarted, "seconds_since_heard") == 300


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        ("synchronised=yes", 1),
        ("synchronised=no; boot=b", 0),
        ("", None),
        ("unsynchronised=yes", None),
    ],
)
def test_the_clock_of_a_leaf_is_what_it_announced(clock: str, expected: float | None) -> None:
    leaf = record("a", normal=class_state(100))
    assert of(look(leaf, announced={"a": announced(leaf, clock)}), "clock_synchronised") == expected


def test_what_a_leaf_does_not_announce_has_no_series() -> None:
    silent_on_it = replace(class_state(100), ledger=None, seconds_to_loss=None)
    shown = samples(look(record("a", normal=silent_on_it)))
    assert not [name for name in shown if "readings" in name or "to_loss" in name or "link_bytes" in name]


def test_that_nothing_threatens_is_infinity() -> None:
    assert of(look(record("a", normal=class_state(100))), "seconds_to_loss") == math.inf


def test_a_hub_that_holds_more_than_a_leaf_announced_last_lacks_nothing() -> None:
    assert of(look(record("a", normal=class_state(80))), "backlog_messages") == 0


def test_what_a_leaf_announces_as_its_version_is_written_as_text_of_a_bounded_length() -> None:
    hostile = record("a", 'x"}\n' + "y" * 1000, normal=class_state(1))
    assert max(map(len, samples(look(hostile)))) < 150


def test_a_leaf_that_goes_has_no_series_at_the_next_scrape() -> None:
    fleet = look(record("a", normal=class_state(1)), record("b", normal=class_state(1)))
    registry = CollectorRegistry()
    shown = [fleet, replace(fleet, domains=["b"])]
    registry.register(LeafCollector(lambda: shown.pop(0)))
    assert b'domain="a"' in OPEN_METRICS(registry)
    assert b'domain="a"' not in OPEN_METRICS(registry)


@pytest.mark.parametrize(
    ("patterns", "most", "expected"),
    [
        (["*"], 10, ["a-1", "a-2", "b-1"]),
        (["*"], 2, ["a-1", "a-2"]),
        (["a-*"], 10, ["a-1", "a-2"]),
        (["b-?", "a-2"], 10, ["a-2", "b-1"]),
        ([], 10, []),
        (["*"], 0, []),
    ],
)
def test_the_leaves_that_are_shown_match_a_pattern_and_are_the_first_by_name(
    patterns: list[str], most: int, expected: list[str]
) -> None:
    assert shown_leaves({"b-1", "a-2", "a-1"}, patterns, most) == expected
