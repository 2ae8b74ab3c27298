"""Rows of bronze become readings and quarantine."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.contract import Ledger, Letter, Readings, StreamState
from hub_jobs.refine.messages import QuarantineReason
from hub_jobs.refine.readings import Refiner, quarantine_table
from tests.unit.hub_jobs.rows import (
    ARRIVED_US,
    RUN,
    SEALED_NS,
    batch_headers,
    batch_row,
    dead_row,
    direct_row,
    row,
)


def _refine(*rows: dict[str, Any]) -> tuple[list[dict[str, Any]], list[tuple[int | None, QuarantineReason]]]:
    refiner = Refiner()
    readings = [one for taken in rows for table in refiner.add(taken) for one in table.to_pylist()]
    readings += refiner.drain().to_pylist()
    quarantine_table(refiner.quarantined)
    return readings, [(one.line, one.reason) for one in refiner.quarantined]


def _at(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


def test_device_and_metric_of_mqtt_are_as_the_device_wrote_them() -> None:
    subject = "tel.edge-1.normal.pump//7.in//side"
    (one,), refused = _refine(row(b'{"value":1,"device":"pump.7"}', subject, {"Nmqtt-Pub": "1"}))
    assert (one["device"], one["metric"], refused) == ("pump.7", "in.side", [])
    (one,), refused = _refine(row(b"1", subject, {}))
    assert (one["device"], one["metric"], refused) == ("pump//7", "in//side", [])


def test_a_batch_becomes_one_row_a_line_with_its_place_in_the_batch() -> None:
    text = (
        b'{"ts":"2026-11-21T06:16:33.5Z","device":"pump","metric":"rpm","value":12,"tags":{"a":"b"}}\n'
        b'{"ts":1795000000.25,"metric":"on","value":true}\n'
        b'{"metric":"state","value":"idle"}\n'
    )

    readings, refused = _refine(batch_row(text, n=4))

    assert refused == []
    shown = ("ts", "ts_source", "device", "metric", "value", "text", "tags", "index")
    assert [tuple(reading[name] for name in shown) for reading in readings] == [
        (
            datetime(2026, 11, 21, 6, 16, 33, 500000, UTC),
            "device",
            "pump",
            "rpm",
            12.0,
            None,
            [("a", "b")],
            0,
        ),
        (_at(1795000000250000), "device", "edge-1", "on", 1.0, "true", [], 1),
        (_at(SEALED_NS // 1000), "agent", "edge-1", "state", None, "idle", [], 2),
    ]
    assert {(reading["domain"], reading["class"], reading["run"], reading["n"]) for reading in readings} == {
        ("edge-1", "normal", RUN, 4)
    }
    assert readings[0]["event_date"] == date(2026, 11, 21)
    assert readings[0]["arrived"] == _at(ARRIVED_US)
    assert readings[0]["source_seq"] is None


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.floats(-1e300, 1e300) | st.just("idle"), min_size=1))
@example([2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, -(2**63), 0.5, "idle"])
def test_a_whole_number_of_64_bits_keeps_all_its_digits(values: list[int | float | str]) -> None:
    lines = b"".join(json.dumps({"metric": "m", "value": one}).encode() + b"\n" for one in values)

    readings, refused = _refine(batch_row(lines))

    assert refused == []
    for value, reading in zip(values, readings, strict=True):
        if isinstance(value, str):
            assert (reading["value"], reading["text"]) == (None, value)
        elif int(float(value)) == value or isinstance(value, float):
            assert (reading["value"], reading["text"]) == (value, None)
        else:
            assert (reading["value"], int(reading["text"])) == (float(value), value)


def test_a_whole_number_that_a_device_publishes_itself_keeps_all_its_digits() -> None:
    (reading,), _ = _refine(direct_row(b"-9007199254740993"))

    assert (reading["value"], reading["text"]) == (-9007199254740992.0, "-9007199254740993")


@pytest.mark.parametrize(
    ("payload", "value", "text"),
    [(b"21.5", 21.5, None), (b" 3", 3.0, None), (b'"on"', None, "on"), (b"false", 0.0, "false")],
)
def test_a_bare_value_takes_device_and_metric_from_its_subject(
    payload: bytes, value: float | None, text: str | None
) -> None:
    (reading,), refused = _refine(direct_row(payload))

    assert refused == []
    assert (reading["device"], reading["metric"]) == ("pump", "pressure")
    assert (reading["value"], reading["text"]) == (value, text)
    assert (reading["ts"], reading["ts_source"]) == (_at(ARRIVED_US), "hub")
    assert (reading["run"], reading["n"], reading["index"]) == (None, None, 0)
    assert (reading["source_stream"], reading["source_identity"], reading["source_seq"]) == (
        "TEL_edge-1_normal",
        "abc",
        7,
    )


def test_a_direct_object_may_leave_out_what_its_subject_says_and_must_not_contradict_it() -> None:
    good = [b'{"value":1}', b'{"value":1,"device":"pump","metric":"pressure","ts":5,"tags":{"a":"b"}}']
    bad = [
        b'{"value":1,"device":"valve"}',
        b'{"value":1,"metric":"rpm"}',
        b'{"value":1,"tags":{"a":1}}',
        b'{"value":1,"ts":"yesterday"}',
        b'{"metric":"pressure"}',
        b"{}",
        b"null",
        b"NaN",
        b"on",
        b"[]",
        b"",
    ]

    readings, refused = _refine(*map(direct_row, good + bad))

    assert [(reading["device"], reading["metric"]) for reading in readings] == [("pump", "pressure")] * 2
    assert [reading["ts_source"] for reading in readings] == ["hub", "device"]
    assert [reason for _, reason in refused] == [QuarantineReason.DIRECT] * len(bad)


def test_good_lines_beside_bad_ones_are_taken_and_each_bad_one_is_named() -> None:
    lines = [b'{"metric":"m","value":1}'] * 6
    lines[1] = b"not json"
    lines[3] = b'{"metric":"m","value":1,"ts":"2026-02-30T00:00:00Z"}'
    lines[4] = b'{"metric":"m","value":1,"tags":{"a":1}}'

    readings, refused = _refine(batch_row(b"\n".join(lines) + b"\n"))

    assert [reading["index"] for reading in readings] == [0, 2, 5]
    assert sorted(refused) == [
        (1, QuarantineReason.LINE),
        (3, QuarantineReason.LINE),
        (4, QuarantineReason.LINE),
    ]


def test_a_time_that_leaves_the_calendar_in_utc_is_named() -> None:
    readings, refused = _refine(
        batch_row(b'{"metric":"m","value":1,"ts":"9999-12-31T23:59:59-01:00"}\n{"metric":"m","value":1}\n')
    )

    assert [reading["index"] for reading in readings] == [1]
    assert refused == [(0, QuarantineReason.LINE)]


def test_what_can_not_be_taken_as_a_whole_is_one_row_with_its_reason() -> None:
    line = b'{"metric":"m","value":1}\n'
    subject = "tel.edge-1.normal._batch.http"
    wrong_version = {**batch_headers(1, 1, compressed=False), "Petiole-Version": "2"}
    cases = {
        QuarantineReason.SOURCE: batch_row(line, domain=None),
        QuarantineReason.FOREIGN: batch_row(line, domain="edge-2", run=None, n=None),
        QuarantineReason.SUBJECT: row(line, "tel.edge-1.normal._other.x", {}),
        QuarantineReason.COUNT: batch_row(line, count=2),
        QuarantineReason.CORRUPT: row(line, subject, batch_headers(1, 1), run=RUN, n=1, count=1),
        QuarantineReason.TOO_LARGE: batch_row(bytes(64 * 2**20 + 1), count=1),
        QuarantineReason.VERSION: row(line, subject, wrong_version, run=RUN, n=1, count=1),
        QuarantineReason.HEADERS: row(line, subject, batch_headers(1, 1, cls="bulk")),
        QuarantineReason.LEDGER: row(b"{}", "tel.edge-1.normal._ledger", {}),
    }

    for reason, taken in cases.items():
        assert _refine(taken) == ([], [(None, reason)])


def test_a_ledger_record_is_no_reading() -> None:
    ledger = Ledger("edge-1", "normal", RUN, 0, (), Readings(), StreamState("now", 0, 0))

    assert _refine(row(ledger.encode(), "tel.edge-1.normal._ledger", {})) == ([], [])


def test_each_dead_letter_is_named_with_its_place_and_why_it_was_not_taken() -> None:
    letters = [
        Letter(b"21,5", "/var/log/x:17", "not JSON"),
        Letter(b"\xff\x00" * 1000, "plant/pump", "not UTF-8", omitted=3),
    ]
    refiner = Refiner()

    assert (
        refiner.add(dead_row(b"".join(letter.encode() + b"\n" for letter in letters) + b"none\n", n=4)) == []
    )

    named = quarantine_table(refiner.quarantined).to_pylist()
    shown = ("n", "line", "reason", "detail", "place", "excerpt")
    assert [tuple(one[name] for name in shown) for one in named[:2]] == [
        (4, 0, "dead letter", "not JSON", "/var/log/x:17", b"21,5"),
        (
            4,
            1,
            "dead letter",
            "not UTF-8 (after 3 that were counted only)",
            "plant/pump",
            b"\xff\x00" * 512,
        ),
    ]
    assert (named[2]["line"], named[2]["reason"], named[2]["place"]) == (2, "bad line", None)
    assert refiner.drain().num_rows == 0


def test_dead_letters_that_are_not_what_their_headers_say_are_named_as_a_whole() -> None:
    assert _refine(
        row(b"whatever", "tel.edge-1.normal._dead.mqtt", {}),
        dead_row(b"{}\n", count=2),
    ) == ([], [(None, QuarantineReason.VERSION), (None, QuarantineReason.COUNT)])


def test_a_quarantined_excerpt_and_its_detail_are_bounded() -> None:
    refiner = Refiner()
    refiner.add(direct_row(b"x" * 100_000))

    (named,) = quarantine_table(refiner.quarantined).to_pylist()

    assert len(named["excerpt"]) == 1024
    assert len(named["detail"]) <= 500
    assert (named["seq"], named["line"], named["domain"]) == (1, 0, "edge-1")
