"""Requests at the edge, Petiole beside Telegraf: as fast as connections are answered, in turns, by the
CPU-seconds of the process that answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import psutil

from bench import telegraf
from bench.agents import HTTP_INPUT, Bench, Daemon, leaf
from bench.hub_stream import jetstream_server
from bench.load import body, cpu_seconds, http_load, lines_of_one, lines_of_ten, post, request
from bench.peer_sides import SYNCED, make_telegraf_stream
from bench.result import Against, Result, Row

_VARIANTS: Final = 16
_WARM_SECONDS: Final = 0.4
_SECONDS: Final = 1.5
_MEMORY_GOAL: Final = 1.0
_OTHER: Final = f"Telegraf {telegraf.VERSION}"

Form = Literal["ndjson", "lines-1", "lines-10"]


@dataclass(slots=True)
class Case:
    """Requests of one form and size, and readings a CPU-second of each side, round by round."""

    what: str
    form: Form
    readings: int
    goal: float | None = None
    """Of what Telegraf does with a CPU-second."""
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def connections(self) -> int:
        """Small requests come from many senders."""
        return 120 if self.readings == 1 else 16

    def row(self) -> Row:
        size = "one reading" if self.readings == 1 else f"{self.readings} readings"
        unit = "requests/CPU-second" if self.readings == 1 else "readings/CPU-second"
        what = f"HTTP {self.what}, {size} a request, {self.connections} connections"
        return Row(what, self.ours, unit, self.goal, Against(_OTHER, self.theirs))


def cases() -> list[Case]:
    """All of them, nothing measured."""
    return [
        Case("line protocol, a field a line", "lines-1", 1, 0.45),
        Case("line protocol, a field a line", "lines-1", 10),
        Case("line protocol, a field a line", "lines-1", 500, 1.3),
        Case("line protocol, ten fields a line", "lines-10", 10),
        Case("line protocol, ten fields a line", "lines-10", 500, 1.0),
        Case("JSON", "ndjson", 1),
        Case("JSON", "ndjson", 10),
        Case("JSON", "ndjson", 500),
    ]


def measure(result: Result, directory: Path, rounds: int) -> None:
    """Add a row a case, and the memory of both after the largest requests."""
    ours_mb, theirs_mb, measured = list[float](), list[float](), cases()
    with _sides(directory) as (bench, daemon, json_port):
        for _ in range(rounds):
            for case in measured:
                case.ours.append(_rate(bench.process, bench.http_port, _for_petiole(case), case))
                port = json_port if case.form == "ndjson" else daemon.port
                case.theirs.append(_rate(daemon.process, port, _for_telegraf(case), case))
            ours_mb.append(bench.process.memory_info().rss / 1e6)
            theirs_mb.append(daemon.process.memory_info().rss / 1e6)
    result.rows += [case.row() for case in measured]
    what = "memory of the process that answers, after requests of 500 readings"
    result.rows.append(Row(what, ours_mb, "MB", _MEMORY_GOAL, Against(_OTHER, theirs_mb), least=True))


@contextmanager
def _sides(directory: Path) -> Iterator[tuple[Bench, Daemon, int]]:
    """An agent, and a Telegraf with its port for JSON, each with a server of its own that syncs."""
    (directory / "petiole").mkdir()
    with (
        leaf(directory / "petiole", HTTP_INPUT, max_bytes="64GiB", max_file_store="80GiB") as bench,
        jetstream_server(directory / "nats", "hub", jetstream=SYNCED) as url,
    ):
        asyncio.run(make_telegraf_stream(url))
        daemon, json_port = telegraf.edge(directory / "telegraf", url, "memory")
        try:
            bench.start()
            daemon.start()
            yield bench, daemon, json_port
        finally:
            daemon.kill()


def _rate(process: psutil.Process, port: int, requests: list[bytes], case: Case) -> float:
    """Readings answered a CPU-second of a process."""
    with http_load(port, case.connections, requests) as load:
        time.sleep(_WARM_SECONDS)
        load.answered()
        before = cpu_seconds(process)
        time.sleep(_SECONDS)
        used, answered = cpu_seconds(process) - before, load.answered().requests
    return answered * case.readings / used


def _for_petiole(case: Case) -> list[bytes]:
    return [request(case.readings, seed, case.form) for seed in range(_VARIANTS)]


def _for_telegraf(case: Case) -> list[bytes]:
    makers = {"ndjson": json_array, "lines-1": lines_of_one, "lines-10": lines_of_ten}
    return [post("/write", "text/plain", makers[case.form](case.readings, seed)) for seed in range(_VARIANTS)]


def json_array(readings: int, seed: int) -> bytes:
    """The same readings as NDJSON has, as one array, which is what Telegraf takes."""
    return b"[" + b",".join(body(readings, seed).splitlines()) + b"]"
