"""Exposes registrar metrics and about twelve series per leaf, since Prometheus can't scrape leaves behind
NAT.

The fleet is read at each scrape. Each present state is a series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Final, cast

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from agent.contract import ClassState
from agent.hub.fleet_rows import seconds_since
from agent.hub.registrar.records import LeafRecord
from agent.hub.registrar.status import KnownFleet, leaf_states


class RegistrarMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.announcements = Counter(
            "petiole_announcements",
            "Announcements of leaves, by whether they were taken in.",
            ["outcome"],
            registry=registry,
        )
        self.readds = Counter(
            "petiole_source_readds",
            "Sources removed and added again because their leaf was linked and they did not flow.",
            registry=registry,
        )
        self.purged = Counter(
            "petiole_aggregate_purged_messages",
            "Messages purged from an aggregate after they were committed to the table.",
            ["stream"],
            registry=registry,
        )
        self.aggregate_messages = Gauge(
            "petiole_aggregate_messages", "Messages in an aggregate.", ["stream"], registry=registry
        )
        self.aggregate_bytes = Gauge(
            "petiole_aggregate_bytes", "Bytes in an aggregate.", ["stream"], registry=registry
        )
        self.seconds_to_full = Gauge(
            "petiole_hub_seconds_to_full",
            "Seconds until an aggregate takes nothing more, were nothing more committed.",
            ["stream"],
            registry=registry,
        )
        self.since_commit = Gauge(
            "petiole_hub_seconds_since_commit",
            "Seconds since the ingest job said that it had committed an aggregate.",
            ["stream"],
            registry=registry,
        )
        self.leaves = Gauge("petiole_fleet_leaves", "Leaves in the fleet's records.", registry=registry)
        self.linked = Gauge(
            "petiole_fleet_linked_leaves", "Leaves whose server is linked now.", registry=registry
        )
        self.silent = Gauge(
            "petiole_fleet_silent_leaves",
            "Leaves whose server is linked now and whose agent has missed three announcements.",
            registry=registry,
        )
        self.unshown = Gauge(
            "petiole_fleet_unshown_leaves",
            "Leaves without metrics of their own, by [registrar] metrics and metrics_leaves.",
            registry=registry,
        )


class LeadMetrics:
    """Whether this agent leads, in clusters."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.leading = Gauge(
            "petiole_hub_leading",
            "1 while this agent of the hub leads, 0 while it stands by.",
            registry=registry,
        )
        self.term = Gauge(
            "petiole_hub_term",
            "How often the lead of the hub was taken, as this agent knows.",
            registry=registry,
        )


_LONGEST_VERSION: Final = 64


class _LeafRow(Struct, frozen=True):
    """A leaf's shown values; None if unknown."""

    domain: str
    states: Sequence[str]
    linked: float
    heard_ago: float | None = None
    backlog: int | None = None
    stream_bytes: int | None = None
    seconds_to_loss: float | None = None
    refused: int | None = None
    refused_late: int | None = None
    discarded: int | None = None
    synchronised: float | None = None
    version: str | None = None
    sent: int | None = None


class LeafMetric(Struct, frozen=True):
    """A metric with label `domain`."""

    name: str
    documentation: str
    field: str
    """Of `_LeafRow`."""
    label: str = ""
    """If set, the field gives this label's values, with samples 1."""
    kind: str = "gauge"

    def samples(self, rows: Iterable[_LeafRow]) -> Iterator[Sample]:
        """Yield samples of known values."""
        return (sample for row in rows for sample in self._samples(row))

    def _samples(self, row: _LeafRow) -> Iterator[Sample]:
        value = getattr(row, self.field)
        if value is None:
            return
        if self.label:
            for word in [value] if isinstance(value, str) else value:
                yield Sample(self.name, {"domain": row.domain, self.label: word}, 1.0)
            return
        name = f"{self.name}_total" if self.kind == "counter" else self.name
        yield Sample(name, {"domain": row.domain}, float(value))


LEAF_METRICS: Final = (
    LeafMetric("petiole_leaf_state", "1 for each state that a leaf is in.", "states", label="state"),
    LeafMetric("petiole_leaf_linked", "1 while the leaf's server is linked.", "linked"),
    LeafMetric(
        "petiole_leaf_seconds_since_heard", "Seconds since the leaf's agent announced itself.", "heard_ago"
    ),
    LeafMetric(
        "petiole_leaf_backlog_messages",
        "Messages that the leaf had when it announced itself and the hub lacks.",
        "backlog",
    ),
    LeafMetric(
        "petiole_leaf_stream_bytes", "Bytes in the leaf's streams, as it announced them.", "stream_bytes"
    ),
    LeafMetric(
        "petiole_leaf_seconds_to_loss",
        "Seconds until the leaf must refuse or discard, as it announced them.",
        "seconds_to_loss",
    ),
    LeafMetric("petiole_leaf_refused_readings", "Readings that the leaf refused.", "refused", kind="counter"),
    LeafMetric(
        "petiole_leaf_refused_after_acceptance_readings",
        "Readings that the leaf lost: acknowledged as accepted and then refused.",
        "refused_late",
        kind="counter",
    ),
    LeafMetric(
        "petiole_leaf_discarded_readings",
        "Readings that left the leaf's streams before it knew that the hub had them.",
        "discarded",
        kind="counter",
    ),
    LeafMetric(
        "petiole_leaf_clock_synchronised",
        "1 while the leaf's kernel calls its clock synchronised.",
        "synchronised",
    ),
    LeafMetric("petiole_leaf_info", "1, with the version of the leaf's agent.", "version", label="version"),
    LeafMetric(
        "petiole_leaf_link_bytes",
        "Bytes that came over the leaf's links, counted where [registrar] bytes_per_hour is set.",
        "sent",
        kind="counter",
    ),
)


def shown_leaves(domains: Iterable[str], patterns: Sequence[str], most: int) -> list[str]:
    """Return matching leaves, the first `most` by name."""
    if "*" not in patterns:
        domains = [domain for domain in domains if any(fnmatchcase(domain, pattern) for pattern in patterns)]
    return sorted(domains)[:most]


class LazySamples:
    """Samples made when read, to spare the loop."""

    def __init__(self, make: Callable[[], Iterator[Sample]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Sample]:
        return self._make()


def lazy_metric(name: str, documentation: str, kind: str, make: Callable[[], Iterator[Sample]]) -> Metric:
    """Return a metric with lazy samples."""
    metric = Metric(name, documentation, kind)
    # All that reads a metric iterates over its samples, once.
    metric.samples = cast(list[Sample], LazySamples(make))
    return metric


class LeafCollector(Collector):
    """Shows the fleet of `look` at each scrape."""

    def __init__(self, look: Callable[[], KnownFleet]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        rows = _Rows(self._look())
        for metric in LEAF_METRICS:
            yield lazy_metric(metric.name, metric.documentation, metric.kind, partial(metric.samples, rows))


class _Rows:
    """Rows of one scrape, made once."""

    def __init__(self, known: KnownFleet) -> None:
        self._known = known
        self._made: list[_LeafRow] = []

    def __iter__(self) -> Iterator[_LeafRow]:
        for at, domain in enumerate(self._known.domains):
            if at == len(self._made):
                self._made.append(_row(self._known, domain))
            yield self._made[at]


def _row(known: KnownFleet, domain: str) -> _LeafRow:
    leaf, announced = known.leaves.get(domain), known.announced.get(domain)
    linked, words = domain in known.linked, tuple(state.value for state in leaf_states(domain, known))
    if leaf is None:
        return _LeafRow(domain, words, linked, sent=known.sent.get(domain))
    counts = [state.ledger.readings for state in leaf.said.values() if state.ledger is not None]
    losses = [state.seconds_to_loss for state in leaf.said.values() if state.seconds_to_loss is not None]
    return _LeafRow(
        domain,
        words,
        linked,
        known.heard_ago(domain) if announced else seconds_since(leaf.announced_at, known.at),
        sum(_lacking(leaf, cls, state) for cls, state in leaf.said.items()) if leaf.said else None,
        sum(state.bytes for state in leaf.said.values()) if leaf.said else None,
        min(losses, default=None),
        sum(count.refused for count in counts) if counts else None,
        sum(count.refused_late for count in counts) if counts else None,
        sum(count.discarded for count in counts) if counts else None,
        None if announced is None else _synchronised(announced.clock),
        leaf.versions.get("agent", "")[:_LONGEST_VERSION],
        known.sent.get(domain),
    )


def _lacking(leaf: LeafRecord, cls: str, state: ClassState) -> int:
    record = leaf.classes.get(cls)
    held = record.held.seq if record is not None and record.held is not None else 0
    return max(0, state.last - held)


def _synchronised(clock: str) -> float | None:
    said = clock.partition(";")[0].strip()
    return {"synchronised=yes": 1.0, "synchronised=no": 0.0}.get(said)
