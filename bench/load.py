"""The load of the benchmarks: plain sockets that send one prepared request again and again, a thread a
connection.

`python -m bench.load PORT CONNECTIONS READINGS FORM`, FORM one of `FORMS`: answers each line on its standard
input with the number of requests that were answered 204 or 200 so far; ends with its input. Any other answer
ends it with an error. `loading` drives it from another process.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
    """A whole HTTP request."""
    path, kind, make = FORMS[form]
    return post(path, kind, make(readings, seed))


def post(path: str, kind: str, payload: bytes) -> bytes:
    """A POST of these bytes as a whole request."""
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
        """One more."""
        self._counts[connection] += 1

    def total(self) -> int:
        """Over all connections."""
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


def main(port: int, connections: int, readings: int, form: str) -> None:
    """Start the connections and answer questions about their count."""
    counter = Counter(connections)
    for connection in range(connections):
        arguments = (port, connection, readings, form, counter)
        threading.Thread(target=send, args=arguments, daemon=True).start()
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


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
