"""Reports the audit result per leaf to Prometheus and to the hub's agent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from agent.contract import (
    AuditedHour,
    AuditedLeaf,
    AuditPart,
    ContractError,
    audit_parts,
    audited_subject,
    leaf_stream,
)
from agent.contract.ranges import size
from hub_jobs.audit.account import Account
from hub_jobs.audit.report import AuditReport
from hub_jobs.audit.rows.hours import Hour, merged_hours
from hub_jobs.source.protocol import WireError
from hub_jobs.source.server import Server
from hub_jobs.tables.places import Place

_SECONDS: Final = 10.0
_HOUR: Final = 3_600


def leaves_of(report: AuditReport) -> list[AuditedLeaf]:
    """Return each leaf's result over all classes and runs, sorted by name."""
    accounts: dict[str, list[Account]] = {}
    for account in report.accounts:
        if account.domain is not None:
            accounts.setdefault(account.domain, []).append(account)
    hours: dict[str, list[Hour]] = {}
    for hour in report.hours:
        if hour.domain is not None:
            hours.setdefault(hour.domain, []).append(hour)
    gaps = _gaps(report)
    names = sorted(accounts.keys() | hours.keys())
    return [_leaf(name, accounts.get(name, ()), hours.get(name, ()), gaps.get(name, {})) for name in names]


def head_of(report: AuditReport, lake: Place, *, deep: bool) -> AuditPart:
    """Return the result of the whole audit."""
    return AuditPart(
        report.at.isoformat(), str(lake), deep, report.lost, report.verdict, tuple(report.general)
    )


def tell_hub(server: Server, head: AuditPart, leaves: Sequence[AuditedLeaf]) -> str:
    """Report to the hub's agent; returns the reason of a failure, "" on success."""
    from hub_jobs.source.connection import Connection

    try:
        with Connection(server) as conn:
            for part in audit_parts(head, leaves):
                answer = json.loads(conn.request(audited_subject(), part.encode(), _SECONDS))
                if "refused" in answer:
                    return str(answer["refused"])
    except (WireError, ContractError, ValueError) as error:
        return str(error)
    return ""


def _gaps(report: AuditReport) -> dict[str, dict[str, int]]:
    streams = {
        leaf_stream(account.domain, account.cls): account.domain
        for account in report.accounts
        if account.domain is not None and account.cls is not None
    }
    found: dict[str, dict[str, int]] = {}
    for gap in report.gaps:
        domain = streams.get(gap.name.partition("/")[0]) if gap.kind == "source" else None
        if gap.lost and domain is not None:
            found.setdefault(domain, {})[str(gap)] = size(gap.ranges)
    return found


def _leaf(
    domain: str, accounts: Sequence[Account], hours: Sequence[Hour], gaps: dict[str, int]
) -> AuditedLeaf:
    ways = [account.on_the_way for account in accounts]
    grave = sorted(accounts, key=lambda account: not account.lost)
    return AuditedLeaf(
        domain,
        accepted=sum(account.accepted for account in accounts),
        in_table=sum(account.in_readings for account in accounts),
        named=sum(
            account.quarantined + account.dead + account.discarded + account.refused for account in accounts
        ),
        open=sum(account.open_tail or 0 for account in accounts),
        pending=sum(account.pending for account in accounts),
        on_the_way=None if None in ways else sum(way or 0 for way in ways),
        missing=sum(account.missing for account in accounts),
        doubled=sum(account.doubled for account in accounts),
        unexplained=sum(account.unexplained for account in accounts),
        gaps=sum(gaps.values()),
        findings=(*gaps, *(finding for account in grave for finding in account.findings)),
        hours=tuple(_hours(hours)),
    )


def _hours(hours: Sequence[Hour]) -> Iterator[AuditedHour]:
    for hour in merged_hours(replace(hour, cls=None) for hour in hours):
        yield AuditedHour(
            int(hour.hour.timestamp()) // _HOUR,
            hour.in_readings,
            hour.quarantined + hour.dead,
            hour.pending,
            hour.late,
            hour.missing,
            hour.doubled,
            hour.lost,
            hour.on_the_way,
        )
