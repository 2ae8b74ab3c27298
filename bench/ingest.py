"""Readings a CPU-second of the agent: HTTP NDJSON, full validation, zstd, answered after the PubAck of a
server that syncs every message. Beside it, over the same server and in the same run: a program with plain
nats-py that validates the same lines by the same decoder and publishes each as a message of its own, awaited
and with `publish_async`. The alternative has no HTTP to serve, which is in its favour.

The same for Influx line protocol and for OTLP, and for NDJSON over a Unix socket, which is counted by what is
stored; there is nothing fair to put beside it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from bench.agents import DOMAIN, Bench, leaf
from bench.result import Against, Result, Row

LINES = 500
CONNECTIONS = 16
_WARM_SECONDS = 2.0
_SECONDS = 12.0
_ALTERNATIVE_SECONDS = 6.0
_GOAL = 1_000_000.0
_OTHERS_GOAL = 300_000.0
_OTHERS = {
    "HTTP line protocol, a field a line": "lines-1",
    "HTTP line protocol, ten fields a line": "lines-10",
    "OTLP gauges with two attributes, protobuf": "otlp",
}

_INPUTS = """
[[input]]
type = "http"
listen = "127.0.0.1:{http_port}"
otlp = true

[[input]]
type = "socket"
listen = "unix://{directory}/lines.sock"
"""
_SOCKETS = 4


def run() -> Result:
    """Measure them all."""
    with (
        tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory,
        leaf(Path(directory), _inputs(directory), max_bytes="3GiB") as bench,
    ):
        bench.start()
        ours, wall = _agent(bench, "ndjson")
        others = {what: _agent(bench, form)[0] for what, form in _OTHERS.items()}
        over_socket = _over_socket(bench)
        awaited = _alternative(bench, "awaited")
        windowed = _alternative(bench, "async")
    what = f"HTTP NDJSON, {LINES} readings a request, {CONNECTIONS} connections"
    unit = "readings/CPU-second"
    return Result(
        "ingest",
        [
            Row(what, ours, unit, _GOAL, Against("nats-py, one reading a message, awaited", awaited)),
            Row(what, ours, unit, _GOAL, Against("nats-py, one reading a message, publish_async", windowed)),
            Row(f"{what}: wall clock, load and server on the same cores", wall, "readings/s"),
            Row(f"Unix socket NDJSON, {_SOCKETS} connections", over_socket, unit, _GOAL),
            *(
                Row(f"{other}, {LINES} readings a request", value, unit, _OTHERS_GOAL)
                for other, value in others.items()
            ),
        ],
    )


def _inputs(directory: str) -> str:
    # What stands in braces afterwards is for `leaf` to fill in.
    return _INPUTS.replace("{directory}", directory)


def _over_socket(bench: Bench) -> float:
    """Readings a CPU-second of the agent that came over its Unix socket and are stored."""
    arguments = [str(bench.directory / "lines.sock"), str(_SOCKETS), str(LINES)]
    command = [sys.executable, "-m", "bench.socket_load", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as load:
        time.sleep(_WARM_SECONDS)
        before, first = bench.agent.cpu_times(), _stored(bench, "socket")
        time.sleep(_SECONDS)
        after, last = bench.agent.cpu_times(), _stored(bench, "socket")
        assert load.stdin is not None
        load.stdin.close()
    return (last - first) / (after.user + after.system - before.user - before.system)


def _stored(bench: Bench, name: str) -> float:
    """How many readings of an input are stored until now."""
    with urllib.request.urlopen(f"http://127.0.0.1:{bench.admin_port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    wanted = f'petiole_stored_readings_total{{class="normal",input="{name}"}} '
    return sum(float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted))


def _agent(bench: Bench, form: str) -> tuple[float, float]:
    """Readings a CPU-second of the agent (user and system, all threads), and readings a second. The load is a
    process of its own."""
    command = [sys.executable, "-m", "bench.load", str(bench.http_port), str(CONNECTIONS), str(LINES), form]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as load:
        assert load.stdin is not None
        assert load.stdout is not None
        time.sleep(_WARM_SECONDS)
        began, before, first = time.monotonic(), bench.agent.cpu_times(), _asked(load)
        time.sleep(_SECONDS)
        wall, after, last = time.monotonic() - began, bench.agent.cpu_times(), _asked(load)
        load.stdin.close()
    readings = (last - first) * LINES
    return readings / (after.user + after.system - before.user - before.system), readings / wall


def _asked(load: subprocess.Popen[str]) -> int:
    """How many requests the load has seen answered 204 until now."""
    assert load.stdin is not None
    assert load.stdout is not None
    load.stdin.write("\n")
    load.stdin.flush()
    return int(load.stdout.readline())


def _alternative(bench: Bench, mode: str) -> float:
    command = [sys.executable, "-m", "bench.plain_nats", bench.url, str(bench.seed_file), DOMAIN, mode]
    printed = subprocess.run(
        [*command, str(_ALTERNATIVE_SECONDS)], check=True, capture_output=True, text=True
    ).stdout
    measured = json.loads(printed)
    return float(measured["readings"] / measured["cpu_seconds"])
