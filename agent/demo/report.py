"""What the demonstration found: counts by domain, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """What the table holds of one device: rows, distinct serial numbers, and how many of these were
    acknowledged."""

    rows: int
    distinct: int
    acknowledged: int


@dataclass(frozen=True, slots=True)
class Domain:
    """One domain: readings that its senders saw acknowledged, and what became of them in the table."""

    accepted: int
    in_table: int
    missing: int
    duplicates: int
    discarded: int

    @property
    def whole(self) -> bool:
        """Whether nothing is missing and nothing is doubled."""
        return self.missing == 0 and self.duplicates == 0

    @classmethod
    def compare(
        cls, acknowledged: Mapping[str, int], stored: Mapping[str, DeviceRows], discarded: int
    ) -> Domain:
        """Compare by device what was acknowledged with what was found."""
        nothing = DeviceRows(0, 0, 0)
        rows = {device: stored.get(device, nothing) for device in acknowledged}
        return cls(
            accepted=sum(acknowledged.values()),
            in_table=sum(row.rows for row in rows.values()),
            missing=sum(count - rows[device].acknowledged for device, count in acknowledged.items()),
            duplicates=sum(row.rows - row.distinct for row in rows.values()),
            discarded=discarded,
        )


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The whole result; `relink` is seconds by fault."""

    domains: dict[str, Domain]
    relink: dict[str, float]
    seconds: float

    @property
    def whole(self) -> bool:
        """Whether every domain is."""
        return all(domain.whole for domain in self.domains.values())

    def as_json(self) -> dict[str, Any]:
        """The content of report.json."""
        return {
            "domains": {name: asdict(domain) for name, domain in self.domains.items()},
            "relink_seconds": {fault: round(seconds, 3) for fault, seconds in self.relink.items()},
            "seconds": round(self.seconds, 1),
        }

    def as_table(self) -> Table:
        """The table shown at the end."""
        table = Table(title="every reading acknowledged as stored, and where it is")
        for column in ("domain", "acknowledged", "in the table", "missing", "duplicate"):
            table.add_column(column, justify="left" if column == "domain" else "right")
        for name, domain in self.domains.items():
            table.add_row(
                name,
                *(f"{n:,}" for n in (domain.accepted, domain.in_table, domain.missing, domain.duplicates)),
            )
        return table
