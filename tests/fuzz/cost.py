"""`python -m tests.fuzz.cost --seconds 60`: what a request of at most 64 kB costs, over the parsers of lines,
messages, OTLP, remote write and expositions: bodies that are repeated, mixed and damaged, plain and packed.

Costs are multiples of a yardstick, the CPU time that good readings take in the same run, so that a busy or a
slow machine changes nothing. Judged are the longest piece, for which the event loop waits, the whole for each
byte and each reading or bad line, and the peak of memory. What costs more is named; exit code 1.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
import zstandard
from google.protobuf import json_format

from agent.leaf.inputs.formats import Parsed, make_parser, split_valid_parts
from agent.leaf.inputs.formats.line_cache import LineCache
from agent.leaf.inputs.formats.line_protocol import Parsing
from agent.leaf.inputs.formats.message import MessageError, TopicNames, message_lines
from agent.leaf.inputs.formats.ndjson import (
    BadLinesError,
    BodyTooLargeError,
    Decoded,
    decode_array_slices,
    decode_slices,
)
from agent.leaf.inputs.http.bodies import UnpackedTooLargeError, unpack_parts
from agent.leaf.inputs.http.limits import line_limits
from agent.leaf.inputs.http.otlp.export import ExportTooLargeError, OtlpExport
from agent.leaf.inputs.http.otlp.logs import LogsExport
from agent.leaf.inputs.http.otlp.parse import Export
from agent.leaf.inputs.http.otlp.source import Sources
from agent.leaf.inputs.http.remote_write.parse import SeriesCache, WriteRequest
from agent.leaf.inputs.mqtt.sparkplug import SparkplugDecoder
from agent.leaf.inputs.nats.input import lines_of
from agent.leaf.inputs.prometheus.exposition import Device, ExpositionError, SampleMapping
from agent.leaf.inputs.shared.samples import Names
from agent.leaf.inputs.shared.value_memory import ValueMemory
from agent.leaf.inputs.syslog.framing import MessageCutter, framed
from agent.leaf.inputs.syslog.parse import MessageParser
from tests.harness.remote_write import request_1, request_2
from tests.harness.sparkplug_node import metric, payload

CAME: Final = 64_000
LIMIT: Final = 16 * 2**20
YARD: Final = 0.0095
"""Seconds that `yardstick` takes on the machine on which the bounds below were chosen."""
PIECE: Final = 0.05
SECONDS: Final = 0.1
EACH: Final = 10e-6
EACH_BYTE: Final = 0.15e-6
"""Of what is taken apart: a list of empty parts has one for each two bytes."""
BYTES: Final = 16 * 10**6
EACH_BYTES: Final = 500
_NOW: Final = 1_790_000_000_000_000_000

LINES: Final = (
    b"\n",
    b"  \n",
    b"\r\n",
    b"#\n",
    b"x\n",
    b"1\n",
    b"{}\n",
    b"[]\n",
    b'"a"\n',
    b"m v=1\n",
    b'm v="x"\n',
    b'm v="\n',
    b"m\\,\n",
    b"m\\\n",
    b"m,t=\\\n",
    b"m,t=a,t=b v=1\n",
    b'{"metric":"m","value":1}\n',
    b'{"metric":"\\u0061","value":1}\n',
    b'{"ts":1,"device":"d","metric":"m","value":1}\n',
    b"<1>\n",
    b"3 <1>",
    b"<1>1 - - - - - [" + b'a b="\\""][' * 40 + b"\n",
    b"m,t=" + b"x" * 900 + b" " + b",".join(b"a%d=1" % number for number in range(100)) + b"\n",
)

Parser = Callable[[bytes, int], Iterator[int]]
"""Takes a body apart: how many readings or bad lines each piece made. `room` bounds the readings in bytes."""


def _slices(body: bytes, room: int) -> Iterator[int]:
    return _counts(decode_slices(body, "edge-1", _NOW, room))


def _array(body: bytes, _room: int) -> Iterator[int]:
    return _counts(decode_array_slices(body[: 2**20], "edge-1", _NOW))


def _counts(parts: Iterator[Decoded | Parsed]) -> Iterator[int]:
    kept = []
    for part in parts:
        kept.append(part.payload)
        yield part.count + (len(part.bad) if isinstance(part, Parsed) else 0)
    b"".join(kept)


def _written(body: bytes, room: int) -> Iterator[int]:
    parsing, before, more = Parsing(body, LineCache("edge-1", "host"), 1, _NOW, room), 0, True
    while more:
        more = parsing.step()
        made = parsing.count + parsing.left_out.total()
        yield made - before
        before = made
    assert isinstance(parsing.payload, bytes)


def _mqtt(body: bytes, _room: int) -> Iterator[int]:
    return _counts(
        split_valid_parts(b"\n".join(message_lines(body[:CAME], TopicNames("d", "m"))), "edge-1", _NOW)
    )


def _nats(body: bytes, _room: int) -> Iterator[int]:
    lines = []
    for line in lines_of(body[:CAME], TopicNames("d", "m")):
        lines.append(line)
        yield 1
    yield from _counts(split_valid_parts(b"".join(lines), "edge-1", _NOW))


def _lines(kind: str) -> Parser:
    def parse(body: bytes, _room: int) -> Iterator[int]:
        form = make_parser(
            "influx" if kind == "influx" else "ndjson", "edge-1", precision="ns", device_tag="host"
        )
        return _counts(form.parts(body[:CAME], _NOW))

    return parse


def _otlp(body: bytes, room: int, *, is_json: bool = False, make: type[OtlpExport] = Export) -> Iterator[int]:
    export, before, more = make(body[: 2**20], is_json, Sources("edge-1"), _NOW, room), 0, True
    while more:
        yield export.count + export.rejected - before
        before = export.count + export.rejected
        more = export.step()
    export.response(is_json)


def _otlp_json(body: bytes, room: int) -> Iterator[int]:
    return _otlp(body, room, is_json=True)


def _otlp_logs(body: bytes, room: int) -> Iterator[int]:
    return _otlp(body, room, make=LogsExport)


def _otlp_logs_json(body: bytes, room: int) -> Iterator[int]:
    return _otlp(body, room, is_json=True, make=LogsExport)


def _syslog(body: bytes, _room: int) -> Iterator[int]:
    cut = MessageCutter(CAME).feed(body[:CAME])
    yield len(cut.too_long)
    yield from _counts(MessageParser("m", "d").parts(framed(cut.messages), _NOW))


def _sparkplug(body: bytes, _room: int) -> Iterator[int]:
    decoder = SparkplugDecoder("edge-1")
    for kind in ("NBIRTH/n", "NDATA/n"):
        taken = decoder.take(f"spBv1.0/g/{kind}", body[:CAME], 0.0, _NOW)
        yield taken.count + sum(refusal.times for refusal in taken.refused)


def _remote(body: bytes, room: int) -> Iterator[int]:
    request, before, more = WriteRequest(body, SeriesCache("edge-1", None), room), 0, True
    while more:
        more = request.step()
        made = request.written + request.left_out.total()
        yield made - before
        before = made
    assert isinstance(request.payload, bytes)


def _exposed(body: bytes, _room: int) -> Iterator[int]:
    memory = ValueMemory(None, structlog.get_logger())
    reading = SampleMapping(Names((), ()), Device(None, "d"), {}, "edge-1", _NOW, memory)
    for part in reading.parts(body[: 2**20], "text/plain"):
        yield part.count + part.left_out.total()


PARSERS: Final[dict[str, Parser]] = {
    "ndjson": _slices,
    "array": _array,
    "write": _written,
    "mqtt": _mqtt,
    "nats": _nats,
    "socket ndjson": _lines("ndjson"),
    "socket influx": _lines("influx"),
    "syslog": _syslog,
    "otlp": _otlp,
    "otlp json": _otlp_json,
    "otlp logs": _otlp_logs,
    "otlp logs json": _otlp_logs_json,
    "remote write": _remote,
    "sparkplug": _sparkplug,
    "prometheus": _exposed,
}
IN_THREAD: Final = {"otlp json": 2e-6, "otlp logs json": 2e-6, "prometheus": EACH_BYTE}
"""Those for whose pieces the event loop does not wait, and seconds for each byte: the parser of JSON that
protobuf has takes about 1 µs."""
REFUSALS: Final = (
    BadLinesError,
    BodyTooLargeError,
    MessageError,
    UnpackedTooLargeError,
    ExportTooLargeError,
    ExpositionError,
    ValueError,
)


def yardstick() -> float:
    """CPU seconds of good readings that are decoded: what this machine is worth at the moment."""
    body = b'{"ts":1,"device":"d","metric":"m","value":1}\n' * 1_000
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        for _ in range(5):
            sum(part.count for part in decode_slices(body, "edge-1", _NOW))
            for line in body.splitlines():
                json.loads(line)
        best = min(best, time.process_time() - began)
    return best


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of all and of the longest piece, those that a byte may take, the peak of memory in bytes,
    the bytes that were taken apart, and the readings or bad lines that were made."""

    seconds: float
    piece: float
    each_byte: float
    peak: int
    size: int
    count: int

    def is_fair(self, yard: float) -> bool:
        """Whether that is within the bounds, on a machine whose yardstick takes so many seconds."""
        scale = max(1.0, yard / YARD)
        may = SECONDS + EACH * self.count + self.each_byte * self.size
        return (
            self.seconds <= may * scale
            and self.piece <= PIECE * scale
            and self.peak <= BYTES + EACH_BYTES * self.count + 32 * min(self.size, 2**20)
        )


def _json_list(before: str, element: str, after: str) -> Callable[[int], bytes]:
    def make(size: int) -> bytes:
        return (before + ",".join([element] * (size // (len(element) + 1))) + after).encode()

    return make


def _packed(one: dict[str, Any], name: str) -> Callable[[int], bytes]:
    """An export in protobuf with a part that is repeated."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    def make(size: int) -> bytes:
        request = ExportMetricsServiceRequest()
        json_format.ParseDict(one, request)
        scopes = request.resource_metrics[0].scope_metrics
        metrics = scopes[0].metrics
        parts: Any = {
            "attributes": request.resource_metrics[0].resource.attributes,
            "scopes": scopes,
            "metrics": metrics,
            "points": metrics[0].gauge.data_points,
        }[name]
        parts.extend([parts[0]] * (size // (parts[0].ByteSize() + 2)))
        return bytes(request.SerializeToString())

    return make


def _export(**point: Any) -> dict[str, Any]:
    metric = {"name": "m", "gauge": {"dataPoints": [point]}}
    attribute = {"key": "a", "value": {"stringValue": "b"}}
    resource = {"attributes": [attribute] * 60}
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [metric]}]}]}


def _logs(records: int, members: int) -> bytes:
    """An export of logs with a structured body."""
    request = LogsExport.request_type()
    made = request.resource_logs.add().scope_logs.add().log_records
    made.add().body.kvlist_value.values.add(key="a")
    made[0].body.kvlist_value.values.extend([made[0].body.kvlist_value.values[0]] * (members - 1))
    made.extend([made[0]] * (records - 1))
    return bytes(request.SerializeToString())


_SERIES: Final = ({"__name__": "m", "a": "b"}, [(1.0, 7)])


def _series(count: int, samples: int) -> bytes:
    """A request of remote write 1.0."""
    return bytes(request_1([(_SERIES[0], _SERIES[1] * samples)] * count).SerializeToString())


_POINTS: Final = '{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"m","gauge":{"dataPoints":['
SHAPES: Final[tuple[Callable[[int], bytes], ...]] = (
    _json_list("[", "1", "]"),
    _json_list("[", "{}", "]"),
    _json_list("[", '{"metric":"m","value":1}', "]"),
    _json_list('{"metric":"m","value":[', "{}", "]}"),
    _json_list('{"metric":"m","value":1,"tags":{', '"a":"b"', "}}"),
    _json_list('{"' + "x" * 30_000 + '":{', '"a":1', "}}"),
    _json_list("{", '"a":1', "}"),
    lambda size: b"[" * size,
    lambda size: b'{"a":' * (size // 5),
    _json_list('{"resourceMetrics":[', "{}", "]}"),
    _json_list('{"resourceMetrics":[{"resource":{"attributes":[', "{}", "]}}]}"),
    _json_list(_POINTS, '{"asInt":1}', "]}}]}]}]}"),
    _json_list('{"resourceLogs":[{"scopeLogs":[{"logRecords":[', "{}", "]}]}]}"),
    _packed(_export(asInt="1"), "points"),
    _packed(_export(), "points"),
    _packed(_export(asInt="1", timeUnixNano="7"), "metrics"),
    _packed(_export(asInt="1"), "scopes"),
    _packed(_export(asInt="1"), "attributes"),
    lambda size: b"\x0a\x00" * (size // 2),
    lambda size: _logs(size // 6, 1),
    lambda size: _logs(1, size // 6),
    lambda size: _series(1, size // 13),
    lambda size: _series(size // 20, 1),
    lambda size: request_2([_SERIES] * (size // 20)).SerializeToString(),
    lambda size: b"\x22\x01m\x2a\xe8\x07\x0a\xe5\x07" + b"\x00" * 997 + b"\x2a\x00" * (size // 2),
    lambda size: payload(0, *[metric("m", datatype=10, double_value=1.5)] * min(size // 16, 5_000)),
    lambda size: payload(0, *[metric("m")] * min(size // 5, 5_000)),
    lambda size: b"m 1\n" * (size // 4),
    lambda size: b"# TYPE m counter\n" * (size // 17),
    lambda size: b"m{" + b'a="b",' * (size // 6) + b"} 1\n",
    lambda size: b"<1>1 - - - - - [a" + b' b="c"' * (size // 6) + b"]\n",
    lambda size: b"<1>1 - - - - - " + b'[a b="\\""]' * (size // 10) + b"\n",
    lambda size: b'<1>1 - - - - - [a b="' + b"\\x" * (size // 2) + b"\n",
)
"""Bodies of about a size that are the worst of their kind: tiny elements, long names, many attributes."""


def made(seed: int) -> bytes:
    """What a sender could send, unpacked: a few lines or a shape, repeated and damaged."""
    draws = random.Random(seed)
    size = draws.choice((CAME, CAME, 2**20, 200 * CAME))
    if draws.random() < 0.4:
        body = bytearray(draws.choice(SHAPES)(min(size, 2**20) - 40_000))
    else:
        some = b"".join(draws.choices(LINES, k=draws.choice((1, 1, 2, 5))))
        body = bytearray((some * (size // len(some) + 1))[:size])
    for _ in range(draws.choice((0, 0, 1, 20))):
        body[draws.randrange(len(body))] = draws.choice(b' \n"\\{}=,#\xff\x00')
    return bytes(body)


def request(body: bytes, seed: int) -> tuple[bytes, str]:
    """The request that carries a body, and its encoding: packed where it would be too large."""
    if len(body) <= CAME:
        return body, ""
    if seed % 2:
        return gzip.compress(body), "gzip"
    return zstandard.ZstdCompressor(level=3).compress(body), "zstd"


def pieces(name: str, came: bytes, encoding: str, sizes: list[int]) -> Iterator[int]:
    """A request from its bytes to its readings, piece by piece; `sizes` are filled in."""
    parts = [came]
    if encoding:
        parts = []
        for part in unpack_parts(came, encoding, line_limits(LIMIT).of(len(came)).body):
            parts.append(part)
            sizes.append(len(part))
            yield 0
    else:
        sizes.append(len(came))
    yield from PARSERS[name](b"".join(parts), line_limits(LIMIT).of(len(came)).body)


def cost(name: str, came: bytes, encoding: str) -> Cost:
    """What a request costs."""
    count, longest = 0, 0.0
    sizes: list[int] = []
    began = last = time.process_time()
    with suppress(*REFUSALS):
        for made in pieces(name, came, encoding, sizes):
            count += made
            now = time.process_time()
            longest, last = max(longest, now - last), now
    now = time.process_time()
    seconds, longest = now - began, max(longest, now - last)
    tracemalloc.start()
    try:
        with suppress(*REFUSALS):
            for _ in pieces(name, came, encoding, []):
                pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    piece, each_byte = (0.0, IN_THREAD[name]) if name in IN_THREAD else (longest, EACH_BYTE)
    return Cost(seconds, piece, each_byte, peak, sum(sizes), count)


def unfair(seeds: Iterator[int], until: float) -> Iterator[str]:
    """The requests that cost too much, three times in a row."""
    for seed in seeds:
        came, encoding = request(made(seed), seed)
        for name in PARSERS if len(came) <= CAME else ():
            if time.monotonic() >= until:
                return
            for _ in range(3):
                found = cost(name, came, encoding)
                if found.is_fair(yard := yardstick()):
                    break
            else:
                yield (
                    f"{name}, seed {seed}, {len(came)} bytes {encoding} of {found.size}: "
                    f"{found.seconds * 1e3:.0f} ms, a piece of {found.piece * 1e3:.0f} ms, "
                    f"{found.peak / 1e6:.1f} MB for {found.count} lines; yardstick {yard * 1e3:.1f} ms"
                )


def main() -> int:
    """Look for the time given, and return the exit code."""
    parser = argparse.ArgumentParser(prog="cost")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    seeds = iter(range(given.first, given.first + 2**32))
    found = list(unfair(seeds, time.monotonic() + given.seconds))
    print("\n".join(found) or "cost: well", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
