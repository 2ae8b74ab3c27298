"""What the newest audit found of each leaf, in the metrics of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from agent.contract import AUDIT_FIGURES, AuditedLeaf, AuditPart

_LEAVES: Final = 1_000
"""Of so many the figures are shown."""


class AuditMetrics:
    """The collectors, which hold the newest audit until there is another one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by_domain = ["domain"]
        self._figures = {
            name: Gauge(f"petiole_audit_{name}_readings", says, by_domain, registry=registry)
            for name, says in AUDIT_FIGURES.items()
        }
        self.accounted = Gauge(
            "petiole_audit_accounted",
            "1 where nothing of the leaf is missing, doubled, unexplained or gone.",
            by_domain,
            registry=registry,
        )
        self.at = Gauge(
            "petiole_audit_timestamp_seconds",
            "When the audit looked at the tables.",
            by_domain,
            registry=registry,
        )
        self._all = (*self._figures.values(), self.accounted, self.at)

    def set(self, head: AuditPart, leaves: Sequence[AuditedLeaf]) -> None:
        """Another audit; of many leaves those with a loss are shown first."""
        for gauge in self._all:
            gauge.clear()
        at = datetime.fromisoformat(head.at).timestamp()
        for leaf in sorted(leaves, key=lambda leaf: (not leaf.lost, leaf.domain))[:_LEAVES]:
            for name, gauge in self._figures.items():
                gauge.labels(leaf.domain).set(getattr(leaf, name))
            self.accounted.labels(leaf.domain).set(not leaf.lost)
            self.at.labels(leaf.domain).set(at)

    def restore(self, sample: str, labels: Mapping[str, str], value: float) -> None:
        """A sample that an earlier process wrote."""
        for gauge in self._all:
            if sample == gauge._name:
                gauge.labels(labels["domain"]).set(value)
