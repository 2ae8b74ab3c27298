"""OTLP metrics become NDJSON that may be stored. No I/O. This is the only module that needs the extra `otlp`
(`opentelemetry-proto`), so it is imported only where the option is on.

A data point becomes one reading or, where it is a histogram or a summary, several: `_bucket` with tag `le`,
cumulative as Prometheus has them, `_sum` and `_count`; quantiles carry tag `quantile`. Attributes of the
resource, the scope and the point are tags, the nearest wins; `otel.scope.name` and `otel.scope.version` name
the scope, `otel.temporality` is `delta` where values are not cumulative. `device` is the resource's
`host.name`, or else `service.instance.id`, which then is no tag, or else the domain. A point that records no
value is no reading. What can't be taken is rejected point by point: exponential histograms, values that are
not finite, more than 63 attributes or 1,000 buckets.

https://opentelemetry.io/docs/specs/otlp/#otlphttp says what is answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1 import metrics_pb2

from agent.leaf.inputs.formats.line_values import LineError, PayloadParts, join_columns, tail_of
from agent.leaf.inputs.http.otlp.source import OtlpResource, Resource, Sources
from agent.leaf.inputs.http.otlp.values import apart, columns, number, quick, values_of

_STEP: Final = 500
"""Points that are taken apart at a time, a few milliseconds."""
_NO_VALUE: Final = metrics_pb2.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
_DELTA: Final = metrics_pb2.AGGREGATION_TEMPORALITY_DELTA
_SHOWN: Final = 3
"""Reasons that an answer names."""
_KINDS: Final = 100
"""Reasons that are counted apart."""


class ExportTooLargeError(Exception):
    """The readings of a body are more bytes than its bound."""


class Export(PayloadParts):
    """One body under way: call `step` until it is False, then `payload` is NDJSON of `count` readings;
    `rejected` points were not taken. `limit` bounds the payload in bytes. Raises `ValueError` for a body that
    is no export."""

    def __init__(self, body: bytes, is_json: bool, sources: Sources, now_ns: int, limit: int) -> None:
        super().__init__()
        self._request = _decode(body, is_json)
        self._sources = sources
        self._stamps = sources.stamps
        self._now = self._stamps.machine(now_ns)
        self._room = limit
        self._reasons: Counter[str] = Counter()
        self._points = self._all_points()
        self.count = 0
        self.rejected = 0
        self.is_dated = True
        """Whether each point has a time of its own, so that the same body is the same export."""
        self.left_out: Counter[str] = Counter()

    def step(self) -> bool:
        """Take some points; whether there are more. Raises `ExportTooLargeError`."""
        points_taken = 0
        for points in self._points:
            points_taken += points
            if points_taken >= _STEP:
                return True
        self._request = None  # many times the size of the body
        return False

    def response(self, is_json: bool) -> bytes:
        """The body of the answer 200."""
        response = ExportMetricsServiceResponse()
        if self.rejected:
            reasons = "; ".join(f"{count} × {reason}" for reason, count in self._reasons.most_common(_SHOWN))
            response.partial_success.rejected_data_points = self.rejected
            response.partial_success.error_message = f"not stored: {reasons}"
        if is_json:
            return str(json_format.MessageToJson(response, indent=None)).encode()
        packed: bytes = response.SerializeToString()
        return packed

    def _all_points(self) -> Iterator[int]:
        """Takes some points, or a part that holds none, at each step, and says how many: a body may be
        nothing but empty parts."""
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
        """The points of a metric. `sources` are those of its scope by whether values are a delta: to look one
        up costs as much as its attributes are long."""
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
        """Points of one number, which are most: by the column, and looked at one by one only where they are
        not as expected."""
        first = 0
        for points in apart(data):
            if not self._take_column(name, data.data_points, first, points, source):
                self._take_singly(name, kind, data.data_points, first, points, source)
            first += len(points)
            yield len(points)

    def _take_column(
        self, name: str, data: Sequence[Any], first: int, points: list[bytes], source: OtlpResource
    ) -> bool:
        """Points of which the first is `data[first]`, all of them or none."""
        numbers = columns(points)
        if numbers is None:
            return False
        try:
            before = source.before(name)
            tails = source.tails_of(numbers.attributes, data, first)
        except LineError:
            return False
        count = len(points)
        self._room -= sum(map(len, tails)) + count * (source.cost + 2 * len(name.encode()))
        if self._room < 0:
            raise ExportTooLargeError
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
            self._room -= len(tail) + cost
            if self._room < 0:
                raise ExportTooLargeError
            try:
                self._parts.append(self._stamps.reading(ns) + before + number(value) + tail)
                self.count += 1
            except LineError as error:
                self._reject(error)

    def _take(self, name: str, kind: str, point: Any, source: OtlpResource) -> bytes | None:
        """Take a point; returns what stands before the values of its metric where that may be stored."""
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

    def _reject(self, error: LineError) -> None:
        self.rejected += 1
        self.left_out[error.kind] += 1
        reason = str(error)
        is_counted = reason in self._reasons or len(self._reasons) < _KINDS
        self._reasons[reason if is_counted else "other reasons"] += 1

    def _lines(self, name: str, kind: str, point: Any, source: OtlpResource) -> list[bytes]:
        values = values_of(kind, point)
        tags = source.tags(point)
        tail = tail_of(tags)
        self.is_dated = self.is_dated and bool(point.time_unix_nano)
        ts = self._stamps.reading(point.time_unix_nano) if point.time_unix_nano else self._now
        self._room -= len(values) * (len(tail) + source.cost + 2 * len(name.encode()))
        if self._room < 0:
            raise ExportTooLargeError
        lines = []
        for suffix, value, tag in values:
            end = tail if tag is None else tail_of({**tags, tag[0]: tag[1]})
            lines.append(ts + source.before(name + suffix) + number(value) + end)
        if kind in ("gauge", "sum"):
            source.learn(point, tail)
        return lines


def _decode(body: bytes, is_json: bool) -> Any:
    request = ExportMetricsServiceRequest()
    try:
        if is_json:
            json_format.Parse(body, request, ignore_unknown_fields=True)
        else:
            request.ParseFromString(body)
    except (json_format.ParseError, DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"the body is no ExportMetricsServiceRequest: {words:.200}") from None
    return request


def status_message(text: str) -> bytes:
    """A `google.rpc.Status` with this message (its field 2), which a refusal of protobuf carries."""
    data = text.encode(errors="backslashreplace")[:1000]
    size, rest = len(data) & 0x7F, len(data) >> 7
    return b"\x12" + (bytes((size | 0x80, rest)) if rest else bytes((size,))) + data
