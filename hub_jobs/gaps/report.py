"""Formats a look for gaps as text and JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from hub_jobs.gaps.cadence import BUCKETS
from hub_jobs.gaps.outages import Site, Worst
from hub_jobs.times import short

_SHOWN: Final = 4
_TITLES: Final = ("ahead", "<=1s", "<=10s", "<=1m", "<=10m", "<=1h", "<=1d", "later")


@dataclass(frozen=True, slots=True)
class Late:
    """Readings of a domain per bucket of `cadence.BUCKETS`, and the worst in seconds."""

    domain: str
    counts: dict[str, int]
    worst: float


@dataclass(frozen=True, slots=True)
class GapFindings:
    """All findings of one window."""

    at: datetime
    begin: datetime
    end: datetime
    factor: float
    worst: Worst
    lateness: Sequence[Late]


def as_json(found: GapFindings) -> str:
    """`{"at", "from", "to", "factor", "totals", "sites", "silent", "holes", "series", "lateness"}`; lists
    hold the worst, and `totals` tells whether they are all."""
    body = {
        "at": found.at,
        "from": found.begin,
        "to": found.end,
        "factor": found.factor,
        **asdict(found.worst),
        "lateness": [asdict(late) for late in found.lateness],
    }
    return json.dumps(body, indent=2, default=_text) + "\n"


def as_text(found: GapFindings) -> str:
    """Return at most 24 lines of 80 columns; `every` is the usual interval."""
    totals, sites = found.worst.totals, found.worst.sites
    begin, end = (f"{moment:%Y-%m-%d %H:%M}" for moment in (found.begin, found.end))
    lines = [
        f"{begin} to {end} UTC: {len(sites)} domains, {totals.devices} devices, {totals.series} series",
        *_silent(found),
        *_holes(found),
        *_lateness(found),
    ]
    return "\n".join(lines)


def _silent(found: GapFindings) -> list[str]:
    totals = found.worst.totals
    unjudged = f"; {totals.unjudged} say too little to tell" if totals.unjudged else ""
    if not totals.devices:
        return ["no device is known: nothing of it came in the window, nor in the time before"]
    if not totals.silent:
        return [f"no device is silent{unjudged}"]
    rows = [
        [site.domain, f"all {site.devices} devices", f"{site.since:%m-%d %H:%M:%S}", _since(site, found), ""]
        for site in found.worst.sites
        if site.silent == site.devices
    ]
    rows += [
        [
            device.domain,
            device.device,
            f"{device.since:%m-%d %H:%M:%S}",
            short(device.seconds),
            _every(device.usual),
        ]
        for device in found.worst.silent
    ]
    whole = sum(site.devices for site in found.worst.sites if site.silent == site.devices)
    return [
        f"SILENT: {totals.silent} of {totals.devices} devices{unjudged}",
        *_table(["domain", "device", "last reading", "silent for", "every"], rows, (16, 24)),
        *_more(
            totals.silent - whole + len(rows) - len(found.worst.silent) - _SHOWN,
            "in --json and the table gaps",
        ),
    ]


def _since(site: Site, found: GapFindings) -> str:
    return short((found.end - site.since).total_seconds())


def _holes(found: GapFindings) -> list[str]:
    totals = found.worst.totals
    if not totals.holes:
        return [f"no series has a hole longer than {found.factor:g} times its usual interval"]
    rows = [
        [
            hole.domain,
            hole.device,
            hole.metric if hole.series == 1 else f"{hole.series} series",
            f"{hole.since:%m-%d %H:%M}",
            short(hole.seconds) + ("+" if hole.open else ""),
            str(hole.missing),
            _every(hole.usual),
        ]
        for hole in found.worst.holes
    ]
    return [
        f"HOLES: {totals.holes}, about {totals.missing} readings missing; + goes on at the end",
        *_table(["domain", "device", "series", "from", "for", "missing", "every"], rows, (11, 14, 12)),
        *_more(
            totals.holes - sum(hole.series for hole in found.worst.holes[:_SHOWN]),
            "in --json and the table gaps",
        ),
    ]


def _lateness(found: GapFindings) -> list[str]:
    if not found.lateness:
        return ["no reading has a time of its own: nothing is known of lateness"]
    rows = []
    for late in found.lateness:
        total = sum(late.counts.values())
        rows.append(
            [late.domain, *(_share(late.counts[name], total) for name in BUCKETS), _worst(late.worst)]
        )
    return [
        "LATENESS at the hub, per cent of readings:",
        *_table(["domain", *_TITLES, "worst"], rows, (14,)),
        *_more(len(rows) - _SHOWN, "in --json"),
    ]


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], most: Sequence[int]) -> list[str]:
    cells = [
        [_cut(cell, most[at]) if at < len(most) else cell for at, cell in enumerate(row)]
        for row in (names, *rows[:_SHOWN])
    ]
    widths = [max(len(row[at]) for row in cells) for at in range(len(names))]
    lines = []
    for row in cells:
        aligned = (
            cell.ljust(width) if at < len(most) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  " + "  ".join(aligned).rstrip())
    return lines


def _more(count: int, where: str) -> list[str]:
    return [f"  and {count} more, {where}"] if count > 0 else []


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _every(usual: float | None) -> str:
    return "-" if usual is None else short(usual)


def _share(count: int, total: int) -> str:
    if not count:
        return "-"
    share = 100 * count / total
    return "<0.1" if share < 0.1 else f"{share:.1f}"


def _worst(seconds: float) -> str:
    return f"-{short(-seconds)}" if seconds < 0 else short(seconds)


def _text(value: Any) -> str:
    assert isinstance(value, datetime)
    return value.isoformat().replace("+00:00", "Z")
