"""What the contract suite must know of each input: how it is configured, how readings are handed to it, and
what it must refuse. An input that is added joins by one entry in `INPUTS`."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import sys
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cramjam
import grpc
import nats
import nats.errors
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from agent.contract import inbox_prefix
from agent.demo.plan import Member
from agent.leaf.inputs.otlp_grpc.service import NAME as METRICS_SERVICE
from agent.server.permissions import DEVICE
from tests.harness.agent_process import Agent
from tests.harness.modbus_server import modbus_beside, modbus_port
from tests.harness.mqtt_broker import broker_beside, broker_port, publish
from tests.harness.opcua_server import server_beside, server_of
from tests.harness.remote_write import packed, request_1, request_2
from tests.harness.sparkplug_node import ADDED, node_beside, report, report_once, sparkplug_toml
from tests.harness.syslog import send_once, send_until_stored, syslog_toml
from tests.harness.wait import wait_for

REMOTE_HEADERS = {"Content_Type": "application/x-protobuf", "Content_Encoding": "snappy"}
_FIRST_MS = 1_790_000_000_000
LARGE = 300 * 1024
"""Bytes of a reading that is above every limit of the entries."""

Offer = Callable[[Agent, range], None]


class Entry(NamedTuple):
    """One input. `offer` hands readings with these numbers as values in and returns when the input answers
    for them, whatever dies meanwhile; None for one that makes its readings itself. `try_once` does so without
    insisting. `bad` are what it must not take, each with the reason under which it is counted. `beside` is
    what must run for it, too. `adds` are the metrics of readings that come besides what is offered."""

    name: str
    toml: Callable[[Member], str]
    offer: Offer | None = None
    try_once: Callable[[Agent, bytes], object] | None = None
    bad: tuple[tuple[bytes, str], ...] = ()
    beside: Callable[[Member], AbstractContextManager[object]] = nullcontext
    adds: frozenset[str] = frozenset()


def lines(numbers: Iterable[int], padding: str = "") -> bytes:
    """Numbered readings as NDJSON."""
    tags = {"padding": padding} if padding else {}
    return b"".join(
        json.dumps({"device": "d", "metric": "n", "value": one, "tags": tags}).encode() + b"\n"
        for one in numbers
    )


def post(agent: Agent, path: str, body: bytes, **headers: str) -> int | None:
    """The status that a body is answered with, None when nobody answers; headers with `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(agent.member.http_url + path, body, named)
    try:
        with urllib.request.urlopen(request, timeout=15) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code
    except OSError:
        return None


def _post_once(agent: Agent, body: bytes) -> None:
    post(agent, "/v1/readings", body, Content_Type="application/x-ndjson")


def _post_until_stored(agent: Agent, numbers: range) -> None:
    """A careful sender: the same body under the same key until it is acknowledged."""
    for first, body in _fives(numbers):
        wait_for(partial(_post_stored, agent, body, f"k{first}"), "the body is acknowledged")


def _post_stored(agent: Agent, body: bytes, key: str) -> bool:
    code = post(agent, "/v1/readings", body, Content_Type="application/x-ndjson", Idempotency_Key=key)
    return code in (202, 204)


def _written(body: bytes) -> bytes:
    """Numbered readings as a request of Prometheus; what is none of these, as it is."""
    try:
        found = [json.loads(line) for line in body.splitlines()]
    except ValueError:
        return bytes(cramjam.snappy.compress_raw(body))
    named = [
        {**({"__name__": row["metric"]} if "metric" in row else {}), **row.get("tags", {})} for row in found
    ]
    times = range(_FIRST_MS + int(found[0]["value"]), _FIRST_MS + int(found[0]["value"]) + len(found))
    samples = [(labels, [(row["value"], ms)]) for labels, row, ms in zip(named, found, times, strict=True)]
    return packed((request_1, request_2)[int(found[0]["value"]) % 2](samples))


def _write_remotely_once(agent: Agent, body: bytes) -> int | None:
    return post(agent, "/api/v1/write", _written(body), **REMOTE_HEADERS)


def _write_remotely_until_stored(agent: Agent, numbers: range) -> None:
    """A sender like Prometheus: the same body, without a key, until it is acknowledged."""
    for _, body in _fives(numbers):
        wait_for(lambda body=body: _write_remotely_once(agent, body) in (202, 204), "it is stored")  # type: ignore[misc]


def _gauge(values: Iterable[float], **attributes: str) -> MetricsData:
    """Points of the metric `n`, or of `noise` where it has attributes, as OpenTelemetry's SDK has them."""
    points = [
        NumberDataPoint(attributes, 1, _FIRST_MS * 10**6 + number, value)
        for number, value in enumerate(values)
    ]
    metric = Metric("noise" if attributes else "n", None, None, Gauge(points))
    scope = ScopeMetrics(InstrumentationScope("lib"), [metric], "")
    return MetricsData([ResourceMetrics(Resource({}), [scope], "")])


@contextmanager
def _exporter(agent: Agent) -> Iterator[Callable[[MetricsData], bool]]:
    """OpenTelemetry's own exporter: whether it has exported what it is given, within some seconds."""
    quick: Any = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200))
    url = f"http://{_grpc(agent.member)}"
    exporter = OTLPMetricExporter(url, insecure=True, timeout=5, channel_options=quick)
    try:
        yield lambda data: exporter.export(data) is MetricExportResult.SUCCESS
    finally:
        exporter.shutdown()


def _export_until_stored(agent: Agent, numbers: range) -> None:
    with _exporter(agent) as export:
        for first in range(numbers.start, numbers.stop, 5):
            data = _gauge(range(first, min(first + 5, numbers.stop)))
            wait_for(partial(export, data), "it is exported")


def _export_once(agent: Agent, body: bytes) -> None:
    if b"padding" not in body and body != b"nan":
        with grpc.insecure_channel(_grpc(agent.member)) as channel, suppress(grpc.RpcError):
            channel.unary_unary(f"/{METRICS_SERVICE}/Export")(body, timeout=15)
        return
    text = "" if body == b"nan" else json.loads(body)["tags"]["padding"]
    attributes = {f"a{at}": text[at : at + 8000] for at in range(0, len(text), 8000)}
    with _exporter(agent) as export:
        export(_gauge([1.0 if text else math.nan], **attributes))


def _grpc(member: Member) -> str:
    """Where gRPC is listened for."""
    return f"127.0.0.1:{member.http_port}"


def _append(agent: Agent, numbers: range) -> None:
    """Appends to a file that is rotated once in each round but the first, in which it may not be seen yet."""
    path = agent.member.lines
    for number in numbers:
        if number == numbers.start + 75 > 75:
            path.rename(path.with_name(f"{path.name}-{20_251_101 + numbers.start // 15}"))
        _append_once(agent, lines([number]))
        time.sleep(0.002)


def _append_once(agent: Agent, body: bytes) -> None:
    with agent.member.lines.open("ab") as file:
        file.write(body)


def _socket(agent: Agent) -> Path:
    return agent.member.directory / "lines.sock"


def _say(agent: Agent, group: bytes) -> bytes:
    """What a group of lines is answered, empty when nobody answers."""
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(15)
            one.connect(str(_socket(agent)))
            one.sendall(group)
            return one.makefile("rb").readline()
    except OSError:
        return b""


def _say_once(agent: Agent, body: bytes) -> None:
    _say(agent, body + b"#once-%d\n" % zlib.crc32(body))


def _say_until_stored(agent: Agent, numbers: range) -> None:
    """A careful sender: the same group under the same key until it is stored."""
    for first, body in _fives(numbers):
        group = body + b"#k%d\n" % first
        wait_for(partial(_say_stored, agent, group), "the group is stored")


def _say_stored(agent: Agent, group: bytes) -> bool:
    return _say(agent, group).startswith(b"ok")


def _ask(agent: Agent, payload: bytes, ident: str) -> dict[str, object]:
    """What a request to the agent on its own server is answered, empty when nobody answers."""

    async def ask() -> dict[str, object]:
        client = await nats.connect(
            agent.member.nats_url,
            nkeys_seed=str(agent.member.state / "keys" / "device.nk"),
            inbox_prefix=inbox_prefix(DEVICE).encode(),
            allow_reconnect=False,
        )
        try:
            answer = await client.request("plant.n", payload, timeout=5, headers={"Nats-Msg-Id": ident})
            found: dict[str, object] = json.loads(answer.data)
            return found
        finally:
            await client.close()

    try:
        return asyncio.run(ask())
    except (nats.errors.Error, OSError):
        return {}


def _ask_once(agent: Agent, body: bytes) -> None:
    _ask(agent, body, f"once-{zlib.crc32(body)}")


def _ask_until_stored(agent: Agent, numbers: range) -> None:
    """A careful program: the same request under the same id until it is stored."""
    for first, body in _fives(numbers):
        wait_for(partial(_ask_stored, agent, body, f"k{first}"), "the request is stored")


def _ask_stored(agent: Agent, body: bytes, ident: str) -> bool:
    return "stored" in _ask(agent, body, ident)


def _fives(numbers: range) -> Iterator[tuple[int, bytes]]:
    """Five lines at a time, each under its first number."""
    for first in range(numbers.start, numbers.stop, 5):
        yield first, lines(range(first, min(first + 5, numbers.stop)))


_PRINTS = [
    sys.executable,
    "-S",
    "-c",
    """import os; print('{"metric": "n", "value": 1, "tags": {"noise": "%s"}}' % os.urandom(3000).hex())""",
]


def _publish(agent: Agent, numbers: range) -> None:
    for number in numbers:
        publish(broker_port(agent.member), "plant/d/n", lines([number]))


def _publish_once(agent: Agent, body: bytes) -> None:
    publish(broker_port(agent.member), "plant/d/n", body)


def _mqtt_toml(member: Member) -> str:
    topics = '[{ filter = "plant/+/#", device = "{2}", metric = "{3+}" }]'
    return f'type = "mqtt"\nurl = "mqtt://127.0.0.1:{broker_port(member)}"\ntopics = {topics}\n'


def _opcua_toml(member: Member) -> str:
    nodes = '[{ path = "Line?/*", device = "d", metric = "{2}" }]'
    return (
        f'type = "opcua"\nurl = "{server_of(member).url}"\nnodes = {nodes}\npublish = "50ms"\nqueue = 1000\n'
    )


def _write(agent: Agent, numbers: range) -> None:
    server = server_of(agent.member)
    server.followed("Line1/n")
    for number in numbers:
        server.write("Line1/n", float(number))


def _write_once(agent: Agent, body: bytes) -> None:
    """A reading that does not fit as text, or what is no value: no data from a sensor, a wave."""
    server = server_of(agent.member)
    server.followed("Line1/wave")
    if body == b"wave":
        server.write("Line1/wave", [1.0, 2.0])
    elif body == b"broken":
        server.write("Line1/n", status="BadSensorFailure")
    else:
        server.write("Line1/noise", json.loads(body)["tags"]["padding"])
        # An agent that has stored nothing yet can't say where it was.
        wait_for(lambda: agent.metric("petiole_stored_readings_total", input="opcua") > 0, "one is stored")


_LARGE_LINE = lines([-1], "x" * LARGE)
_NO_READING = b'{"metric": "n"}\n'

INPUTS = {
    entry.name: entry
    for entry in (
        Entry(
            "http",
            lambda member: f'type = "http"\nlisten = "127.0.0.1:{member.http_port}"\nbody = "256KiB"\n',
            _post_until_stored,
            _post_once,
            ((_NO_READING, "bad_lines"), (b"\xff\x00{[\n", "bad_lines"), (_LARGE_LINE, "too_large")),
        ),
        Entry(
            "remote",
            lambda member: (
                f'type = "http"\nname = "remote"\nlisten = "127.0.0.1:{member.http_port}"\nbody = "256KiB"\n'
                "remote_write = true\n"
            ),
            _write_remotely_until_stored,
            _write_remotely_once,
            (
                (b'{"value": 1}', "rejected_samples"),
                (b"\xff\x00{[\n", "protobuf"),
                (_LARGE_LINE, "too_large"),
            ),
        ),
        Entry(
            "otlp_grpc",
            lambda member: (
                f'type = "otlp_grpc"\nlisten = "{_grpc(member)}"\nbody = "256KiB"\nbuffer = "16MiB"\n'
            ),
            _export_until_stored,
            _export_once,
            ((b"nan", "rejected_points"), (b"\xff\x00{[\n", "otlp"), (_LARGE_LINE, "too_large")),
        ),
        Entry(
            "file",
            lambda member: f'type = "file"\npath = {json.dumps(str(member.lines))}\npoll = "20ms"\n',
            _append,
            _append_once,
            ((_NO_READING, "bad_line"), (b"\xff\x00{[\n", "bad_line"), (_LARGE_LINE, "too_long")),
        ),
        Entry(
            "socket",
            lambda member: (
                f'type = "socket"\nlisten = "unix://{member.directory}/lines.sock"\nreply = true\n'
            ),
            _say_until_stored,
            _say_once,
            ((_NO_READING, "bad_lines"), (b"\xff\x00{[\n", "bad_lines"), (_LARGE_LINE, "too_long")),
        ),
        Entry(
            "syslog",
            syslog_toml,
            send_until_stored,
            send_once,
            ((_NO_READING, "bad_line"), (b"\xff\x00{[\n", "bad_line"), (_LARGE_LINE, "too_long")),
        ),
        Entry("exec", lambda _: f'type = "exec"\ninterval = "100ms"\ncommand = {json.dumps(_PRINTS)}\n'),
        Entry(
            "mqtt",
            _mqtt_toml,
            _publish,
            _publish_once,
            ((_NO_READING, "bad_message"), (b"\xff\x00{[\n", "bad_message"), (_LARGE_LINE, "bad_message")),
            broker_beside,
        ),
        Entry(
            "sparkplug",
            sparkplug_toml,
            report,
            report_once,
            ((b"\xff\x00{[\n", "bad_message"), (b"bytes", "unsupported_type")),
            node_beside,
            ADDED,
        ),
        Entry(
            "modbus",
            lambda member: (
                f'type = "modbus"\nurl = "tcp://127.0.0.1:{modbus_port(member)}"\ninterval = "100ms"\n'
                'registers = [{ metric = "r{address}", address = 0, count = 40 }]\n'
            ),
            beside=modbus_beside,
        ),
        Entry(
            "opcua",
            _opcua_toml,
            _write,
            _write_once,
            ((b"broken", "bad_value"), (b"wave", "bad_value")),
            server_beside,
        ),
        Entry(
            "prometheus",
            lambda member: (
                f'type = "prometheus"\nurls = ["{member.admin_url}/metrics"]\n'
                'interval = "300ms"\ntimeout = "300ms"\n'
            ),
        ),
        Entry(
            "nats",
            lambda _: 'type = "nats"\n[[input.subjects]]\nfilter = "plant.>"\n',
            _ask_until_stored,
            _ask_once,
            ((_NO_READING, "bad_message"), (b"\xff\x00{[\n", "bad_message"), (_LARGE_LINE, "bad_message")),
        ),
        Entry("host", lambda _: 'type = "host"\ninterval = "100ms"\n'),
    )
}
