"""Readings a CPU-second of the agent: HTTP NDJSON, full validation, zstd, answered after the PubAck of a
server that syncs every message. Beside it, over the same server and in the same run: a program with plain
nats-py that validates the same lines by the same decoder and publishes each as a message of its own, awaited
and with `publish_async`. The alternative has no HTTP to serve, which is in its favour.

The same for Influx line protocol and for OTLP, and for NDJSON over a Unix socket and from a file that is
there whole, which are counted by what is stored; there is nothing fair to put beside them.

And what syncing costs: readings a second by the wall clock, on two servers alike but for that, in turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.agents import DOMAIN, Bench, leaf
from bench.load import body
from bench.loading import cpu_seconds, loading, stored
from bench.result import Against, Result, Row, measuring
from bench.synced import rates

LINES = 500
CONNECTIONS = 16
_WARM_SECONDS = 2.0
_SECONDS = 12.0
_ALTERNATIVE_SECONDS = 6.0
_FILE_READINGS = 3_000_000
_FILE_SECONDS = 120.0
_ROOM = "64GiB"
"""More than any machine stores here in the time: a stream that is full refuses, and ends the load."""
_STORE = "80GiB"
_UNIT = "readings/CPU-second"
_GOAL = 1_000_000.0
_FILE_GOAL = 800_000.0
_OTHERS_GOAL = 300_000.0
_SYNCED_GOAL = 0.9
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

[[input]]
type = "file"
path = "{directory}/readings.ndjson"
"""
_SOCKETS = 4


def run() -> Result:
    """Measure them all."""
    what = f"HTTP NDJSON, {LINES} readings a request, {CONNECTIONS} connections"
    with measuring("ingest") as result:
        with (
            tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory,
            leaf(Path(directory), _inputs(directory), max_bytes=_ROOM, max_file_store=_STORE) as bench,
        ):
            bench.start()
            result.rows += _over_http(bench, what)
            result.rows.append(
                Row(f"Unix socket NDJSON, {_SOCKETS} connections", _over_socket(bench), _UNIT, _GOAL)
            )
            result.rows.append(Row("NDJSON from a file", _from_file(bench), _UNIT, _FILE_GOAL))
            for other, form in _OTHERS.items():
                told = f"{other}, {LINES} readings a request"
                result.rows.append(Row(told, _agent(bench, form)[0], _UNIT, _OTHERS_GOAL))
        result.rows += _synced(what)
    return result


def _over_http(bench: Bench, what: str) -> list[Row]:
    """Beside both alternatives."""
    ours, wall = _agent(bench, "ndjson")
    awaited = Against("nats-py, one reading a message, awaited", _alternative(bench, "awaited"))
    windowed = Against("nats-py, one reading a message, publish_async", _alternative(bench, "async"))
    return [
        Row(what, ours, _UNIT, _GOAL, awaited),
        Row(what, ours, _UNIT, _GOAL, windowed),
        Row(f"{what}: wall clock, load and server on the same cores", wall, "readings/s"),
    ]


def _synced(what: str) -> list[Row]:
    """What syncing costs."""
    syncing, not_syncing = rates(CONNECTIONS, LINES)
    beside = Against("it syncs each two minutes", not_syncing)
    return [
        Row(f"{what}: wall clock, server syncs every message", syncing, "readings/s", None, beside),
        Row(
            "stored on a server that syncs, of one that does not",
            syncing / not_syncing,
            "of 1",
            _SYNCED_GOAL,
        ),
    ]


def _inputs(directory: str) -> str:
    # What stands in braces afterwards is for `leaf` to fill in.
    return _INPUTS.replace("{directory}", directory)


def _agent(bench: Bench, form: str) -> tuple[float, float]:
    """Readings a CPU-second of the agent, and readings a second."""
    with loading(bench.http_port, CONNECTIONS, LINES, form) as load:
        time.sleep(_WARM_SECONDS)
        began, before, first = time.monotonic(), cpu_seconds(bench.agent), load.answered()
        time.sleep(_SECONDS)
        wall, after, last = time.monotonic() - began, cpu_seconds(bench.agent), load.answered()
    readings = (last - first) * LINES
    return readings / (after - before), readings / wall


def _over_socket(bench: Bench) -> float:
    """Readings a CPU-second of the agent that came over its Unix socket and are stored."""
    arguments = [str(bench.directory / "lines.sock"), str(_SOCKETS), str(LINES)]
    command = [sys.executable, "-m", "bench.socket_load", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as load:
        time.sleep(_WARM_SECONDS)
        before, first = cpu_seconds(bench.agent), stored(bench.admin_port, "socket")
        time.sleep(_SECONDS)
        after, last = cpu_seconds(bench.agent), stored(bench.admin_port, "socket")
        assert load.stdin is not None
        load.stdin.close()
    return (last - first) / (after - before)


def _from_file(bench: Bench) -> float:
    """Readings a CPU-second of the agent from a file that appears whole, until all are stored."""
    written, path = bench.directory / "writing", bench.directory / "readings.ndjson"
    pieces = [body(LINES, seed) for seed in range(16)]
    with written.open("wb") as file:
        for number in range(_FILE_READINGS // LINES):
            file.write(pieces[number % len(pieces)])
    before, deadline = cpu_seconds(bench.agent), time.monotonic() + _FILE_SECONDS
    written.rename(path)
    while stored(bench.admin_port, "file") < _FILE_READINGS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the file is not stored after {_FILE_SECONDS:.0f} s")
        time.sleep(0.2)
    return _FILE_READINGS / (cpu_seconds(bench.agent) - before)


def _alternative(bench: Bench, mode: str) -> float:
    command = [sys.executable, "-m", "bench.plain_nats", bench.url, str(bench.seed_file), DOMAIN, mode]
    printed = subprocess.run(
        [*command, str(_ALTERNATIVE_SECONDS)], check=True, capture_output=True, text=True
    ).stdout
    measured = json.loads(printed)
    return float(measured["readings"] / measured["cpu_seconds"])
