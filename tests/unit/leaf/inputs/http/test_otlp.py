from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Exemplar, NumberDataPoint

from agent import contract
from agent.leaf.inputs.http.otlp.export import ExportTooLargeError, status_message
from agent.leaf.inputs.http.otlp.parse import Export
from agent.leaf.inputs.http.otlp.source import Sources
from tests.harness.examples import costly

NOW = 1_770_000_000_123_456_789
NS = "1790000000500000000"


def attributes(**values: Any) -> list[dict[str, Any]]:
    return [
        {"key": name.replace("_", "."), "value": value if isinstance(value, dict) else {"stringValue": value}}
        for name, value in values.items()
    ]


def body_of(*metrics: dict[str, Any], resource: Any = (), scope: Any = ()) -> bytes:
    of_scope = {"scope": {"name": "lib", "version": "1", "attributes": list(scope)}, "metrics": list(metrics)}
    row = {"resource": {"attributes": list(resource)}, "scopeMetrics": [of_scope]}
    return json.dumps({"resourceMetrics": [row]}).encode()


def gauge(**point: Any) -> dict[str, Any]:
    return {"name": "g", "gauge": {"dataPoints": [{"timeUnixNano": NS, **point}]}}


def export(body: bytes, is_json: bool = True, limit: int = 2**24) -> Export:
    one = Export(body, is_json, Sources("edge-1"), NOW, limit)
    while one.step():
        pass
    assert one.payload.count(b"\n") == one.count
    return one


def rows(body: bytes) -> list[contract.Reading]:
    one = export(body)
    assert one.rejected == 0
    return [contract.parse_reading(line) for line in one.payload.splitlines()]


SCOPE = {"otel.scope.name": "lib", "otel.scope.version": "1"}


def test_a_gauge_is_a_reading_whose_nearest_attribute_wins() -> None:
    (one,) = rows(
        body_of(
            gauge(asDouble=2.5, attributes=attributes(a="point", n={"intValue": "3"})),
            resource=attributes(a="resource", b="resource", host_name="pump-7"),
            scope=attributes(b="scope", flag={"boolValue": True}),
        )
    )
    tags = {**SCOPE, "a": "point", "b": "scope", "n": "3", "flag": "true"}
    assert one == contract.Reading("g", 2.5, "2026-09-21T14:13:20.5Z", "pump-7", tags)


@pytest.mark.parametrize(
    ("resource", "device", "left"),
    [
        ({"host_name": "h", "service_instance_id": "i"}, "h", {"service.instance.id": "i"}),
        ({"service_instance_id": "i"}, "i", {}),
        ({"service_name": "s"}, "edge-1", {"service.name": "s"}),
    ],
)
def test_the_device_is_the_host_or_the_instance_or_the_domain(
    resource: dict[str, str], device: str, left: dict[str, str]
) -> None:
    (one,) = rows(body_of(gauge(asInt="1"), resource=attributes(**resource)))
    assert (one.device, one.tags) == (device, {**SCOPE, **left})


def test_a_point_without_a_time_has_that_of_its_arrival() -> None:
    (one,) = rows(body_of(gauge(asInt="-5", timeUnixNano="0")))
    assert (one.ts, one.value) == ("2026-02-02T02:40:00.123456-00:00", -5)


def test_sums_say_when_they_are_not_cumulative() -> None:
    found = rows(
        body_of(
            *(
                {"name": "s", "sum": {"aggregationTemporality": kind, "dataPoints": [{"asInt": "7"}]}}
                for kind in (1, 2)
            )
        )
    )
    assert [one.tags.get("otel.temporality") for one in found] == ["delta", None]


def test_a_histogram_is_cumulative_buckets_a_sum_and_a_count() -> None:
    point = {"count": "6", "sum": 9.5, "bucketCounts": ["1", "2", "3"], "explicitBounds": [5, 7.5]}
    found = rows(body_of({"name": "h", "histogram": {"dataPoints": [point]}}))
    assert [(one.metric, one.tags.get("le"), one.value) for one in found] == [
        ("h_bucket", "5", 1),
        ("h_bucket", "7.5", 3),
        ("h_bucket", "+Inf", 6),
        ("h_sum", None, 9.5),
        ("h_count", None, 6),
    ]


def test_a_summary_is_quantiles_a_sum_and_a_count() -> None:
    point = {"count": "6", "sum": 9.5, "quantileValues": [{"quantile": 0.5, "value": 1}]}
    found = rows(body_of({"name": "s", "summary": {"dataPoints": [point]}}))
    assert [(one.metric, one.tags.get("quantile"), one.value) for one in found] == [
        ("s", "0.5", 1.0),
        ("s_sum", None, 9.5),
        ("s_count", None, 6),
    ]


def test_a_point_that_records_no_value_is_no_reading() -> None:
    assert rows(body_of(gauge(flags=1))) == []


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        (gauge(asDouble="NaN"), "not finite"),
        (gauge(asDouble="Infinity"), "not finite"),
        (gauge(), "without a value"),
        ({"name": "e", "exponentialHistogram": {"dataPoints": [{"count": "1"}]}}, "exponential histograms"),
        ({"name": "h", "histogram": {"dataPoints": [{"bucketCounts": ["1"], "explicitBounds": [1]}]}}, "fit"),
        ({"name": "h", "histogram": {"dataPoints": [{"bucketCounts": ["1"] * 1001}]}}, "do not fit"),
        (
            {"name": "h", "histogram": {"dataPoints": [{"count": "9223372036854775808"}]}},
            "does not fit into a signed whole number of 64 bits",
        ),
        (gauge(asInt="1", attributes=attributes(**{f"a{n}": "x" for n in range(70)})), "63 attributes"),
        (gauge(asInt="1", attributes=attributes(a="x" * 40_000)), "longer than"),
        ({**gauge(asInt="1"), "name": "x" * 300}, "the metric"),
        ({**gauge(asInt="1"), "name": "x\x1b[2J"}, "control character"),
    ],
)
def test_a_point_that_cannot_be_taken_is_rejected_and_its_neighbours_are_not(
    metric: dict[str, Any], reason: str
) -> None:
    one = export(body_of(gauge(asInt="1"), metric, gauge(asInt="2")))
    assert (one.count, one.rejected) == (2, 1)
    told = json.loads(one.response(is_json=True))["partialSuccess"]
    assert told["rejectedDataPoints"] == "1"
    assert reason in told["errorMessage"]
    packed = ExportMetricsServiceResponse.FromString(one.response(is_json=False))
    assert packed.partial_success.rejected_data_points == 1


def test_when_all_is_taken_the_answer_is_empty() -> None:
    one = export(body_of(gauge(asInt="1")))
    assert (one.response(is_json=False), json.loads(one.response(is_json=True))) == (b"", {})


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        b"[1]",
        b'{"resourceMetrics": 3}',
        b"[" * 100_000,
        b'{"a":' * 5_000 + b"1",
        b"\xff",
        b'{"resourceMetrics":[{"schemaUrl":"\\ud800"}]}',
    ],
)
def test_what_is_no_export_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="no ExportMetricsServiceRequest"):
        export(body)


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_whatever_is_sent_as_protobuf_is_refused_or_can_be_stored(body: bytes) -> None:
    try:
        one = export(body, is_json=False)
    except ValueError:
        return
    for line in one.payload.splitlines():
        contract.parse_reading(line)


def spelled(value: float) -> str:
    return str(value).replace("inf", "Infinity").replace("nan", "NaN")


@given(
    st.lists(st.floats() | st.integers(-(2**63), 2**63 - 1), max_size=4),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_every_finite_value_is_stored_and_every_other_counted(
    values: list[Any], tags: dict[str, str]
) -> None:
    named = [{"key": name, "value": {"stringValue": text}} for name, text in tags.items()]
    points = [{"asInt" if isinstance(value, int) else "asDouble": spelled(value)} for value in values]
    metrics = [gauge(**point, attributes=named) for point in points]
    try:
        one = export(body_of(*metrics))
    except ValueError:
        assert any("\ud800" <= c <= "\udfff" for text in [*tags, *tags.values()] for c in text)
        return
    stored = [contract.parse_reading(line).value for line in one.payload.split(b"\n")[:-1]]
    assert len(stored) + one.rejected == len(values)
    if one.rejected == sum(isinstance(value, float) and not math.isfinite(value) for value in values):
        assert stored == [value for value in values if isinstance(value, int) or math.isfinite(value)]


def kept(points: list[NumberDataPoint], sources: Sources) -> tuple[bytes, int]:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="g")
    metric.gauge.data_points.extend(points)
    one = Export(request.SerializeToString(), False, sources, NOW, 2**24)
    while one.step():
        pass
    return one.payload, one.rejected


def attribute(text: str) -> KeyValue:
    return KeyValue(key="a", value=AnyValue(string_value=text))


seen_points = st.builds(
    lambda value, **rest: NumberDataPoint(**value, **rest),
    st.just({})
    | st.builds(lambda value: {"as_double": value}, st.floats())
    | st.builds(lambda value: {"as_int": value}, st.integers(-(2**63), 2**63 - 1)),
    start_time_unix_nano=st.just(0) | st.integers(0, 2**64 - 1),
    time_unix_nano=st.just(0) | st.integers(0, 2**62) | st.integers(0, 2**64 - 1),
    attributes=st.lists(st.sampled_from(["", "x", "y" * 200]).map(attribute), max_size=2),
    exemplars=st.just([]) | st.just([Exemplar(as_int=1)]),
    flags=st.sampled_from([0, 0, 0, 1, 2]),
)


times = st.integers(1, 2**64 - 1) | st.integers(10**18, 2 * 10**18) | st.just(1_790_000_000_000_000_000)
points_of_one_form = st.one_of(
    [
        st.lists(
            st.builds(
                NumberDataPoint,
                **{kind: values},
                start_time_unix_nano=starts,
                time_unix_nano=times,
                attributes=st.sampled_from(["x", "y" * 200]).map(attribute).map(lambda one: [one]),
                flags=st.sampled_from([0, 0, 0, 0, 0, 0, 2]),
            ),
            min_size=1,
            max_size=30,
        )
        for kind, values in (
            ("as_double", st.floats(allow_nan=False, allow_infinity=False) | st.just(math.inf)),
            ("as_int", st.integers(-(2**63), 2**63 - 1)),
        )
        for starts in (st.just(0), times)
    ]
)


@given(st.lists(seen_points, max_size=8) | points_of_one_form)
@costly(300)
def test_points_are_taken_alike_whatever_was_seen_before(points: list[NumberDataPoint]) -> None:
    alone = [kept([point], Sources("edge-1")) for point in points]
    expected = b"".join(payload for payload, _ in alone), sum(rejected for _, rejected in alone)
    sources = Sources("edge-1")
    assert kept(points, sources) == expected
    assert kept(points, sources) == expected


def test_sources_are_told_apart_and_forgotten_when_they_are_too_many() -> None:
    sources = Sources("edge-1")
    for n in range(200):
        named = attributes(host_name=f"h{n}", text="x" * 30_000)
        body = body_of(gauge(asInt="1"), resource=named)
        for _ in range(2):
            one = Export(body, True, sources, NOW, 2**24)
            while one.step():
                pass
            assert contract.parse_reading(one.payload.strip()).device == f"h{n}"
    assert sources.count < 150


def test_attributes_do_not_make_a_small_export_a_large_one() -> None:
    metric = {"name": "g", "gauge": {"dataPoints": [{"asInt": "1"}] * 2000}}
    small = body_of(metric, resource=attributes(a="x" * 30_000))
    with pytest.raises(ExportTooLargeError):
        export(small)


@pytest.mark.parametrize("text", ["", "short", "x" * 127, "x" * 128, "ü" * 700])
def test_a_status_is_a_message_of_protobuf(text: str) -> None:
    data = status_message(text)
    size, place, shift = 0, 1, 0
    while True:
        size |= (data[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if data[place - 1] < 0x80:
            break
    assert data[0] == 2 << 3 | 2
    assert len(data) - place == size == min(len(text.encode()), 1000)


def test_an_agent_to_which_nobody_speaks_them_holds_no_parser_of_other_protocols() -> None:
    program = "import sys, agent.leaf.inputs.http.handler; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "agent.leaf.inputs.http.handler" in loaded.split()
    assert not {
        "google.protobuf",
        "agent.leaf.inputs.http.otlp.parse",
        "agent.leaf.inputs.formats.line_protocol",
    } & set(loaded.split())
