"""Readings a CPU-second of the agent: HTTP NDJSON, full validation, zstd, answered after the PubAck of a
server that syncs every message. Beside it, over the same server and in the same run: a program with plain
nats-py that validates the same lines by the same decoder and publishes each as a message of its own, awaited
and with `publish_async`. The alternative has no HTTP to serve, which is in its favour.

Each format over HTTP, in turns with its yardstick (`bench.yardstick`): the same bodies decoded and compressed
in one thread, and nothing else. And NDJSON over a Unix socket and from a file that is there whole, which are
counted by what is stored; there is nothing fair to put beside them. Then the memory of the agent and of its
server at full load.

And what syncing costs: readings a second by the wall clock, on two servers alike but for that, in turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.agents import DOMAIN, Bench, leaf
from bench.link_processes import AgentProcess, Server
from bench.load import body, cpu_seconds, loading, stored
from bench.relink_world import link_world
from bench.result import Against, Result, Row, interleaved, measuring, rounds
from bench.yardstick import DECODED_BY, measured

LINES = 500
CONNECTIONS = 16
_WARM_SECONDS = 1.0
_SECONDS = 10.0
_ROUND_SECONDS = 3.0
_ALTERNATIVE_SECONDS = 3.0
_FILE_READINGS = 3_000_000
_FILE_SECONDS = 120.0
_ROOM = "64GiB"
"""More than any machine stores here in the time: a stream that is full refuses, and ends the load."""
_STORE = "80GiB"
_UNIT = "readings/CPU-second"
_SYNCED_GOAL = 0.9
_YARDSTICK_SECONDS = 1.5
_YARDSTICK_GOALS = {"ndjson": 0.75}
_FORMATS = {
    "HTTP NDJSON": "ndjson",
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
    what = f"HTTP NDJSON, {LINES} readings a request, {CONNECTIONS} connections"
    count = rounds()
    with measuring("ingest", {"rounds": str(count)}) as result:
        with (
            tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory,
            leaf(Path(directory), _inputs(directory), max_bytes=_ROOM, max_file_store=_STORE) as bench,
        ):
            bench.start()
            with result.part("beside nats-py"):
                result.rows += _over_http(bench, what, count)
            with result.part("Unix socket"):
                rate = _over_socket(bench)
                result.rows.append(Row(f"Unix socket NDJSON, {_SOCKETS} connections", rate, _UNIT))
            with result.part("file"):
                result.rows.append(Row("NDJSON from a file", _from_file(bench), _UNIT))
            _formats(bench, result)
            with result.part("memory"):
                result.rows += _memory(bench, count)
        with result.part("what syncing costs"):
            result.rows += _synced(what, count)
    return result


def _over_http(bench: Bench, what: str, count: int) -> list[Row]:
    """Beside both alternatives, in turns."""
    turns = [
        (
            *_agent(bench, "ndjson", _ROUND_SECONDS),
            _alternative(bench, "awaited"),
            _alternative(bench, "async"),
        )
        for _ in range(count)
    ]
    ours, wall, one_by_one, in_flight = zip(*turns, strict=True)
    awaited = Against("nats-py, one reading a message, awaited", one_by_one)
    windowed = Against("nats-py, one reading a message, publish_async", in_flight)
    return [
        Row(what, ours, _UNIT, None, awaited),
        Row(what, ours, _UNIT, None, windowed),
        Row(f"{what}: wall clock, load and server on the same cores", wall, "readings/s"),
    ]


def _formats(bench: Bench, result: Result) -> None:
    """Each format beside its yardstick."""
    for format_, form in _FORMATS.items():
        what = f"{format_}, {LINES} readings a request"
        decoded = f"{DECODED_BY[form]} and zstd on the same bodies in one thread, nothing else"
        sides = {
            what: lambda form=form: _agent(bench, form, _ROUND_SECONDS)[0],
            decoded: lambda form=form: measured(form, LINES, _YARDSTICK_SECONDS),
        }
        found = interleaved(result, sides)
        if len(found) == len(sides):
            beside = Against(decoded, found[decoded])
            result.rows.append(Row(what, found[what], _UNIT, _YARDSTICK_GOALS.get(form), beside))


def _memory(bench: Bench, count: int) -> list[Row]:
    """Of the agent and of its server at full load; pages that processes share count once."""
    sides: dict[str, list[float]] = {"the agent": [], "its nats-server": []}
    with loading(bench.http_port, CONNECTIONS, LINES, "ndjson"):
        for _ in range(count):
            time.sleep(_WARM_SECONDS)
            for found, process in zip(sides.values(), (bench.process, bench.server), strict=True):
                found.append(process.memory_full_info().pss / 1e6)
    return [
        Row(f"memory of {name} at full load, NDJSON", found, "MB", least=True)
        for name, found in sides.items()
    ]


def _synced(what: str, count: int) -> list[Row]:
    syncing, not_syncing = _synced_rates(CONNECTIONS, LINES, count)
    beside = Against("it syncs each two minutes", not_syncing)
    return [
        Row(f"{what}: wall clock, server syncs every message", syncing, "readings/s", _SYNCED_GOAL, beside),
    ]


def _inputs(directory: str) -> str:
    # What stands in braces afterwards is for `leaf` to fill in.
    return _INPUTS.replace("{directory}", directory)


def _agent(bench: Bench, form: str, seconds: float) -> tuple[float, float]:
    """Readings a CPU-second of the agent, and readings a second."""
    with loading(bench.http_port, CONNECTIONS, LINES, form) as load:
        time.sleep(_WARM_SECONDS)
        began, before, first = time.monotonic(), cpu_seconds(bench.process), load.answered()
        time.sleep(seconds)
        wall, after, last = time.monotonic() - began, cpu_seconds(bench.process), load.answered()
    readings = (last - first) * LINES
    return readings / (after - before), readings / wall


def _over_socket(bench: Bench) -> float:
    """Readings a CPU-second of the agent that came over its Unix socket and are stored."""
    arguments = [str(bench.directory / "lines.sock"), str(_SOCKETS), str(LINES)]
    command = [sys.executable, "-m", "bench.load", "socket", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as load:
        time.sleep(_WARM_SECONDS)
        before, first = cpu_seconds(bench.process), stored(bench.admin_port, "socket")
        time.sleep(_SECONDS)
        after, last = cpu_seconds(bench.process), stored(bench.admin_port, "socket")
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
    before, deadline = cpu_seconds(bench.process), time.monotonic() + _FILE_SECONDS
    written.rename(path)
    while stored(bench.admin_port, "file") < _FILE_READINGS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the file is not stored after {_FILE_SECONDS:.0f} s")
        time.sleep(0.2)
    return _FILE_READINGS / (cpu_seconds(bench.process) - before)


def _alternative(bench: Bench, mode: str) -> float:
    command = [
        sys.executable,
        "-m",
        "bench.yardstick",
        "nats-py",
        bench.url,
        str(bench.seed_file),
        DOMAIN,
        mode,
    ]
    printed = subprocess.run(
        [*command, str(_ALTERNATIVE_SECONDS)], check=True, capture_output=True, text=True
    ).stdout
    stored_by = json.loads(printed)
    return float(stored_by["readings"] / stored_by["cpu_seconds"])


_SYNCED: Final = "synced"
_NOT: Final = "not"
_ALWAYS: Final = 'sync_interval: "always"'


def _synced_rates(connections: int, readings: int, times: int) -> tuple[list[float], list[float]]:
    """Readings a second on a server that syncs every message, and on one that does so each two minutes, its
    own default; `times` times in turns. By the wall clock, for a disk costs waiting."""
    found: dict[str, list[float]] = {_SYNCED: [], _NOT: []}
    with (
        tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory,
        link_world(Path(directory), list(found), stream=_ROOM) as servers,
    ):
        _no_sync(servers.leaves[_NOT])
        for domain in found:
            servers.leaves[domain].start()
            servers.agents[domain].start()
        for _ in range(times):
            for domain, of in found.items():
                of.append(_rate(servers.agents[domain], connections, readings))
    return found[_SYNCED], found[_NOT]


def _no_sync(server: Server) -> None:
    path = server.directory / "nats-server.conf"
    text = path.read_text()
    assert text.count(_ALWAYS) == 1
    path.write_text(text.replace(_ALWAYS, ""))


def _rate(agent: AgentProcess, connections: int, readings: int) -> float:
    with loading(agent.http_port, connections, readings, "ndjson") as load:
        time.sleep(_WARM_SECONDS)
        began, first = time.monotonic(), load.answered()
        time.sleep(_ROUND_SECONDS)
        return (load.answered() - first) * readings / (time.monotonic() - began)
