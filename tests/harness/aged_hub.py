"""What the registrar of ten thousand leaves keeps over the years, with a driven clock: each month every agent
starts again, one leaf in twenty is replaced in the course of a year, and some begin new epochs. The
registrar's own code keeps the fleet; no server runs.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from agent.contract import Announce, ClassState, Previous, Readings, new_epoch, new_run
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.metrics import LeafCollector, shown_leaves
from agent.hub.registrar.records import AggregateRef, admitted, encode, refusal
from agent.hub.registrar.status import KnownFleet
from tests.harness.aged_leaf import CLASSES

MONTHS_A_YEAR: Final = 12
_MONTH: Final = 30 * 86_400.0
_REPLACED_A_YEAR: Final = 20
"""One leaf of so many."""
_MADE: Final = "2026-01-01T00:00:00Z"
_VERSIONS: Final = {"agent": "0.1.0", "nats-server": "2.15.1", "python": "3.11.7"}
_METRICS_LEAVES: Final = 10_000


class Hub:
    """A registrar's fleet of so many leaves, and the records in its bucket by domain."""

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves
        self.fleet = FleetState()
        self.bucket: dict[str, bytes] = {}
        self._months = 0
        self._machines = dict.fromkeys(range(self.leaves), 0)
        self._epochs: dict[tuple[int, str], str] = {}

    def live(self, months: int) -> None:
        for _ in range(months):
            for leaf in range(self.leaves):
                self._announce(leaf)
            self._months += 1

    def sizes(self) -> dict[str, int]:
        """Bytes of the bucket and of its largest record, and how many entries memory has."""
        fleet, owners = self.fleet, self.fleet.ownership
        return {
            "bytes of the bucket": sum(map(len, self.bucket.values())),
            "bytes of its largest record": max(map(len, self.bucket.values())),
            "records in the bucket": len(self.bucket),
            "leaves in memory": len(fleet.leaves),
            "sources of the aggregates": sum(map(len, fleet._of_stream.values())),
            "runs in memory": sum(len(runs.heard) for runs in owners._runs.values()),
            "rates in memory": sum(map(len, (fleet._announces, fleet._epochs)))
            + sum(map(len, fleet._run_announces.values())),
            "series of leaves": self._series(),
        }

    def _now(self) -> float:
        return self._months * _MONTH

    def _announce(self, leaf: int) -> None:
        domain, now = f"edge-{leaf:05d}", self._now()
        if (leaf + self._months) % (_REPLACED_A_YEAR * MONTHS_A_YEAR) == 0:
            self._machines[leaf] += 1
        for cls in CLASSES:
            if (leaf, cls) not in self._epochs or (leaf + self._months) % 50 == 0:
                self._epochs[leaf, cls] = new_epoch()
        run, fleet = new_run(), self.fleet
        said = {
            cls: ClassState(
                self._epochs[leaf, cls],
                f"{_MADE}{self._machines[leaf]}",
                1,
                10**6 + self._months,
                10**6,
                2**30,
                Previous(run, 1, Readings(10**6, 10**6), False),
            )
            for cls in CLASSES
        }
        machine = f"{self._machines[leaf]:032x}"
        announce = Announce(domain, machine, run, _VERSIONS, said, {}, "synchronised=yes", every=10.0)
        known = fleet.leaves.get(domain)
        if why := refusal(announce, CLASSES, known, fleet.ownership.heard_ago(domain, now)):
            raise RuntimeError(why)
        if fleet.ownership.is_copy(domain, run, now):
            raise RuntimeError(f"{domain} was taken for a copy of itself")
        if not (fleet.may_announce(domain, now) and fleet.may_run_announce(domain, run, now)):
            raise RuntimeError(f"{domain} was held to announce too often")
        fleet.may_change(domain, now)
        places = {cls: AggregateRef(f"TELEMETRY_{leaf % 50}", _MADE, 10**9) for cls in CLASSES}
        record = admitted(announce, known, places, _MADE)
        fleet.keep(record)
        fleet.heard(announce, now)
        self.bucket[domain] = encode(record)

    def _series(self) -> int:
        fleet, now = self.fleet, self._now()
        shown = shown_leaves(fleet.leaves, ["*"], _METRICS_LEAVES)
        known = KnownFleet(
            shown,
            fleet.leaves,
            fleet.announced,
            fleet.ownership.heard_at(),
            linked=set(shown),
            revoked=(),
            resting=(),
            seen={},
            trouble={},
            audited={},
            now=now,
            at=datetime.now(UTC),
        )
        return sum(len(list(metric.samples)) for metric in LeafCollector(lambda: known).collect())
