"""Telegraf and a collector of OpenTelemetry send to a leaf whose agent is killed meanwhile: what they had
taken is in the leaf's stream, once as far as their protocol can say so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from agent.demo.loopback import free_port
from agent.testing.stored_stream import stored_readings
from tests.harness.agent_process import Agent, leaf_with
from tests.harness.wait import wait_for

TELEGRAF: Final = os.environ.get("TELEGRAF") or shutil.which("telegraf")
"""`python -m bench.telegraf sender` compiles one with what is used here."""
OTELCOL: Final = os.environ.get("OTELCOL") or shutil.which("otelcol")
"""`python -m bench.otelcol` compiles one."""
COUNT: Final = 6_000
_PIECE: Final = 20
_KILLS: Final = 3
_BATCH: Final = 100
_FIRST_NS: Final = 1_790_000_000_000_000_000


def posted(url: str, body: bytes, content_type: str) -> bool:
    """Whether a sender has taken a body."""
    request = urllib.request.Request(url, body, {"Content-Type": content_type})
    try:
        with urllib.request.urlopen(request, timeout=15) as answer:
            return int(answer.status) < 300
    except OSError:
        return False


@contextmanager
def running(command: list[str | Path], directory: Path) -> Iterator[None]:
    """Meanwhile a program runs, whose output is in a file `log`."""
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


TELEGRAF_TOML: Final = """\
[agent]
  omit_hostname = true
  flush_interval = "200ms"
  metric_batch_size = {batch}
  metric_buffer_limit = 100000
[[inputs.http_listener_v2]]
  service_address = "tcp://127.0.0.1:{port}"
  paths = ["/write"]
  data_format = "influx"
{output}
"""
OVER_GRPC: Final = '[[outputs.opentelemetry]]\n  service_address = "127.0.0.1:{port}"\n  timeout = "15s"\n'
OVER_HTTP: Final = (
    '[[outputs.http]]\n  url = "http://127.0.0.1:{port}/write"\n  data_format = "influx"\n  timeout = "15s"\n'
)
COLLECTOR_YAML: Final = """\
receivers:
  otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}
exporters:
  {exporter}:
    {target}
    timeout: 15s
    retry_on_failure: {{initial_interval: 100ms, max_interval: 500ms, max_elapsed_time: 0s}}
    sending_queue: {{queue_size: 100000}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    metrics: {{receivers: [otlp], exporters: [{exporter}]}}
    logs: {{receivers: [otlp], exporters: [{exporter}]}}
"""


@contextmanager
def telegraf(directory: Path, leaf: Agent, output: str) -> Iterator[Callable[[range], bool]]:
    """A Telegraf that takes numbers and sends them to the leaf."""
    assert TELEGRAF is not None
    port = free_port()
    output = output.format(port=leaf.member.http_port)
    (directory / "telegraf.conf").write_text(TELEGRAF_TOML.format(port=port, batch=_BATCH, output=output))

    def send(numbers: range) -> bool:
        lines = "".join(f"n gauge={number} {_FIRST_NS + number}\n" for number in numbers)
        return posted(f"http://127.0.0.1:{port}/write", lines.encode(), "text/plain")

    with running([TELEGRAF, "--config", directory / "telegraf.conf", "--quiet"], directory):
        yield send


@contextmanager
def collector(directory: Path, leaf: Agent, exporter: str, kind: str) -> Iterator[Callable[[range], bool]]:
    """A collector that takes numbers as points or log records and sends them to the leaf."""
    assert OTELCOL is not None
    port, where = free_port(), f"127.0.0.1:{leaf.member.http_port}"
    target = f'endpoint: "{where}"\n    tls: {{insecure: true}}'
    if exporter == "otlphttp":
        target = f"endpoint: http://{where}"
    config = COLLECTOR_YAML.format(port=port, exporter=exporter, target=target)
    (directory / "otelcol.yaml").write_text(config)

    def send(numbers: range) -> bool:
        times = [str(_FIRST_NS + number) for number in numbers]
        parts: list[dict[str, Any]]
        if kind == "metrics":
            parts = [{"asInt": str(n), "timeUnixNano": ns} for n, ns in zip(numbers, times, strict=True)]
            metric = {"name": "n", "gauge": {"dataPoints": parts}}
            body = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}
        else:
            texts = [{"stringValue": str(number)} for number in numbers]
            parts = [{"body": text, "timeUnixNano": ns} for text, ns in zip(texts, times, strict=True)]
            body = {"resourceLogs": [{"scopeLogs": [{"logRecords": parts}]}]}
        return posted(f"http://127.0.0.1:{port}/v1/{kind}", json.dumps(body).encode(), "application/json")

    with running([OTELCOL, "--config", directory / "otelcol.yaml"], directory):
        yield send


def stored(leaf: Agent) -> Counter[int]:
    """The numbers that the leaf's stream holds."""
    return Counter(int(row["value"]) for row in stored_readings(leaf.member))


def after_kills(leaf: Agent, name: str, send: Callable[[range], bool]) -> Counter[int]:
    """What is stored of all numbers that a sender takes while the agent is killed some times."""

    def feed() -> None:
        for first in range(0, COUNT, _PIECE):
            wait_for(lambda first=first: send(range(first, first + _PIECE)), "the sender takes it")  # type: ignore[misc]
            time.sleep(0.01)

    feeding = threading.Thread(target=feed, daemon=True)
    feeding.start()
    for _ in range(_KILLS):
        before = leaf.metric("petiole_stored_readings_total", input=name)
        wait_for(
            lambda before=before: leaf.metric("petiole_stored_readings_total", input=name) > before + 500,  # type: ignore[misc]
            "it sends",
        )
        leaf.end(signal.SIGKILL)
        leaf.start()
    feeding.join()
    wait_for(lambda: len(stored(leaf)) == COUNT, "all are stored")
    return stored(leaf)


@pytest.mark.skipif(
    TELEGRAF is None,
    reason="Telegraf is missing; compile it (python -m bench.telegraf sender), and name it in TELEGRAF",
)
@pytest.mark.parametrize(
    ("kind", "output"), [("otlp_grpc", OVER_GRPC), ("http", OVER_HTTP)], ids=["grpc", "http"]
)
@pytest.mark.timeout(400)
def test_telegraf_loses_nothing_by_kills_and_doubles_no_more_than_was_under_way(
    tmp_path: Path, kind: str, output: str
) -> None:
    with leaf_with(tmp_path, f'type = "{kind}"') as leaf, telegraf(tmp_path, leaf, output) as send:
        found = after_kills(leaf, kind, send)
    # A batch that it sends again may have grown meanwhile, and no key comes with it.
    assert found.total() - COUNT <= _KILLS * _BATCH


@pytest.mark.skipif(
    OTELCOL is None,
    reason="a collector is missing; compile it (python -m bench.otelcol), and name it in OTELCOL",
)
@pytest.mark.parametrize("records", ["metrics", "logs"])
@pytest.mark.parametrize(
    ("kind", "exporter"), [("otlp_grpc", "otlp"), ("http", "otlphttp")], ids=["grpc", "http"]
)
@pytest.mark.timeout(400)
def test_a_collector_loses_and_doubles_nothing_by_kills_of_the_agent(
    tmp_path: Path, kind: str, exporter: str, records: str
) -> None:
    options = "otlp = true" if kind == "http" else ""
    with (
        leaf_with(tmp_path, f'type = "{kind}"\n{options}') as leaf,
        collector(tmp_path, leaf, exporter, records) as send,
    ):
        found = after_kills(leaf, kind, send)
    assert set(found.values()) == {1}
