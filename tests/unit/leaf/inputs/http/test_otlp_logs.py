"""Exports of logs as readings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)

from agent import contract
from agent.leaf.inputs.http.otlp.export import ExportTooLargeError
from agent.leaf.inputs.http.otlp.logs import LogsExport
from agent.leaf.inputs.http.otlp.source import Sources

NOW = 1_790_000_000_000_000_000
TRACE = "0af7651916cd43dd8448eb211c80319c"
ARRAY = {"arrayValue": {"values": [{"intValue": 1}]}}
SPAN = "b7ad6b7169203331"


def body_of(*records: dict[str, Any], **resource: str) -> bytes:
    attributes = [{"key": name, "value": {"stringValue": text}} for name, text in resource.items()]
    row = {"resource": {"attributes": attributes}, "scopeLogs": [{"logRecords": list(records)}]}
    return json.dumps({"resourceLogs": [row]}).encode()


def export(body: bytes, is_json: bool = True, limit: int = 2**24) -> LogsExport:
    one = LogsExport(body, is_json, Sources("edge-1"), NOW, limit)
    while one.step():
        pass
    return one


def rows(body: bytes, is_json: bool = True) -> list[dict[str, Any]]:
    found = export(body, is_json)
    assert found.rejected == 0
    lines = found.payload.splitlines()
    assert len(lines) == found.count
    assert all(contract.parse_reading(line) for line in lines)
    return [json.loads(line) for line in lines]


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"body": {"stringValue": value}, **more}


def test_a_record_says_all() -> None:
    said = {"severityNumber": 18, "severityText": "oops", "spanId": SPAN, "traceId": TRACE, "eventName": "e"}
    attributes = [{"key": "a", "value": {"intValue": "1"}}]
    body = body_of(text("up", timeUnixNano="1790000000500000000", attributes=attributes, **said), b="c")
    (row,) = rows(body)
    assert row == {
        "ts": "2026-09-21T14:13:20.5Z",
        "device": "edge-1",
        "metric": "log",
        "value": "up",
        "tags": {
            "b": "c",
            "a": "1",
            "severity": "oops",
            "severity_number": "18",
            "trace_id": TRACE,
            "span_id": SPAN,
            "event_name": "e",
        },
    }


def test_identities_are_the_same_in_protobuf() -> None:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    record.trace_id, record.span_id, record.severity_number = bytes.fromhex(TRACE), bytes(8), 10
    (row,) = rows(request.SerializeToString(), is_json=False)
    assert row["tags"] == {"severity": "INFO2", "severity_number": "10", "trace_id": TRACE}


@pytest.mark.parametrize(
    ("record", "ts", "is_dated"),
    [
        ({"timeUnixNano": "1000000000", "observedTimeUnixNano": "2"}, "1970-01-01T00:00:01Z", True),
        ({"observedTimeUnixNano": "1000000000"}, "1970-01-01T00:00:01Z", True),
        ({}, contract.machine_time(NOW), False),
    ],
)
def test_a_record_without_a_time_has_that_at_which_it_was_seen(
    record: dict[str, str], ts: str, is_dated: bool
) -> None:
    found = export(body_of(record))
    assert (json.loads(found.payload)["ts"], found.is_dated) == (ts, is_dated)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ({"kvlistValue": {"values": [{"key": "a", "value": ARRAY}]}}, '{"a": [1]}'),
        ({"intValue": "3"}, "3"),
        ({"boolValue": True}, "true"),
        ({"bytesValue": "AQI="}, "AQI="),
        ({}, ""),
    ],
)
def test_a_body_that_is_no_text_is_json(body: dict[str, Any], value: str) -> None:
    (row,) = rows(body_of({"body": body}))
    assert row["value"] == value


def test_a_long_text_becomes_several_readings() -> None:
    whole = "ä" * (contract.MAX_TEXT + 1)
    found = rows(body_of(text(whole, attributes=[{"key": "part", "value": {"stringValue": "own"}}])))
    assert "".join(row["value"] for row in found) == whole
    assert [row["tags"] for row in found] == [
        {"part": "own", "otel.part": f"{number}/2"} for number in (1, 2)
    ]


def test_an_attribute_of_a_name_of_ours_is_kept() -> None:
    record = text("x", severityNumber=9, attributes=[{"key": "severity", "value": {"stringValue": "high"}}])
    (row,) = rows(body_of(record))
    assert row["tags"] == {"severity": "high", "otel.severity": "INFO", "severity_number": "9"}


def test_what_no_reading_can_hold_is_rejected_and_named() -> None:
    many = [{"key": f"a{number}", "value": {"stringValue": "x"}} for number in range(62)]
    large = {"arrayValue": {"values": [{"stringValue": "x" * 1000}] * 140}}
    records = (text("b", severityNumber=9, attributes=many), {"body": large}, text("good"))
    found = export(body_of(*records))
    assert (found.count, found.rejected, dict(found.left_out)) == (1, 2, {"tags": 1, "size": 1})
    answer = json_format.Parse(found.response(True), ExportLogsServiceResponse())
    assert answer.partial_success.rejected_log_records == 2
    assert "more than 63 attributes" in answer.partial_success.error_message
    assert "structured body of more than 131072 bytes" in answer.partial_success.error_message


def test_readings_above_the_bound_are_refused() -> None:
    with pytest.raises(ExportTooLargeError):
        export(body_of(*[text("x")] * 1000, long="y" * 1000), limit=100_000)


def test_a_body_that_is_no_export_is_named() -> None:
    with pytest.raises(ValueError, match="no ExportLogsServiceRequest"):
        export(b"\xff\xff", is_json=False)
