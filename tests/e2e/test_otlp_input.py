"""OpenTelemetry's own SDK exports to the `http` input."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import Meter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk.metrics.export import MetricExportResult

from agent.config import Size
from agent.leaf.intake import RefusalReason, RefusedError, UnknownOutcomeError
from tests.harness.http_harness import JSON, Served, serving
from tests.harness.otlp import export_by_sdk, log_by_sdk, seen_in

PROTOBUF = {"Content-Type": "application/x-protobuf"}
PATH = "/v1/metrics"
LOGS_PATH = "/v1/logs"
POINT = {"asInt": "3", "timeUnixNano": "1790000000000000000"}


def body(*points: dict[str, Any]) -> bytes:
    metrics = [{"name": "m", "gauge": {"dataPoints": list(points)}}]
    return json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}).encode()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(otlp=True) as one:
        yield one


def rows(served: Served) -> list[dict[str, Any]]:
    return [json.loads(line) for chunk in served.core.stored for line in chunk.payload.splitlines()]


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
async def test_the_official_exporter_is_understood(served: Served, compression: Compression) -> None:
    def record(meter: Meter) -> None:
        meter.create_counter("strokes").add(3, {"side": "left"})
        meter.create_histogram("force", explicit_bucket_boundaries_advisory=[1.0, 2.0]).record(1.5)
        meter.create_gauge("level").set(0.25)

    exporter = OTLPMetricExporter(served.url + PATH, compression=compression)
    assert await asyncio.to_thread(export_by_sdk, exporter, record) is MetricExportResult.SUCCESS
    found = {(row["metric"], row["tags"].get("le")): row for row in rows(served)}
    strokes = found["strokes", None]
    assert (strokes["device"], strokes["value"], strokes["tags"]["side"]) == ("pump-7", 3, "left")
    assert strokes["tags"]["service.name"] == "press"
    assert strokes["tags"]["otel.scope.name"] == "lib"
    assert [found["force_bucket", le]["value"] for le in ("1", "2", "+Inf")] == [0, 1, 1]
    assert (found["force_sum", None]["value"], found["force_count", None]["value"]) == (1.5, 1)
    assert found["level", None]["value"] == 0.25


async def test_json_is_taken_too_packed_or_not(served: Served) -> None:
    assert (await served.post(body(POINT), JSON, PATH))[0] == 200
    status, answer, headers = await served.post(
        gzip.compress(body({**POINT, "asInt": "4"})), {**JSON, "Content-Encoding": "gzip"}, PATH
    )
    assert (status, answer, headers["Content-Type"]) == (200, {}, "application/json")
    assert [row["value"] for row in rows(served)] == [3, 4]


async def test_logs_of_the_official_sdk_are_stored(served: Served) -> None:
    await asyncio.to_thread(log_by_sdk, OTLPLogExporter(served.url + LOGS_PATH))
    seen_in(rows(served))


def logs(*records: dict[str, Any]) -> bytes:
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}).encode()


async def test_log_records_that_cannot_be_taken_are_told_and_counted(served: Served) -> None:
    many = {"attributes": [{"key": f"a{number}", "value": {}} for number in range(65)]}
    status, answer, _ = await served.post(logs(many, {"body": {"stringValue": "up"}}), JSON, LOGS_PATH)
    assert (status, answer["partialSuccess"]["rejectedLogRecords"]) == (200, "1")
    assert [row["value"] for row in rows(served)] == ["up"]
    assert served.metric("petiole_invalid_requests_total", reason="rejected_records") == 1
    assert (await served.post(b"x", JSON, LOGS_PATH))[1]["message"].startswith("the body is no ExportLogs")


@pytest.mark.parametrize(
    ("path", "dated", "undated"),
    [
        (PATH, body(POINT), body({"asInt": "4"})),
        (LOGS_PATH, logs({"observedTimeUnixNano": "7", "body": {"stringValue": "a"}}), logs({})),
    ],
)
async def test_an_export_that_comes_again_is_stored_once_if_all_of_it_has_times_or_it_has_a_key(
    served: Served, path: str, dated: bytes, undated: bytes
) -> None:
    for data, headers in ((dated, {}), (undated, {"Idempotency-Key": "a"}), (undated, {})):
        for _ in range(2):
            assert (await served.post(data, {**JSON, **headers}, path))[0] == 200
    assert len(rows(served)) == 1 + 1 + 2
    served.core.refuse = UnknownOutcomeError("not answered")
    assert "stores it once" in (await served.post(dated, JSON, path))[1]["message"]
    assert "may store it twice" in (await served.post(undated, JSON, path))[1]["message"]


async def test_points_that_cannot_be_taken_are_told_and_counted(served: Served) -> None:
    status, answer, _ = await served.post(body(POINT, {"asDouble": "NaN"}, {}), JSON, PATH)
    assert (status, answer["partialSuccess"]["rejectedDataPoints"]) == (200, "2")
    assert len(rows(served)) == 1
    assert served.metric("petiole_invalid_requests_total", reason="rejected_points") == 2
    assert served.metric("petiole_left_out_parts_total", reason="value") == 2


async def refusal(served: Served, data: bytes) -> tuple[int, bytes, str]:
    async with served.session.post(served.url + PATH, data=io.BytesIO(data), headers=PROTOBUF) as answer:
        return answer.status, await answer.read(), answer.headers.get("Retry-After", "")


async def test_a_refusal_is_a_status_in_the_form_of_the_request(served: Served) -> None:
    status, data, _ = await refusal(served, b"\xff\xff")
    assert (status, data[:1]) == (400, b"\x12")
    assert b"no ExportMetricsServiceRequest" in data
    assert (await served.post(b"x", JSON, PATH))[1]["message"].startswith("the body is no Export")
    served.core.refuse = RefusedError(RefusalReason.UNAVAILABLE, "away", 7)
    assert (await served.post(body(POINT), JSON, PATH))[0] == 503
    served.core.refuse = None
    status, data, _ = await refusal(served, b"")
    assert (status, ExportMetricsServiceResponse.FromString(data)) == (200, ExportMetricsServiceResponse())
    assert served.core.stored == []


async def test_an_export_above_a_mebibyte_is_refused(served: Served) -> None:
    status, data, _ = await refusal(served, b"\x00" * (2**20 + 1))
    assert (status, b"export fewer points at a time" in data) == (413, True)


async def test_exports_that_need_more_memory_than_is_set_aside_are_sent_back() -> None:
    async with serving(otlp=True, buffer=Size(1_000_000)) as served:
        status, _, retry_after = await refusal(served, b"\x0a\x00" * 50_000)
        assert (status, retry_after) == (503, "1")
        assert (await served.post(body(POINT), JSON, PATH))[0] == 200


async def test_without_the_option_nothing_is_there() -> None:
    async with serving() as served:
        status, answer, _ = await served.post(body(POINT), JSON, PATH)
        assert (status, "option otlp" in answer["error"]) == (404, True)
