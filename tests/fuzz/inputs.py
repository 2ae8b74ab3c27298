"""What devices and programs send to a leaf: nothing but readings is taken, each line is taken or named."""

from __future__ import annotations

import gzip
import json
import math
from typing import Final

import cramjam
import structlog
import zstandard
from google.protobuf.message import DecodeError

from agent import contract
from agent.leaf.inputs.formats import LineCutter, ReadLimits, cut_file, join_parsed, make_parser
from agent.leaf.inputs.formats.line_cache import LineCache
from agent.leaf.inputs.formats.line_protocol import Parsing
from agent.leaf.inputs.formats.message import MessageError, TopicNames, message_lines, reading_line
from agent.leaf.inputs.formats.ndjson import (
    BadLinesError,
    BodyTooLargeError,
    decode_array_slices,
    decode_ndjson,
    join_decoded,
)
from agent.leaf.inputs.http.bodies import unpack
from agent.leaf.inputs.http.otlp import logs, parse
from agent.leaf.inputs.http.otlp.export import ExportTooLargeError, OtlpExport
from agent.leaf.inputs.http.otlp.source import Sources
from agent.leaf.inputs.http.remote_write.parse import SeriesCache, WriteRequest
from agent.leaf.inputs.mqtt import TopicTemplate
from agent.leaf.inputs.mqtt.sparkplug import SparkplugDecoder
from agent.leaf.inputs.nats import SubjectTemplate
from agent.leaf.inputs.prometheus.exposition import Device, ExpositionError, SampleMapping
from agent.leaf.inputs.shared.samples import Names
from agent.leaf.inputs.shared.value_memory import ValueMemory
from tests.fuzz.target import only, target
from tests.harness.remote_write import STALE, Request, request_1, request_2
from tests.harness.remote_write import WriteRequest as WriteRequest1
from tests.harness.sparkplug_node import metric, payload

DOMAIN, NOW = "edge-1", 1_790_000_000_000_000_000
MOST = 2**20
ONE = b'{"ts":1,"device":"d","metric":"m","value":1.5,"tags":{"a":"b"}}\n'
LINES = (
    b'{"metric":"m","value":true}\r\n\n{"ts":"2026-11-21T06:00:00Z","metric":"m","value":"t"}\n{"value":1}'
)


def are_readings(payload: bytes, count: int) -> None:
    """What was taken is so many lines, each of which the reference takes for a whole reading."""
    lines = payload.splitlines(keepends=True) if b"\r" not in payload else payload.split(b"\n")
    assert len(lines) == count
    for line in lines:
        assert line.endswith(b"\n")
        reading = contract.parse_reading(line)
        assert reading.ts is not None
        assert reading.device is not None


@target(ONE, LINES, ONE * 3, b'{"metric":"\\u0001","value":1}', b'{"metric":"m","value":1e999}')
def ndjson(data: bytes) -> None:
    full = [line for line in data.split(b"\n") if line.strip(b" \t\r")]
    with only(BadLinesError):
        decoded = decode_ndjson(data, DOMAIN, NOW)
        assert decoded.count == len(full)
        are_readings(decoded.payload, decoded.count)


@target(b"[" + ONE[:-1] + b"," + ONE + b"]", ONE, b"[]", b"[1]")
def array(data: bytes) -> None:
    with only(BadLinesError):
        decoded = join_decoded(list(decode_array_slices(data, DOMAIN, NOW)))
        are_readings(decoded.payload, decoded.count)


@target(ONE, LINES, b"x\n" * 30, b"\0\0\0" + ONE, b"m v=1\nm v=2")
def file_lines(data: bytes) -> None:
    """Cut from a file read some bytes at a time, and parsed: each line is taken or named."""
    limits = ReadLimits(line=256, bytes=512, lines=4)
    place, skipping, whole = 0, False, b""
    while place < len(data):
        window = data[place : place + limits.line]
        found = cut_file(window, limits, skipping=skipping, last=place + len(window) == len(data))
        assert 0 <= found.start <= found.stop <= len(window)
        whole += window[found.start : found.stop]
        if found.stop == 0:
            break
        place, skipping = place + found.stop, found.skipping
    for kind in ("ndjson", "influx"):
        sift(whole, kind)


def sift(lines: bytes, kind: str) -> None:
    form = make_parser("ndjson" if kind == "ndjson" else "influx", DOMAIN, precision="ns", device_tag="host")
    found = join_parsed(list(form.parts(lines, NOW)))
    are_readings(found.payload, found.count)
    if kind == "ndjson":
        full = [line for line in lines.split(b"\n") if line.strip(b" \t\r")]
        assert found.count + len(found.bad) == len(full), "lines in are those taken and those named"
    assert len({offset for offset, _ in found.bad}) == len(found.bad)
    assert all(offset == 0 or lines[offset - 1 : offset] == b"\n" for offset, _ in found.bad)


@target(ONE + LINES, b"a\nbb\n\nccc", b"x" * 40 + b"\ny\n")
def socket_framing(data: bytes) -> None:
    """A stream cut into pieces anywhere has the same lines as in one."""
    longest, pieces = 32, LineCutter(32)
    found = b""
    for at in range(0, len(data), 7):
        found += pieces.feed(data[at : at + 7])
        assert pieces.kept < longest
    found += pieces.end()
    every = [line + b"\n" for line in data.split(b"\n")]
    every[-1:] = [] if every[-1] == b"\n" else every[-1:]
    assert found == b"".join(line for line in every if len(line) <= longest)
    assert pieces.too_long == sum(len(line) > longest for line in every)


@target(
    b'weather,host=a,b=c t=1.5,u=2i,v="x y",w=t 1790000000000000000\n',
    b'm\\ n,ta\\=g=v\\,w f=1u\nm f=-0 1\n# note\nm f="a\nb"',
    b"m f=1e400\n",
)
def line_protocol(data: bytes) -> None:
    with only(BodyTooLargeError):
        parsing = Parsing(data, LineCache(DOMAIN, "host"), 1, NOW, MOST)
        while parsing.step():
            pass
        are_readings(parsing.payload, parsing.count)
        assert all(1 <= number <= data.count(b"\n") + 1 for number, _ in parsing.bad)


BUCKETS = {"count": "3", "sum": 1, "bucketCounts": ["1", "2"], "explicitBounds": [1]}
METRICS = [
    {"name": "g", "gauge": {"dataPoints": [{"asDouble": 1.5, "timeUnixNano": "7"}]}},
    {"name": "h", "histogram": {"aggregationTemporality": 2, "dataPoints": [BUCKETS]}},
    {"name": "s", "sum": {"dataPoints": [{"asInt": "4"}], "isMonotonic": True}},
]
RESOURCE = {"attributes": [{"key": "host.name", "value": {"stringValue": "a"}}]}
OTLP_JSON = json.dumps(
    {"resourceMetrics": [{"resource": RESOURCE, "scopeMetrics": [{"metrics": METRICS}]}]}
).encode()


def export(data: bytes, is_json: bool, make: type[OtlpExport] = parse.Export) -> None:
    with only(ValueError, ExportTooLargeError):
        found = make(data, is_json, Sources(DOMAIN), NOW, MOST)
        while found.step():
            pass
        are_readings(found.payload, found.count)
        found.response(is_json)


@target(OTLP_JSON, b"{}")
def otlp_json(data: bytes) -> None:
    export(data, True)


def _packed(text: bytes, kind: type[OtlpExport]) -> bytes:
    from google.protobuf import json_format

    return bytes(json_format.Parse(text, kind.request_type()).SerializeToString())


@target(_packed(OTLP_JSON, parse.Export), b"")
def otlp_protobuf(data: bytes) -> None:
    export(data, False)


RECORDS = [
    {"timeUnixNano": "7", "severityNumber": 9, "body": {"stringValue": "up"}, "traceId": "0af7651916cd43dd"},
    {"body": {"kvlistValue": {"values": [{"key": "a", "value": {"intValue": "1"}}]}}, "eventName": "e"},
    {"severityText": "x", "attributes": [{"key": "severity", "value": {"boolValue": True}}]},
]
OTLP_LOGS: Final = json.dumps(
    {"resourceLogs": [{"resource": RESOURCE, "scopeLogs": [{"logRecords": RECORDS}]}]}
).encode()


@target(OTLP_LOGS, b"{}")
def otlp_logs_json(data: bytes) -> None:
    export(data, True, logs.LogsExport)


@target(_packed(OTLP_LOGS, logs.LogsExport), b"")
def otlp_logs_protobuf(data: bytes) -> None:
    export(data, False, logs.LogsExport)


_SERIES: Final = [({"__name__": "m", "a": "b"}, [(1.5, 7), (STALE, 8)]), ({"c": "d"}, [(math.nan, 9)])]


@target(
    request_1(_SERIES).SerializeToString(),
    request_2(_SERIES).SerializeToString(),
    b"\x22\x01m\x2a\x04\x08\x00\x08\x80",
)
def remote_write(data: bytes) -> None:
    """What protobuf's own runtime reads of a request that is taken, is taken or named, sample for sample."""
    with only(ValueError, BodyTooLargeError):
        found = WriteRequest(data, SeriesCache(DOMAIN, "{a}"), MOST)
        while found.step():
            pass
        are_readings(found.payload, found.count)
        try:
            read = (Request if found.is_2 else WriteRequest1).FromString(data)
        except DecodeError:
            return  # text that is not UTF-8, of which a sample is named or which is passed over
        samples = [sample for series in read.timeseries for sample in series.samples]
        parts = sum(len(series.histograms) + len(series.exemplars) for series in read.timeseries)
        assert found.written + found.left_out.total() == len(samples) + parts


@target(
    b'# TYPE a counter\na_total{x="y",z="\\n"} 1 17\na_total 2\n# HELP b c\nb{le="+Inf"} NaN\n# EOF\n',
    b"a 1\n",
)
def exposition(data: bytes) -> None:
    memory = ValueMemory(None, structlog.get_logger())
    reading = SampleMapping(Names((), ()), Device("{x}", "fallback"), {"job": "j"}, DOMAIN, NOW, memory)
    for kind in ("text/plain", "application/openmetrics-text; version=1.0.0"):
        with only(ExpositionError):
            for part in reading.parts(data, kind):
                are_readings(part.payload, part.count)


@target(b"1.5", b'"text"', b"true", ONE, b'{"a":{"b":1,"c":null},"ts":3}', b'{"value":1}')
def message(data: bytes) -> None:
    for place in (TopicNames(), TopicNames("d", "m"), TopicNames("d\0", None)):
        with only(MessageError):
            lines = message_lines(data, place)
            assert lines
            assert not any(b"\n" in line or b"\r" in line for line in lines)
            with only(BadLinesError):
                decoded = decode_ndjson(b"\n".join(lines), DOMAIN, NOW)
                assert decoded.count == len(lines)
        with only(MessageError):
            assert b"\n" not in reading_line(data, place, fixed=True)


@target(b"plant/+/#\0plant/1/temp", b"$share/g/a/#\0a", b"{0}\0//")
def mqtt_topic(data: bytes) -> None:
    wanted, _, topic = data.decode(errors="replace").partition("\0")
    for template in ("{1}", "{2+}", wanted):
        one = TopicTemplate(filter=wanted, device=template)
        if not list(one.problems()) and one.matches(topic):
            one.place(topic)


BIRTH = payload(0, metric("bdSeq", datatype=8, long_value=1), metric("m", alias=1, datatype=1, int_value=255))


@target(
    BIRTH, payload(1, metric(alias=1, int_value=7, is_historical=True)), payload(2, metric("x", is_null=True))
)
def sparkplug(data: bytes) -> None:
    """Whatever a node says, each metric is a reading or named, and the node is understood again once born."""
    decoder = SparkplugDecoder(DOMAIN)
    decoder.take("spBv1.0/g/NBIRTH/n", BIRTH, 0.0, NOW)
    for number, kind in enumerate(("DBIRTH/n/d", "DDATA/n/d", "NDATA/n", "NDEATH/n", "NBIRTH/n", "NDATA/n")):
        taken = decoder.take(f"spBv1.0/g/{kind}", data, float(number), NOW)
        are_readings(taken.payload, taken.count)
        assert all(refusal.letter.encode() for refusal in taken.refused)
        assert len(taken.commands) <= 1
    assert decoder.take("spBv1.0/g/NBIRTH/n", BIRTH, 9.0, NOW).refused == []
    taken = decoder.take("spBv1.0/g/NDATA/n", payload(1, metric(alias=1, int_value=2**32 - 2)), 9.0, NOW)
    assert b'"metric":"m","value":-2' in taken.payload


@target(b"plant.*.>\0plant.1.temp", b"a.b\0a.b", b"{2+}\0a..b")
def nats_subject(data: bytes) -> None:
    wanted, _, subject = data.decode(errors="replace").partition("\0")
    for template in ("{1}", "{2+}", wanted):
        one = SubjectTemplate(filter=wanted, device=template)
        if not list(one.problems()):
            one.place(subject)


@target(
    gzip.compress(ONE * 50, mtime=0),
    zstandard.compress(ONE * 50),
    zstandard.compress(bytes(10**6)),
    bytes(cramjam.snappy.compress_raw(ONE * 50)),
)
def packed_body(data: bytes) -> None:
    for encoding in ("gzip", "zstd", "snappy"):
        with only(ValueError):
            assert len(unpack(data, encoding, 10_000)) <= 10_000
