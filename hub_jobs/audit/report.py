"""Formats an audit as text, as JSON, and as rows of the table `audit`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec
import pyarrow as pa

from agent.contract.checks import fields_as_row
from hub_jobs.audit.account import Account
from hub_jobs.audit.gap_reasons import Gap
from hub_jobs.audit.in_transit import InTransit
from hub_jobs.audit.rows.hours import Hour
from hub_jobs.audit.rows.scan import Unreadable
from hub_jobs.audit.settled.settling import Settled
from hub_jobs.receipts.roots import RootsReport
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.parquet import write_rows
from hub_jobs.tables.places import Place
from hub_jobs.tables.schemas import AUDIT, AUDIT_HOURS
from hub_jobs.times import at_micros

_SHOWN: Final = [name for name in AUDIT.names if name not in ("at", "findings")]
_FINDINGS_SHOWN: Final = 50
_NOT_ASKED: Final = "the hub was not asked (--server)"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The accounts at one moment and the missing sequences. `notes` are sentences about harmless facts."""

    at: datetime
    accounts: Sequence[Account]
    gaps: Sequence[Gap]
    notes: Sequence[str]
    hours: Sequence[Hour] = ()
    in_transit: Sequence[InTransit] | None = None
    """Messages in transit; None when the hub was not asked."""
    unexplained: Sequence[str] = ()
    """Sentences about rows without run and without message in bronze."""
    unreadable: Sequence[Unreadable] = ()
    untrue: Sequence[str] = ()
    """Sentences about inconsistent state that is no loss."""
    altered: Sequence[str] = ()
    """Sentences about contents that differ from their payloads."""
    settled: Settled = field(default_factory=Settled)
    """The part that the next audit need not read, and why this one read everything."""
    hub_fault: str = ""
    """Why the hub did not answer."""
    doubts: int = 0
    """Reports of leaves about possibly doubled or missing lines."""
    other_lake: str = ""
    """Why this is not the hub's lake."""
    receipts: RootsReport = field(default_factory=RootsReport)

    @property
    def unknown_transit(self) -> str | None:
        """Return why messages in transit are unknown, None otherwise."""
        if self.in_transit is not None:
            return None
        return f"what is still on its way is not known: {self.hub_fault or _NOT_ASKED}"

    @property
    def lost(self) -> bool:
        """Whether anything is lost without a reason, doubled, unexplained or unreadable."""
        gone = any(gap.lost for gap in self.gaps) or any(account.lost for account in self.accounts)
        return gone or bool(self.unexplained) or bool(self.unreadable) or bool(self.altered)

    @property
    def findings(self) -> list[str]:
        named = (finding for account in self.accounts for finding in account.findings)
        return [*self.general, *named]

    @property
    def general(self) -> list[str]:
        """Sentences about no specific run, losses first."""
        moving = (sentence for transit in self.in_transit or () for sentence in transit.sentences())
        gaps = map(str, sorted(self.gaps, key=lambda gap: not gap.lost))
        return [
            *([self.other_lake] if self.other_lake else []),
            *map(str, self.unreadable),
            *self.receipts.contradictions,
            *self.untrue,
            *self.unexplained,
            *self.altered,
            *gaps,
            *self.notes,
            *self.receipts.unproven,
            *moving,
        ]

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if self.other_lake:
            return f"this is not the hub's lake, or not its newest state; of itself: {self._own_verdict}"
        return self._own_verdict

    @property
    def _own_verdict(self) -> str:
        if not self.lost:
            parts = ["nothing is missing, nothing is doubled"]
            if self.doubts:
                parts.append(
                    f"but {self.doubts} times lines may be twice or may lack, as the leaves name them"
                )
            if self.untrue:
                parts.append("but a table is not as it was")
            if self.receipts.contradictions:
                parts.append("but tables and signatures contradict each other")
            return "; ".join(parts)
        gaps = len({(gap.kind, gap.name) for gap in self.gaps if gap.lost})
        parts = [
            f"{sum(account.missing for account in self.accounts)} readings missing",
            f"{sum(account.doubled for account in self.accounts)} doubled",
            f"{gaps} streams with gaps",
        ]
        if rows := sum(account.unexplained for account in self.accounts):
            parts.append(f"{rows} rows of readings or quarantine without their message")
        if self.unexplained:
            parts.append("rows that no message explains")
        if self.altered:
            parts.append("contents that are not those of their payloads")
        if self.unreadable:
            parts.append(f"{len(self.unreadable)} files that can't be read")
        if self.doubts:
            parts.append(f"{self.doubts} times lines that may be twice or may lack")
        return ", ".join(parts)


def as_json(report: AuditReport) -> str:
    """`{"at", "lost", "rows": [{column: value}], "hours": [{column: value}], "gaps": [{"kind", "name",
    "ranges", "why", "detail", "lost"}], "on_the_way": null or [{"class", …}], "unreadable": [{"table",
    "file", "fault", "rows", "bounds"}], "receipts": {"until", "contradictions"}, "settled": {"until",
    "read_again"}, "findings": [sentence]}`."""
    rows = [{name: row[name] for name in AUDIT.names if name != "at"} for row in map(_row, report.accounts)]
    hours = [{**_row(hour), "hour": hour.hour.isoformat(), "state": hour.state} for hour in report.hours]
    body = {
        "at": report.at.isoformat(),
        "lost": report.lost,
        "rows": rows,
        "hours": hours,
        "gaps": [asdict(gap) for gap in report.gaps],
        "on_the_way": None
        if report.in_transit is None
        else [transit.as_json() for transit in report.in_transit],
        "unreadable": [file.as_json() for file in report.unreadable],
        "receipts": {
            "until": _moment(report.receipts.until),
            "contradictions": report.receipts.contradictions,
        },
        "settled": {"until": _moment(report.settled.until), "read_again": report.settled.read_again or None},
        "findings": report.findings,
    }
    # By `json` alone indents cost several times as much, for then it encodes in Python.
    return msgspec.json.format(json.dumps(body), indent=2) + "\n"


def shown_columns(report: AuditReport) -> tuple[list[str], list[list[str]]]:
    """Return the accounts as texts: column names and rows."""
    return _SHOWN, [[_cell(row[name]) for name in _SHOWN] for row in map(_row, report.accounts)]


def as_text(report: AuditReport) -> str:
    """Return verdict, sentences and accounts as a table."""
    findings = report.findings
    lines = [report.verdict, *findings[:_FINDINGS_SHOWN]]
    if len(findings) > _FINDINGS_SHOWN:
        lines.append(f"and {len(findings) - _FINDINGS_SHOWN} more findings, in the table audit and in --json")
    if report.unknown_transit is not None:
        lines.append(report.unknown_transit)
    if signed := _moment(report.receipts.until):
        lines.append(f"what arrived before {signed} has signed roots")
    if until := _moment(report.settled.until):
        lines.append(f"what arrived before {until} is settled: the next audit need not read it")
    names, accounts = shown_columns(report)
    cells = [names, *accounts]
    widths = [max(len(row[at]) for row in cells) for at in range(len(_SHOWN))]
    lines += (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )
    return "\n".join(lines)


def _moment(microseconds: int) -> str | None:
    return at_micros(microseconds).isoformat() if microseconds else None


def store(lake: Place, report: AuditReport) -> None:
    """Add the accounts to the tables `audit` and `audit_hours`. The first row has findings without run."""
    rows = [{"at": report.at, **_row(account)} for account in report.accounts]
    if rows:
        rows[0]["findings"] = [*report.general, *rows[0]["findings"]]
    _append(lake, "audit", pa.Table.from_pylist(rows, AUDIT))
    hours = [{"at": report.at, **_row(hour), "state": hour.state} for hour in report.hours]
    _append(lake, "audit_hours", pa.Table.from_pylist(hours, AUDIT_HOURS))


def _append(lake: Place, name: str, rows: pa.Table) -> None:
    table = ensure_table(lake, name)
    table.commit(write_rows(lake, name, rows), {})


def _row(account: Account | Hour) -> dict[str, Any]:
    row = fields_as_row(account)
    row["class"] = row.pop("cls")
    return row


def _cell(value: object) -> str:
    return "-" if value is None else str(value)
