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

import base64
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1 import metrics_pb2

from agent import contract
from agent.inputs.formats.line_values import LineError, check_name, to_json
from agent.inputs.formats.stamps import Stamps

_STEP: Final = 500
"""Points that are taken apart at a time, a few milliseconds."""
_NO_VALUE: Final = metrics_pb2.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
_DELTA: Final = metrics_pb2.AGGREGATION_TEMPORALITY_DELTA
_DEVICES: Final = ("host.name", "service.instance.id")
_SHOWN: Final = 3
"""Reasons that are told in an answer."""

_REMEMBERED: Final = 500
"""Names, and sets of attributes, of one scope."""
_MAX_PARTS: Final = 1000
"""Buckets or quantiles of one point."""

Tags = dict[str, str]
Values = list[tuple[str, int | float, tuple[str, str] | None]]
"""Of one point: what follows the name of the metric, the value, and a tag of its own."""


class TooLargeError(Exception):
    """The readings of a body are more bytes than its bound."""


class Export:
    """One body under way: call `step` until it is False, then `payload` is NDJSON of `count` readings;
    `rejected` points were not taken. `limit` bounds the payload in bytes. Raises `ValueError` for a body that
    is no export."""

    def __init__(self, body: bytes, is_json: bool, domain: str, now_ns: int, limit: int) -> None:
        self._request = _decode(body, is_json)
        self._domain = domain
        self._stamps = Stamps()
        self._now = self._stamps.machine(now_ns)
        self._room = limit
        self._parts: list[bytes] = []
        self._reasons: Counter[str] = Counter()
        self._points = self._all_points()
        self.count = 0
        self.rejected = 0

    @property
    def payload(self) -> bytes:
        """What was taken."""
        return b"".join(self._parts)

    @property
    def size(self) -> int:
        """How many bytes that is."""
        return sum(map(len, self._parts))

    def step(self) -> bool:
        """Take some points; whether there are more. Raises `TooLargeError`."""
        return all(next(self._points, False) for _ in range(_STEP))

    def response(self, is_json: bool) -> bytes:
        """The body of the answer 200."""
        response = ExportMetricsServiceResponse()
        if self.rejected:
            told = "; ".join(f"{count} × {reason}" for reason, count in self._reasons.most_common(_SHOWN))
            response.partial_success.rejected_data_points = self.rejected
            response.partial_success.error_message = f"not stored: {told}"
        if is_json:
            return str(json_format.MessageToJson(response, indent=None)).encode()
        packed: bytes = response.SerializeToString()
        return packed

    def _all_points(self) -> Iterator[bool]:
        """Takes a point, or what holds none, at each step: a body may be nothing but empty parts."""
        for of_resource in self._request.resource_metrics:
            yield True
            resource = _texts(of_resource.resource.attributes)
            device = next((resource.pop(name) for name in _DEVICES if resource.get(name)), self._domain)
            for of_scope in of_resource.scope_metrics:
                yield True
                source = _Source(device, resource | _of_scope(of_scope.scope))
                for metric in of_scope.metrics:
                    yield True
                    yield from self._of_metric(metric, source)

    def _of_metric(self, metric: Any, source: _Source) -> Iterator[bool]:
        kind = metric.WhichOneof("data")
        if kind is None:
            return
        data = getattr(metric, kind)
        if getattr(data, "aggregation_temporality", None) == _DELTA:
            source = _Source(source.device, {**source.tags, "otel.temporality": "delta"})
        name = metric.name
        for point in data.data_points:
            if not point.flags & _NO_VALUE:
                self._take(name, kind, point, source)
            yield True

    def _take(self, name: str, kind: str, point: Any, source: _Source) -> None:
        try:
            lines = self._lines(name, _values(kind, point), point, source)
        except LineError as error:
            self.rejected += 1
            self._reasons[str(error) if len(self._reasons) < 100 else "other reasons"] += 1
            return
        self.count += len(lines)
        self._parts += lines

    def _lines(self, name: str, values: Values, point: Any, source: _Source) -> list[bytes]:
        own = tuple([(one.key, one.value.string_value or _text(one.value)) for one in point.attributes])
        tags, tail = source.tails.get(own) or source.tail(own)
        ts = self._stamps.reading(point.time_unix_nano) if point.time_unix_nano else self._now
        self._room -= len(values) * (len(tail) + source.cost + 2 * len(name.encode()))
        if self._room < 0:
            raise TooLargeError
        lines = []
        for suffix, value, tag in values:
            end = tail if tag is None else _tail({**tags, tag[0]: tag[1]})
            lines.append(ts + source.before(name + suffix) + _number(value) + end)
        return lines


class _Source:
    """What the points of one scope share: the device, and tags to which each adds its own. Remembers names
    and attributes in the form in which they are stored."""

    def __init__(self, device: str, tags: Tags) -> None:
        self.device = device
        self.tags = tags
        self.tails: dict[tuple[tuple[str, str], ...], tuple[Tags, bytes]] = {}
        self.cost: Final = 2 * len(device.encode()) + 160
        """Bytes that a reading takes at most beside its name and its tags."""
        self._names: dict[str, bytes] = {}

    def tail(self, own: tuple[tuple[str, str], ...]) -> tuple[Tags, bytes]:
        """The tags of a point, and how its readings end; raises `LineError`."""
        tags = {**self.tags, **dict(own)}
        _check_tags(tags)
        made = tags, _tail(tags)
        if len(self.tails) >= _REMEMBERED:
            self.tails.clear()
        self.tails[own] = made
        return made

    def before(self, metric: str) -> bytes:
        """What stands between time and value; raises `LineError`."""
        known = self._names.get(metric)
        if known is None:
            check_name(self.device, "the device")
            check_name(metric, "the metric")
            known = b'"device":' + to_json(self.device) + b',"metric":' + to_json(metric) + b',"value":'
            if len(self._names) >= _REMEMBERED:
                self._names.clear()
            self._names[metric] = known
        return known


def _tail(tags: Tags) -> bytes:
    return b',"tags":' + to_json(tags) + b"}\n" if tags else b"}\n"


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


def _values(kind: str, point: Any) -> Values:
    """What a point says; raises `LineError`."""
    if kind in ("gauge", "sum"):
        value = point.WhichOneof("value")
        if value is None:
            raise LineError("a point without a value")
        return [("", getattr(point, value), None)]
    if kind == "summary":
        _check_parts(len(point.quantile_values))
        values: Values = [
            ("", one.value, ("quantile", _bound(one.quantile))) for one in point.quantile_values
        ]
        return [*values, ("_sum", point.sum, None), ("_count", point.count, None)]
    if kind == "histogram":
        return _histogram(point)
    raise LineError("exponential histograms are not taken: export explicit buckets")


def _histogram(point: Any) -> Values:
    counts, bounds = point.bucket_counts, point.explicit_bounds
    if counts and len(counts) != len(bounds) + 1:
        raise LineError("a histogram whose buckets do not fit its bounds")
    _check_parts(len(counts))
    values: Values = []
    total = 0
    for count, bound in zip(counts, [*bounds, math.inf], strict=False):
        total += count
        values.append(("_bucket", total, ("le", _bound(bound))))
    if point.HasField("sum"):
        values.append(("_sum", point.sum, None))
    return [*values, ("_count", point.count, None)]


def _check_parts(count: int) -> None:
    if count > _MAX_PARTS:
        raise LineError(f"more than {_MAX_PARTS} buckets or quantiles")


def _bound(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _number(value: int | float) -> bytes:
    if isinstance(value, int) and value <= contract.MAX_INT:
        return b"%d" % value
    if not math.isfinite(value):
        raise LineError("a value that is not finite")
    return repr(float(value)).encode()


def _of_scope(scope: Any) -> Tags:
    named = {"otel.scope.name": scope.name, "otel.scope.version": scope.version}
    return {**{name: text for name, text in named.items() if text}, **_texts(scope.attributes)}


def _texts(attributes: Iterable[Any]) -> Tags:
    return {one.key: one.value.string_value or _text(one.value) for one in attributes}


def _text(value: Any) -> str:
    """An attribute as text: what is not a single value as JSON."""
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    match value.WhichOneof("value"):
        case None:
            return ""
        case "array_value":
            return [_plain(one) for one in value.array_value.values]
        case "kvlist_value":
            return {one.key: _plain(one.value) for one in value.kvlist_value.values}
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case kind:
            return getattr(value, kind)


def _check_tags(tags: Tags) -> None:
    # One place is kept for `le` or `quantile`.
    if len(tags) >= contract.MAX_TAGS:
        raise LineError(f"more than {contract.MAX_TAGS - 1} attributes")
    for name, text in tags.items():
        check_name(name, "an attribute's name")
        if len(text) > contract.MAX_TEXT:
            raise LineError(f"an attribute longer than {contract.MAX_TEXT} characters")


def status_message(text: str) -> bytes:
    """A `google.rpc.Status` with this message (its field 2), which a refusal of protobuf carries."""
    data = text.encode(errors="backslashreplace")[:1000]
    size, rest = len(data) & 0x7F, len(data) >> 7
    return b"\x12" + (bytes((size | 0x80, rest)) if rest else bytes((size,))) + data
