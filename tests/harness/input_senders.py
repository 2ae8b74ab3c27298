"""How tests hand readings to the built-in inputs: senders that repeat what is not acknowledged, and such that
do not insist."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

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
from agent.testing.agent_process import AgentProcess, wait_for
from tests.harness.mqtt_broker import broker_port, publish
from tests.harness.plant_servers import opcua_server
from tests.harness.remote_write import packed, request_1, request_2

REMOTE_HEADERS = {"Content_Type": "application/x-protobuf", "Content_Encoding": "snappy"}
_FIRST_MS = 1_790_000_000_000
_Found = TypeVar("_Found")


def lines(numbers: Iterable[int], padding: str = "") -> bytes:
    """Numbered readings as NDJSON."""
    tags = {"padding": padding} if padding else {}
    return b"".join(
        json.dumps({"device": "d", "metric": "n", "value": one, "tags": tags}).encode() + b"\n"
        for one in numbers
    )


def post(agent: AgentProcess, path: str, body: bytes, **headers: str) -> int | None:
    """The status that a body is answered with, None without an answer; headers with `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(agent.member.http_url + path, body, named)
    try:
        with urllib.request.urlopen(request, timeout=15) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code
    except OSError:
        return None


def post_once(agent: AgentProcess, body: bytes) -> None:
    post(agent, "/v1/readings", body, Content_Type="application/x-ndjson")


def post_until_stored(agent: AgentProcess, numbers: range) -> None:
    """A careful sender: the same body under the same key until it is acknowledged."""
    for first, body in _fives(numbers):
        wait_for(partial(_post_stored, agent, body, f"k{first}"), "the body is acknowledged")


def _post_stored(agent: AgentProcess, body: bytes, key: str) -> bool:
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


def write_remotely_once(agent: AgentProcess, body: bytes) -> int | None:
    return post(agent, "/api/v1/write", _written(body), **REMOTE_HEADERS)


def write_remotely_until_stored(agent: AgentProcess, numbers: range) -> None:
    """A sender like Prometheus: the same body, without a key, until it is acknowledged."""
    for _, body in _fives(numbers):
        wait_for(lambda body=body: write_remotely_once(agent, body) in (202, 204), "it is stored")  # type: ignore[misc]


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
def _exporter(agent: AgentProcess) -> Iterator[Callable[[MetricsData], bool]]:
    """OpenTelemetry's own exporter: whether it has exported what it is given, within some seconds."""
    quick: Any = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200))
    url = f"http://{grpc_address(agent.member)}"
    exporter = OTLPMetricExporter(url, insecure=True, timeout=5, channel_options=quick)
    try:
        yield lambda data: exporter.export(data) is MetricExportResult.SUCCESS
    finally:
        exporter.shutdown()


def export_until_stored(agent: AgentProcess, numbers: range) -> None:
    with _exporter(agent) as export:
        for first in range(numbers.start, numbers.stop, 5):
            data = _gauge(range(first, min(first + 5, numbers.stop)))
            wait_for(partial(export, data), "it is exported")


def export_once(agent: AgentProcess, body: bytes) -> None:
    if b"padding" not in body and body != b"nan":
        with grpc.insecure_channel(grpc_address(agent.member)) as channel, suppress(grpc.RpcError):
            channel.unary_unary(f"/{METRICS_SERVICE}/Export")(body, timeout=15)
        return
    text = "" if body == b"nan" else json.loads(body)["tags"]["padding"]
    attributes = {f"a{at}": text[at : at + 8000] for at in range(0, len(text), 8000)}
    with _exporter(agent) as export:
        export(_gauge([1.0 if text else math.nan], **attributes))


def grpc_address(member: Member) -> str:
    """Where gRPC is listened for."""
    return f"127.0.0.1:{member.http_port}"


def append(agent: AgentProcess, numbers: range) -> None:
    """Appends to a file that is rotated once in each round but the first, in which it may not be seen yet."""
    path = agent.member.lines
    for number in numbers:
        if number == numbers.start + 75 > 75:
            path.rename(path.with_name(f"{path.name}-{20_251_101 + numbers.start // 15}"))
        append_once(agent, lines([number]))
        time.sleep(0.002)


def append_once(agent: AgentProcess, body: bytes) -> None:
    with agent.member.lines.open("ab") as file:
        file.write(body)


def _socket(agent: AgentProcess) -> Path:
    return agent.member.directory / "lines.sock"


def _say(agent: AgentProcess, group: bytes) -> bytes:
    """What a group of lines is answered, empty without an answer."""
    return _connected(agent, group, lambda one: one.makefile("rb").readline()) or b""


def _connected(agent: AgentProcess, lines: bytes, then: Callable[[socket.socket], _Found]) -> _Found | None:
    """Send lines over a connection of their own; None where that fails."""
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(15)
            one.connect(str(_socket(agent)))
            one.sendall(lines)
            return then(one)
    except OSError:
        return None


def say_once(agent: AgentProcess, body: bytes) -> None:
    _say(agent, body + b"#once-%d\n" % zlib.crc32(body))


def say_until_stored(agent: AgentProcess, numbers: range) -> None:
    """A careful sender: the same group under the same key until it is stored."""
    for first, body in _fives(numbers):
        group = body + b"#k%d\n" % first
        wait_for(partial(_say_stored, agent, group), "the group is stored")


def _say_stored(agent: AgentProcess, group: bytes) -> bool:
    return _say(agent, group).startswith(b"ok")


def flow(agent: AgentProcess, numbers: range) -> None:
    """A sender that is not answered: each five lines once, over a connection of their own."""
    for _, body in _fives(numbers):
        wait_for(partial(_flown, agent, body), "the lines are sent")


def flow_once(agent: AgentProcess, body: bytes) -> None:
    """The same with anything."""
    _flown(agent, body)


def _flown(agent: AgentProcess, body: bytes) -> bool:
    return _connected(agent, body, lambda one: True) is not None


def _ask(agent: AgentProcess, payload: bytes, ident: str) -> dict[str, object]:
    """What a request to the agent on its own server is answered, empty without an answer."""

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


def ask_once(agent: AgentProcess, body: bytes) -> None:
    _ask(agent, body, f"once-{zlib.crc32(body)}")


def ask_until_stored(agent: AgentProcess, numbers: range) -> None:
    """A careful program: the same request under the same id until it is stored."""
    for first, body in _fives(numbers):
        wait_for(partial(_ask_stored, agent, body, f"k{first}"), "the request is stored")


def _ask_stored(agent: AgentProcess, body: bytes, ident: str) -> bool:
    return "stored" in _ask(agent, body, ident)


def _fives(numbers: range) -> Iterator[tuple[int, bytes]]:
    """Five lines at a time, each under its first number."""
    for first in range(numbers.start, numbers.stop, 5):
        yield first, lines(range(first, min(first + 5, numbers.stop)))


def publish_numbers(agent: AgentProcess, numbers: range) -> None:
    for number in numbers:
        publish(broker_port(agent.member), "plant/d/n", lines([number]))


def publish_once(agent: AgentProcess, body: bytes) -> None:
    publish(broker_port(agent.member), "plant/d/n", body)


def write_nodes(agent: AgentProcess, numbers: range) -> None:
    server = opcua_server(agent.member)
    server.followed("Line1/n")
    for number in numbers:
        server.write("Line1/n", float(number))


def write_node_once(agent: AgentProcess, body: bytes) -> None:
    """A reading that does not fit as text, or what is no value: no data from a sensor, an array of texts."""
    server = opcua_server(agent.member)
    server.followed("Line1/wave")
    if body == b"wave":
        server.write("Line1/wave", ["a", "b"])
    elif body == b"broken":
        server.write("Line1/n", status="BadSensorFailure")
    else:
        server.write("Line1/noise", json.loads(body)["tags"]["padding"])
        # An agent that has stored nothing yet can't say where it was.
        wait_for(lambda: agent.metric("petiole_stored_readings_total", input="opcua") > 0, "one is stored")
