"""Converts OTLP logs to NDJSON. No I/O. Needs the extra `otlp`.

A record is a reading of metric `log` whose value is the body as text or JSON, at most 128 KiB. Longer text is
split into readings with tag `part`. Device and shared tags are as for metrics; the record adds its attributes
and `severity`, `severity_number`, `trace_id`, `span_id`, `event_name` (prefixed `otel.` on conflict). The
time is the record's or the observed one. More than 63 tags or a too long attribute is rejected.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.logs.v1 import logs_pb2

from agent import contract
from agent.leaf.inputs.formats.line_values import LineError, tail_of, to_json
from agent.leaf.inputs.http.otlp.export import OtlpExport
from agent.leaf.inputs.http.otlp.source import OtlpResource, Resource
from agent.leaf.inputs.http.otlp.values import Tags, body_text, check_tags

METRIC: Final = "log"
_SEVERITIES: Final = {
    number: name.removeprefix("SEVERITY_NUMBER_") for name, number in logs_pb2.SeverityNumber.items()
}
_PIECE: Final = contract.MAX_TEXT


class LogsExport(OtlpExport):
    """An export of logs."""

    request_type = ExportLogsServiceRequest
    response_type = ExportLogsServiceResponse
    rejected_field = "rejected_log_records"

    def _take_all(self) -> Iterator[int]:
        for of_resource in self._request.resource_logs:
            yield 1
            if not of_resource.scope_logs:
                continue
            resource = Resource(of_resource.resource)
            for of_scope in of_resource.scope_logs:
                yield 1
                if of_scope.log_records:
                    source = self._sources.source(resource, of_scope.scope, delta=False)
                    for record in of_scope.log_records:
                        before = self.count
                        self._take(record, source)
                        yield 1 + self.count - before

    def _take(self, record: Any, source: OtlpResource) -> None:
        try:
            before = source.before(METRIC)
            tags = source.tags(record)
            if said := self._said(record):
                tags = {**tags, **{_free(name, tags): text for name, text in said.items()}}
                check_tags(tags)
            text = body_text(record.body)
            ns = record.time_unix_nano or record.observed_time_unix_nano
            begin = (self._stamps.reading(ns) if ns else self._now) + before
        except LineError as error:
            self._reject(error)
            return
        self.is_dated = self.is_dated and bool(ns)
        for line in _lines(begin, text, tags):
            self._use(len(line))
            self._parts.append(line)
            self.count += 1

    def _said(self, record: Any) -> Tags:
        """Return the tags from a record's own fields."""
        number = record.severity_number
        said = {
            "severity": record.severity_text or (_SEVERITIES.get(number, str(number)) if number else ""),
            "severity_number": str(number or ""),
            "trace_id": self._identity(record.trace_id),
            "span_id": self._identity(record.span_id),
            "event_name": record.event_name,
        }
        return {name: text for name, text in said.items() if text}

    def _identity(self, packed: bytes) -> str:
        """Return an id in hexadecimal, "" if none. OTLP JSON has hex where protobuf expects Base64."""
        text = base64.b64encode(packed).decode().lower() if self._is_json else packed.hex()
        return text if text.strip("0") else ""


def _lines(begin: bytes, text: str, tags: Tags) -> Iterator[bytes]:
    """Yield readings of a text, split at the longest value."""
    if len(text) <= _PIECE:
        yield begin + to_json(text) + tail_of(tags)
        return
    starts = range(0, len(text), _PIECE)
    for number, start in enumerate(starts, 1):
        part = {_free("part", tags): f"{number}/{len(starts)}"}
        yield begin + to_json(text[start : start + _PIECE]) + tail_of({**tags, **part})


def _free(name: str, tags: Tags) -> str:
    """Return a name that no attribute has."""
    return f"otel.{name}" if name in tags else name
