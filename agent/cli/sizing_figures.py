"""What `petiole sizing` reckons with: the measured figures, and what follows from them for a load. Each of
`FIGURES` was measured; what was not has no line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

_DAY: Final = 86_400.0
_HEADROOM: Final = 0.8
"""Filled above this part of `max_bytes` a leaf trims; a stream that is to bridge an outage stays below it."""
_RESERVE: Final = 64 * 2**20
"""Bytes of disk below which a leaf refuses every class."""
_COMMANDS: Final = 64 * 2**20
"""Bytes that `max_file_store` has to hold for commands, besides the classes."""
_BATCHES_PER_SECOND: Final = {"normal": 2.0, "thin": 1.0}
"""The most that a class has on average: the default of `batches_per_second`; the linger of `thin`."""
_SOURCES: Final = 200
"""Classes of leaves in one aggregate, the default of `max_sources`."""
_SIZES: Final = (1, 10, 100, 500)
"""Readings a batch that were measured."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure: `row` of the result of a benchmark, or words of a document under `docs/`."""

    value: float
    unit: str
    source: str
    row: str

    @property
    def document(self) -> bool:
        """Whether it is from a document's own measurement."""
        return self.source.endswith(".md")


def _per_batch(where: str, *values: float) -> dict[str, Figure]:
    return {
        f"{where} {size}": Figure(value, "bytes/batch", "sizing", f"{where}, readings a batch: {size}")
        for size, value in zip(_SIZES, values, strict=True)
    }


_CARD: Final = "written to a card, batches a second: "
_FLEET: Final = "sources in {} aggregates, 10 leaf servers with an agent each: registrar"
FIGURES: Final[dict[str, Figure]] = {
    **_per_batch("the leaf's stream", 485.66, 615.565, 1364, 4855),
    **_per_batch("the link", 596.225, 719.195, 1469, 4960),
    **_per_batch("the hub's aggregate", 608.13, 738.565, 1487, 4978),
    **_per_batch("table bronze", 107.321, 172.434, 950.62, 4935),
    **_per_batch("table readings", 6.152, 39.356, 392.542, 1923),
    "idle 1": Figure(24.423, "MB/day", "wire", "idle link, one class"),
    "idle 3": Figure(47.021, "MB/day", "wire", "idle link, three classes"),
    "idle thin": Figure(0.546, "MB/day", "wire", "idle link, three classes, profile thin"),
    f"{_CARD}0": Figure(15, "kB/s", "capacity.md", "Without readings 8 to 15 kB"),
    f"{_CARD}1": Figure(32, "kB/batch", "capacity.md", "| 1 | 32 kB"),
    f"{_CARD}10": Figure(21, "kB/batch", "capacity.md", "| 10 | 21 kB"),
    f"{_CARD}100": Figure(19, "kB/batch", "capacity.md", "| 100 | 19 kB"),
    "cpu idle": Figure(0.9, "% of a core", "footprint", "idle, host metrics each second: CPU"),
    "cpu request": Figure(
        2_443, "requests/CPU-second", "small", "one reading a request, 1 connection: by the agent's CPU"
    ),
    "cpu reading": Figure(
        729_401, "readings/CPU-second", "ingest", "HTTP NDJSON, 500 readings a request, 16 connections"
    ),
    "most": Figure(
        690_187,
        "readings/s",
        "ingest",
        "HTTP NDJSON, 500 readings a request, 16 connections: wall clock, load and server on the same cores",
    ),
    "agent": Figure(50.557, "MB", "footprint", "2 GB of backlog, killed and started: RSS"),
    "server of a leaf": Figure(
        35.3, "MiB", "capacity.md", "server of the first leaf, alive throughout | memory 35.3 MiB"
    ),
    "server of a leaf in a burst": Figure(123, "MiB", "capacity.md", "reading them again 79 instead of 123"),
    "aggregate": Figure(67048, "messages/s", "hub-sync", "durable source: sync_interval 1s"),
    "registrar cpu 300": Figure(2.4, "% of a core", "fleet", f"300 {_FLEET.format(2)}, CPU at rest"),
    "registrar cpu 1000": Figure(4.45, "% of a core", "fleet", f"1000 {_FLEET.format(5)}, CPU at rest"),
    "registrar ram 300": Figure(63.676, "MB", "fleet", f"300 {_FLEET.format(2)}, RSS"),
    "registrar ram 1000": Figure(72.647, "MB", "fleet", f"1000 {_FLEET.format(5)}, RSS"),
    "jobs": Figure(1_396_257, "readings/s", "spark-ingest", "warm: stream to readings"),
    "jobs ram": Figure(
        920.001, "MB", "spark-scale", "8 million readings through ingest and refine, the most memory"
    ),
}
"""Everything that is reckoned with. docs/capacity.md shows it; tests hold it to bench/results and to docs."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked: of each leaf `readings` a second, evenly over `classes`; a link of so many bits a second
    or 0 where it is not given; `offline` in seconds, `keep` in days."""

    readings: float
    readings_per_request: float = 1.0
    leaves: int = 1
    classes: int = 1
    offline: float = 3 * _DAY
    profile: Literal["normal", "thin"] = "normal"
    keep: float = 365.0
    link: float = 0.0

    @property
    def batch(self) -> float:
        """Readings of a batch, at most as many as were measured in one."""
        gathered = self.readings / self.classes / _BATCHES_PER_SECOND[self.profile]
        return max(1.0, min(_SIZES[-1], max(self.readings_per_request, gathered)))

    @property
    def batches(self) -> float:
        """Batches a second of a leaf, all classes together."""
        return self.readings / self.batch

    def bytes_a_second(self, where: str) -> float:
        """Bytes a second of a leaf there, without what an idle link takes."""
        costs = [(float(size), FIGURES[f"{where} {size}"].value) for size in _SIZES]
        return self.batches * _between(costs, self.batch)

    @property
    def max_bytes(self) -> int:
        """What each class's stream needs for the time offline, up to a whole MiB."""
        whole = self.bytes_a_second("the leaf's stream") * self.offline / _HEADROOM
        return max(1, math.ceil(whole / self.classes / 2**20)) * 2**20

    @property
    def max_file_store(self) -> int:
        """What the leaf's server needs for all its streams."""
        return self.max_bytes * self.classes + _COMMANDS


@dataclass(frozen=True, slots=True)
class SizingLine:
    """One answer, and where it comes from."""

    place: str
    what: str
    value: float
    unit: str
    source: str


def _between(points: list[tuple[float, float]], at: float) -> float:
    """On the straight lines between measured points; the last one goes on beyond them."""
    pairs = list(pairwise(points))
    (low, below), (high, above) = next((pair for pair in pairs if at <= pair[1][0]), pairs[-1])
    return below + (above - below) * (at - low) / (high - low)


def lines(load: Load) -> Iterator[SizingLine]:
    """The answers, in the order in which they are printed."""
    yield from _leaf(load)
    yield from _line(load)
    yield from _hub(load)
    yield from _lake(load)


def _leaf(load: Load) -> Iterator[SizingLine]:
    stored = load.bytes_a_second("the leaf's stream")
    requests = load.readings / load.readings_per_request
    yield SizingLine("leaf", "readings in a batch", load.batch, "", "defaults")
    yield SizingLine("leaf", "batches, all classes", load.batches, "/s", "defaults")
    yield SizingLine("leaf", "on disk, a reading", stored / load.readings, "bytes", "sizing")
    yield SizingLine("leaf", "streams while offline", stored * load.offline / 1e6, "MB", "sizing")
    free = load.max_file_store + _RESERVE
    yield SizingLine("leaf", "disk to be free", free / 1e6, "MB", "sizing")
    if load.batches <= 100:
        points = [(0.0, FIGURES[f"{_CARD}0"].value)]
        points += [(float(n), n * FIGURES[f"{_CARD}{n}"].value) for n in (1, 10, 100)]
        # Batches of ten were measured: what larger ones hold besides is written as well.
        more = stored - load.batches * FIGURES["the leaf's stream 10"].value
        wear = _between(points, load.batches) * 1e3 + max(0.0, more)
        yield SizingLine("leaf", "written to a card", wear * _DAY / 1e9, "GB/day", "capacity.md")
    cpu = FIGURES["cpu idle"].value + 100 * (
        requests / FIGURES["cpu request"].value + load.readings / FIGURES["cpu reading"].value
    )
    yield SizingLine("leaf", "CPU of the agent, at most", cpu, "% of a core", "small, ingest")
    yield SizingLine("leaf", "memory of the agent", FIGURES["agent"].value, "MB", "footprint")
    yield SizingLine("leaf", "memory of its server", FIGURES["server of a leaf"].value, "MiB", "capacity.md")
    burst = FIGURES["server of a leaf in a burst"].value
    yield SizingLine("leaf", "the same in a burst", burst, "MiB", "capacity.md")


def _line(load: Load) -> Iterator[SizingLine]:
    sent = load.bytes_a_second("the link")
    yield SizingLine("line", "over the link, a reading", sent / load.readings, "bytes", "sizing")
    if load.classes > 3:
        return
    points = [(1.0, FIGURES["idle 1"].value), (3.0, FIGURES["idle 3"].value)]
    thin = load.profile == "thin"
    idle = FIGURES["idle thin"].value if thin else _between(points, load.classes)
    yield SizingLine("line", "without readings", idle, "MB/day", "wire")
    total = sent + idle * 1e6 / _DAY
    yield SizingLine("line", "with these readings", total * _DAY / 1e6, "MB/day", "wire, sizing")
    yield SizingLine("line", "the same", total * 8 / 1e3, "kbit/s", "wire, sizing")
    if (left := load.link / 8 - total) > 0:
        hours = sent * load.offline / left / 3600
        yield SizingLine("line", "to catch up afterwards", hours, "h", "wire, sizing")


def _hub(load: Load) -> Iterator[SizingLine]:
    sources, messages = load.leaves * load.classes, load.leaves * load.batches
    aggregates = -(-sources // _SOURCES)
    stored = load.leaves * load.bytes_a_second("the hub's aggregate")
    yield SizingLine("hub", "aggregates", aggregates, "", "defaults")
    yield SizingLine("hub", "messages", messages, "/s", "defaults")
    busy = 100 * messages / aggregates / FIGURES["aggregate"].value
    yield SizingLine("hub", "of what an aggregate takes", busy, "%", "hub-sync")
    yield SizingLine("hub", "aggregates, without ingest", stored * _DAY / 1e9, "GB/day", "sizing")
    if sources <= 1000:
        for what, name, unit in (("CPU", "cpu", "% of a core"), ("memory", "ram", "MB")):
            points = [(float(n), FIGURES[f"registrar {name} {n}"].value) for n in (300, 1000)]
            found = _between(points, max(300.0, sources))
            yield SizingLine("hub", f"{what} of the agent, at rest", found, unit, "fleet")


def _lake(load: Load) -> Iterator[SizingLine]:
    total = 0.0
    for name in ("bronze", "readings"):
        size = load.leaves * load.bytes_a_second(f"table {name}") * _DAY / 1e9
        yield SizingLine("lake", f"table {name}", size, "GB/day", "sizing")
        total += size
    yield SizingLine("lake", f"both, {load.keep:g} days kept", total * load.keep, "GB", "sizing")
    seconds = load.leaves * load.readings * _DAY / FIGURES["jobs"].value
    yield SizingLine("lake", "ingest and refine, a day's", seconds, "s", "spark-ingest")
    yield SizingLine("lake", "memory of the jobs", FIGURES["jobs ram"].value, "MB", "spark-scale")
