"""Keeps the newest audit beside the fleet's records, for pages, `/status` and `/metrics`; sums in memory
only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import partial
from typing import Any, Final

import structlog
from nats.aio.msg import Msg
from prometheus_client import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from agent.contract import (
    AUDIT_FIGURES,
    VERSION,
    AuditedLeaf,
    AuditPart,
    ContractError,
    parse_audit_part,
)
from agent.hub.registrar.fleet_store import FleetStore
from agent.hub.registrar.metrics import lazy_metric
from agent.hub.registrar.problems import Readiness
from agent.jetstream import JetStreamError, respond

log = structlog.get_logger("registrar")


def _figure(name: str, row: Mapping[str, Any]) -> float:
    return float(row[name])


_METRICS: Final[Sequence[tuple[str, str, Callable[[Mapping[str, Any]], float]]]] = (
    *(
        (f"petiole_audit_{name}_readings", says, partial(_figure, name))
        for name, says in AUDIT_FIGURES.items()
    ),
    (
        "petiole_audit_accounted",
        "1 where nothing of the leaf is missing, doubled, unexplained or gone.",
        lambda row: float(not row["lost"]),
    ),
    (
        "petiole_audit_timestamp_seconds",
        "When the audit looked at the tables.",
        lambda row: _moment(row["at"]).timestamp(),
    ),
)
_HEAD: Final = ("at", "lake", "deep", "lost", "verdict", "findings")
_SUMS: Final = tuple(field.name for field in fields(AuditedLeaf) if field.name not in ("domain", "hours"))
_BYTES: Final = 16 * 2**20
"""Largest report; 10,000 leaves take 2 MB."""


class Audits(Collector):
    """Stores reports, and exposes metrics of `shown` leaves."""

    def __init__(self, store: FleetStore, readiness: Readiness, shown: Sequence[str]) -> None:
        self._store, self._readiness, self._shown = store, readiness, shown
        self._coming: dict[int, tuple[AuditPart, bytes]] = {}
        self._parts: list[bytes] = []
        self.rows: Mapping[str, Mapping[str, Any]] = {}
        """Sums by leaf, immutable."""
        self.head: dict[str, Any] | None = None
        """The audit's head, or None."""

    async def begin(self) -> None:
        """Load the audit. Raises `ApiError` or `UnavailableError`."""
        kept = [found async for found in self._store.load_audit(parse_audit_part)]
        if kept:
            self._hold(kept)

    async def receive(self, msg: Msg) -> None:
        """Answer a part."""
        row: dict[str, Any] = {"v": VERSION}
        try:
            await self._readiness.wait()
            row["taken"] = await self._take(msg.data)
        except (ContractError, JetStreamError) as error:
            log.warning("audit rejected", reason=str(error))
            row["refused"] = str(error)
        await respond(msg, json.dumps(row).encode())

    def leaf(self, domain: str) -> AuditedLeaf | None:
        """Return a leaf with hours."""
        row = self.rows.get(domain)
        if row is None:
            return None
        part = parse_audit_part(self._parts[row["part"]], domain)
        return next((leaf for leaf in part.leaves if leaf.domain == domain), None)

    def collect(self) -> Iterator[Metric]:
        """Yield metrics."""
        rows = self.rows  # replaced as a whole, so it may be read later
        if not rows:
            return
        for name, says, value in _METRICS:
            yield lazy_metric(name, says, "gauge", partial(_samples, name, self._shown, rows, value))

    async def _take(self, data: bytes) -> int:
        """Store a part; the last completes the report."""
        part = parse_audit_part(data)
        if self.head is not None and _moment(part.at) < _moment(self.head["at"]):
            raise ContractError(f"audited: an audit of {self.head['at']} is known, which is newer")
        if any((other.at, other.parts) != (part.at, part.parts) for other, _ in self._coming.values()):
            self._coming = {}  # a report that was broken off
        self._coming[part.part] = (part, data)
        if sum(len(kept) for _, kept in self._coming.values()) > _BYTES:
            self._coming = {}
            raise ContractError(f"audited: the report is larger than {_BYTES} bytes")
        if len(self._coming) == part.parts:
            whole = [self._coming[number] for number in range(part.parts)]
            # The first one last: what it says of the others must be there.
            for number in reversed(range(part.parts)):
                await self._store.save_audit(number, whole[number][1])
            self._coming = {}
            self._hold(whole)
            log.info("audit received", at=part.at, verdict=part.verdict)
        return part.part

    def _hold(self, whole: Iterable[tuple[AuditPart, bytes]]) -> None:
        rows: dict[str, dict[str, Any]] = {}
        parts = []
        for number, (part, data) in enumerate(whole):
            parts.append(data)
            for leaf in part.leaves:
                sums = {name: getattr(leaf, name) for name in _SUMS}
                rows[leaf.domain] = {"at": part.at, "part": number, "lost": leaf.lost, **sums}
            if number == 0:
                self.head = {name: getattr(part, name) for name in _HEAD}
        self._parts, self.rows = parts, rows


def _samples(
    name: str,
    domains: Sequence[str],
    rows: Mapping[str, Mapping[str, Any]],
    value: Callable[[Mapping[str, Any]], float],
) -> Iterator[Sample]:
    for domain in domains:
        if (row := rows.get(domain)) is not None:
            yield Sample(name, {"domain": domain}, value(row))


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
