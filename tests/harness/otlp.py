"""Metrics and logs of OpenTelemetry's own SDK, as a program writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.metrics import Meter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import LogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExporter, MetricExportResult
from opentelemetry.sdk.resources import Resource

RESOURCE = Resource({"host.name": "pump-7", "service.name": "press"})
_NS = 1_790_000_000_500_000_000
_SPAN = trace.SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, is_remote=False)


def export_by_sdk(exporter: MetricExporter, record: Callable[[Meter], None]) -> MetricExportResult:
    """Export what `record` measures."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], RESOURCE)
    record(provider.get_meter("lib", "1.0"))
    data = reader.get_metrics_data()
    try:
        assert data is not None
        return exporter.export(data)
    finally:
        exporter.shutdown()
        provider.shutdown()


def log_by_sdk(exporter: LogRecordExporter) -> None:
    """Write a line of text and a structured one."""
    provider = LoggerProvider(RESOURCE)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    logger = provider.get_logger("lib", "1.0")
    logger.emit(
        LogRecord(
            timestamp=_NS,
            context=trace.set_span_in_context(trace.NonRecordingSpan(_SPAN)),
            severity_number=SeverityNumber.ERROR,
            severity_text="ERROR",
            body="roller 3 is jammed",
            attributes={"roller": 3},
        )
    )
    logger.emit(LogRecord(timestamp=_NS, severity_number=SeverityNumber.INFO, body={"a": [1, "x"]}))
    provider.shutdown()


def seen_in(rows: list[dict[str, Any]]) -> None:
    """What the readings of these must be."""
    shared = {"service.name": "press", "otel.scope.name": "lib", "otel.scope.version": "1.0"}
    first, second = rows
    assert {name: first[name] for name in ("ts", "device", "metric", "value")} == {
        "ts": "2026-09-21T14:13:20.5Z",
        "device": "pump-7",
        "metric": "log",
        "value": "roller 3 is jammed",
    }
    assert first["tags"] == shared | {
        "roller": "3",
        "severity": "ERROR",
        "severity_number": "17",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": "b7ad6b7169203331",
    }
    assert second["value"] == '{"a": [1, "x"]}'
    assert second["tags"] == shared | {"severity": "INFO", "severity_number": "9"}
