"""The metrics of the registrar, in the registry of its agent."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class RegistrarMetrics:
    """The collectors of one registrar."""

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
    """Whether this agent leads, in the registry of its agent; they are there where several may."""

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
