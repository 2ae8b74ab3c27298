"""Converts OTLP metrics to NDJSON. No I/O. Needs the extra `otlp`.

A point is one reading; histograms give `_bucket` (tag `le`, cumulative), `_sum` and `_count`, summaries tag
`quantile`. Attributes of resource, scope and point are tags, the nearest wins; `otel.scope.name`,
`otel.scope.version` and `otel.temporality` are added. `device` is `host.name`, else `service.instance.id`,
else the domain. Exponential histograms, non-finite values, over 63 attributes or 1,000 buckets are rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1 import metrics_pb2

from agent.leaf.inputs.formats.line_values import LineError, join_columns, tail_of
from agent.leaf.inputs.http.otlp.export import OtlpExport
from agent.leaf.inputs.http.otlp.source import OtlpResource, Resource
from agent.leaf.inputs.http.otlp.values import apart, columns, number, quick, values_of

_NO_VALUE: Final = metrics_pb2.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
_DELTA: Final = metrics_pb2.AGGREGATION_TEMPORALITY_DELTA


class Export(OtlpExport):
    """An export of metrics."""

    request_type = ExportMetricsServiceRequest
    response_type = ExportMetricsServiceResponse
    rejected_field = "rejected_data_points"

    def _take_all(self) -> Iterator[int]:
        for of_resource in self._request.resource_metrics:
            yield 1
            if of_resource.scope_metrics:  # else half of its time is spent on nothing
                yield from self._of_resource(of_resource)

    def _of_resource(self, of_resource: Any) -> Iterator[int]:
        resource = Resource(of_resource.resource)
        for of_scope in of_resource.scope_metrics:
            yield 1
            sources: dict[bool, OtlpResource] = {}
            for metric in of_scope.metrics:
                yield 1
                yield from self._of_metric(metric, resource, of_scope.scope, sources)

    def _of_metric(
        self, metric: Any, resource: Resource, scope: Any, sources: dict[bool, OtlpResource]
    ) -> Iterator[int]:
        """Take a metric's points. `sources` caches the scope's sources, whose lookup is costly."""
        kind = metric.WhichOneof("data")
        if kind is None:
            return
        data = getattr(metric, kind)
        delta = getattr(data, "aggregation_temporality", None) == _DELTA
        source = sources.get(delta)
        if source is None:
            source = sources[delta] = self._sources.source(resource, scope, delta=delta)
        if kind in ("gauge", "sum"):
            yield from self._numbers(metric.name, kind, data, source)
            return
        for point in data.data_points:
            before = self.count
            self._take(metric.name, kind, point, source)
            yield 1 + self.count - before

    def _numbers(self, name: str, kind: str, data: Any, source: OtlpResource) -> Iterator[int]:
        """Take number points by column, and unexpected ones singly."""
        first = 0
        for points in apart(data):
            if not self._take_column(name, data.data_points, first, points, source):
                self._take_singly(name, kind, data.data_points, first, points, source)
            first += len(points)
            yield len(points)

    def _take_column(
        self, name: str, data: Sequence[Any], first: int, points: list[bytes], source: OtlpResource
    ) -> bool:
        """Take points from `data[first]`, all or none."""
        numbers = columns(points)
        if numbers is None:
            return False
        try:
            before = source.before(name)
            tails = source.tails_of(numbers.attributes, data, first)
        except LineError:
            return False
        count = len(points)
        self._use(sum(map(len, tails)) + count * (source.cost + 2 * len(name.encode())))
        starts = self._stamps.of_numbers(numbers.times)
        self._parts.append(join_columns([*starts, [before] * count, numbers.values, tails]))
        self.count += count
        return True

    def _take_singly(
        self, name: str, kind: str, data: Sequence[Any], first: int, points: list[bytes], source: OtlpResource
    ) -> None:
        before, cost = None, source.cost + 2 * len(name.encode())
        for index, packed in enumerate(points, first):
            number_point = None if before is None else quick(packed, source.tails)
            if number_point is None or before is None:
                before = self._take(name, kind, data[index], source)
                continue
            ns, value, tail = number_point
            self._use(len(tail) + cost)
            try:
                self._parts.append(self._stamps.reading(ns) + before + number(value) + tail)
                self.count += 1
            except LineError as error:
                self._reject(error)

    def _take(self, name: str, kind: str, point: Any, source: OtlpResource) -> bytes | None:
        """Take a point and return the text before its metric's values if valid."""
        if point.flags & _NO_VALUE:
            return None
        try:
            before = source.before(name)
            self._parts += (lines := self._lines(name, kind, point, source))
        except LineError as error:
            self._reject(error)
            return None
        self.count += len(lines)
        return before

    def _lines(self, name: str, kind: str, point: Any, source: OtlpResource) -> list[bytes]:
        values = values_of(kind, point)
        tags = source.tags(point)
        tail = tail_of(tags)
        self.is_dated = self.is_dated and bool(point.time_unix_nano)
        ts = self._stamps.reading(point.time_unix_nano) if point.time_unix_nano else self._now
        self._use(len(values) * (len(tail) + source.cost + 2 * len(name.encode())))
        lines = []
        for suffix, value, tag in values:
            end = tail if tag is None else tail_of({**tags, tag[0]: tag[1]})
            lines.append(ts + source.before(name + suffix) + number(value) + end)
        if kind in ("gauge", "sum"):
            source.learn(point, tail)
        return lines
