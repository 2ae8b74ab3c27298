"""The loads of the benchmarks. `loading` sends prepared requests over plain sockets, a thread a connection;
`http_load` builds and drives bench/http_load.c, which costs a few microseconds a request, so that what is
measured has the machine's cores to itself.

`python -m bench.load PORT CONNECTIONS READINGS FORM`, FORM one of `FORMS`: answers each line on its standard
input with the number of requests that were answered 204 or 200 so far; ends with its input. Any other answer
ends it with an error. `python -m bench.load socket PATH CONNECTIONS READINGS` writes lines to a Unix
socket as fast as it takes them.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

_SITES = ("north", "south", "east", "west")


def body(lines: int, seed: int) -> bytes:
    """NDJSON of about 120 bytes a line, with values, devices and times that differ."""
    chance = random.Random(seed)
    return "".join(
        f'{{"ts":{1_790_000_000 + seed * 60 + line * 0.1:.3f},"device":"pump-{chance.randrange(100):02d}",'
        f'"metric":"pressure","value":{chance.gauss(20, 3):.3f},'
        f'"tags":{{"site":"{chance.choice(_SITES)}","line":"a{chance.randrange(9)}"}}}}\n'
        for line in range(lines)
    ).encode()


def lines_of_one(readings: int, seed: int) -> bytes:
    """The same readings in line protocol, a field a line."""
    chance = random.Random(seed)
    return "".join(
        f"pump,host=pump-{chance.randrange(100):02d},site={chance.choice(_SITES)},"
        f"line=a{chance.randrange(9)} pressure={chance.gauss(20, 3):.3f} "
        f"{1_790_000_000_000 + seed * 60_000 + line * 100}000000\n"
        for line in range(readings)
    ).encode()


def lines_of_ten(readings: int, seed: int) -> bytes:
    """Readings as Telegraf sends those of a processor: ten fields a line, the times of a sample alike."""
    chance = random.Random(seed)
    modes = ("user", "system", "idle", "nice", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
    return "".join(
        f"cpu,cpu=cpu{line % 8},host=edge-{seed % 20} "
        + ",".join(f"usage_{mode}={chance.random() * 100}" for mode in modes)
        + f" {1_790_000_000 + seed * 60 + line // 8 * 10}000000000\n"
        for line in range(readings // len(modes))
    ).encode()


def points(readings: int, seed: int) -> bytes:
    """The same readings as gauges of OTLP, in protobuf."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    chance = random.Random(seed)
    export = ExportMetricsServiceRequest()
    of_resource = export.resource_metrics.add()
    host = of_resource.resource.attributes.add(key="host.name")
    host.value.string_value = f"pump-{seed % 100:02d}"
    metric = of_resource.scope_metrics.add().metrics.add(name="pressure")
    for number in range(readings):
        point = metric.gauge.data_points.add(as_double=round(chance.gauss(20, 3), 3))
        point.time_unix_nano = (1_790_000_000_000 + seed * 60_000 + number * 100) * 10**6
        for key, text in (("site", chance.choice(_SITES)), ("line", f"a{chance.randrange(9)}")):
            point.attributes.add(key=key).value.string_value = text
    return bytes(export.SerializeToString())


NDJSON: Final = "application/x-ndjson"
FORMS: Final[Mapping[str, tuple[str, str, Callable[[int, int], bytes]]]] = {
    "ndjson": ("/v1/readings", NDJSON, body),
    "lines-1": ("/write", "text/plain", lines_of_one),
    "otlp": ("/v1/metrics", "application/x-protobuf", points),
    "lines-10": ("/api/v2/write", "text/plain", lines_of_ten),
}
"""Path, type and body by the name of a form."""


def request(readings: int, seed: int, form: str) -> bytes:
    path, kind, make = FORMS[form]
    return post(path, kind, make(readings, seed))


def post(path: str, kind: str, payload: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


class Counter:
    """Requests answered, by connection, so that no lock is needed."""

    def __init__(self, connections: int) -> None:
        self._counts = [0] * connections

    def add(self, connection: int) -> None:
        self._counts[connection] += 1

    def total(self) -> int:
        return sum(self._counts)


def send(port: int, connection: int, readings: int, form: str, counter: Counter) -> None:
    """Send until the process ends."""
    requests = [request(readings, connection * 8 + variant, form) for variant in range(8)]
    with socket.create_connection(("127.0.0.1", port)) as one:
        while True:
            for prepared in requests:
                one.sendall(prepared)
                answer = one.recv(65536)
                if not answer.startswith((b"HTTP/1.1 204", b"HTTP/1.1 200")):
                    os.write(2, answer[:500] + b"\n")
                    os._exit(1)
                counter.add(connection)


def counted(send: Callable[..., None], port: int, connections: int, *what: object) -> None:
    """Start the connections, a thread each, and answer questions about their count; ends with the input."""
    counter = Counter(connections)
    for connection in range(connections):
        threading.Thread(target=send, args=(port, connection, *what, counter), daemon=True).start()
    for _ in sys.stdin:
        print(counter.total(), flush=True)


@dataclass(frozen=True, slots=True)
class Loading:
    """A load that runs."""

    process: subprocess.Popen[str]

    def answered(self) -> int:
        """How many requests were answered as stored until now."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def loading(port: int, connections: int, readings: int, form: str) -> Iterator[Loading]:
    """Send requests of so many readings to an agent's port as long as the context lasts."""
    command = [sys.executable, "-m", "bench.load", str(port), str(connections), str(readings), form]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Loading(process)
        assert process.stdin is not None
        process.stdin.close()


def stored(admin_port: int, name: str) -> float:
    """How many readings of an agent's input are stored until now."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    wanted = f'petiole_stored_readings_total{{class="normal",input="{name}"}} '
    return sum(float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted))


def cpu_seconds(process: psutil.Process) -> float:
    """What a process has used until now, user and system, all threads."""
    times = process.cpu_times()
    return times.user + times.system


def cpu_percent(processes: Sequence[psutil.Process], seconds: float) -> list[float]:
    """Per cent of a core that each process takes, over so many seconds."""
    before, began = [cpu_seconds(process) for process in processes], time.monotonic()
    time.sleep(seconds)
    wall = time.monotonic() - began
    return [
        100 * (cpu_seconds(process) - used) / wall for process, used in zip(processes, before, strict=True)
    ]


def write(path: str, connection: int, readings: int) -> None:
    """Write to a Unix socket until the process ends."""
    prepared = [body(readings, connection * 8 + variant) for variant in range(8)]
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)
        while True:
            for lines in prepared:
                one.sendall(lines)


def written(path: str, connections: int, readings: int) -> None:
    """Start the connections to a Unix socket, a thread each, and wait for the end of the input."""
    for connection in range(connections):
        threading.Thread(target=write, args=(path, connection, readings), daemon=True).start()
    sys.stdin.read()


STAMP: Final = "1000000000000"
"""Stands in a request for when it was due: `STAMP` plus microseconds of the monotonic clock."""
_SOURCE: Final = Path(__file__).parent / "http_load.c"
_BUILT: Final = Path("build/http_load")


@dataclass(frozen=True, slots=True)
class Answered:
    """The requests of a stretch of time that were answered as stored, and their latency in milliseconds."""

    requests: int
    seconds: float
    p50: float
    p99: float
    most: float


class HttpLoad:
    """A load that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._since = time.monotonic()

    def answered(self) -> Answered:
        """Since the call before, or the start. Raises `RuntimeError` where the load has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            count, *times = self._process.stdout.readline().split()
        except (OSError, ValueError) as error:
            raise RuntimeError(f"the load ended by itself: {error}") from error
        began, self._since = self._since, time.monotonic()
        p50, p99, most = (float(one) / 1000 for one in times)
        return Answered(int(count), self._since - began, p50, p99, most)


@contextmanager
def http_load(
    port: int, connections: int, requests: Sequence[bytes], rate: float = 0.0
) -> Iterator[HttpLoad]:
    """Send these requests in turns to a port of this machine as long as the context lasts: as fast as answers
    come, or `rate` a second. Raises `RuntimeError` without a compiler."""
    program = _build()
    with tempfile.NamedTemporaryFile(prefix="petiole-bench-") as file:
        file.write(b"".join(b"%d\n%b" % (len(one), one) for one in requests))
        file.flush()
        command = [str(program), str(port), str(connections), str(rate), file.name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield HttpLoad(process)
            finally:
                process.kill()


def _build() -> Path:
    if not _BUILT.exists() or _BUILT.stat().st_mtime < _SOURCE.stat().st_mtime:
        if (compiler := shutil.which("cc")) is None:
            raise RuntimeError(
                "the load has to be compiled and there is no cc: apt-get install gcc libc6-dev"
            )
        _BUILT.parent.mkdir(exist_ok=True)
        subprocess.run([compiler, "-O2", "-Wall", "-o", str(_BUILT), str(_SOURCE)], check=True)
    return _BUILT


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["socket", path, connections, readings]:
            written(path, int(connections), int(readings))
        case [port, connections, readings, form]:
            counted(send, int(port), int(connections), int(readings), form)
