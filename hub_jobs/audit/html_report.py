"""Renders an audit as a self-contained HTML page, with all values escaped. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from html import escape
from itertools import groupby
from typing import Final

from hub_jobs.audit.report import AuditReport, shown_columns
from hub_jobs.audit.rows.hours import Hour

_HOURS: Final = 7 * 24
_DOMAINS: Final = 1_000
_FINDINGS: Final = 1_000
_STATES: Final = {
    "complete": ("", "all that was stored is in the table"),
    "late": ("L", "complete, and some of it took more than ten minutes to arrive"),
    "pending": ("…", "some of it is in bronze and not refined yet, or still on its way there"),
    "doubled": ("2", "some of it is in the table more than once"),
    "missing": ("!", "some of it was stored and is gone without a reason"),
}
"""Mark and meaning of an hour's state, worst last."""
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #1c2321; background: #fff; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
.verdict { font-size: 1.1rem; padding: .6rem .9rem; border-radius: .4rem; display: inline-block; }
.well { background: #dff3e4; } .lost { background: #f8d4d0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; } th, td { padding: .15rem .5rem; text-align: right; }
th { font-weight: 600; } th.name, td.name { text-align: left; white-space: nowrap; }
table.hours td { padding: 0; } table.hours i { display: block; width: 14px; height: 18px; margin: 1px;
  border-radius: 2px; font: 600 11px/18px system-ui, sans-serif; text-align: center; }
table.hours th.day { text-align: left; font-size: .8rem; border-left: 1px solid #bbb; }
.none { background: #eef0ef; } .complete { background: #5fae7b; } .late { background: #e6c04d; }
.pending { background: #7fa8d9; } .doubled { background: #b86fc6; color: #fff; }
.missing { background: #cf3f34; color: #fff; }
.legend span { display: inline-block; margin-right: 1.2rem; } .legend i { display: inline-block; width: 14px;
  height: 14px; border-radius: 2px; vertical-align: -2px; margin-right: .4rem; }
table.accounts tr:nth-child(even) { background: #f6f7f6; } li { margin: .2rem 0; }
@media (prefers-color-scheme: dark) { body { background: #161a19; color: #e3e8e6; }
  .well { background: #1f4a2d; } .lost { background: #5d211c; } .none { background: #2a2f2e; }
  table.accounts tr:nth-child(even) { background: #1e2423; } }
"""


def as_html(report: AuditReport) -> str:
    verdict = report.verdict[0].upper() + report.verdict[1:]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Audit of {report.at:%Y-%m-%d %H:%M} UTC</title><style>{_STYLE}</style></head><body>",
        f"<h1>Audit of {report.at:%Y-%m-%d %H:%M} UTC</h1>",
        f'<p class="verdict {"lost" if report.lost else "well"}">{verdict}</p>',
        "<h2>Hours</h2>",
        *_picture(report.hours),
        *([] if report.unknown_transit is None else [f"<p>{escape(report.unknown_transit)}</p>"]),
        "<h2>Accounts, in readings</h2>",
        *_accounts(report),
        "<h2>Findings</h2>",
        *_findings(report.findings),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def columns(hours: Iterable[Hour]) -> list[datetime]:
    """Return the shown hours: the week up to the newest."""
    newest = max((hour.hour for hour in hours), default=None)
    if newest is None:
        return []
    oldest = max(min(hour.hour for hour in hours), newest - timedelta(hours=_HOURS - 1))
    count = int((newest - oldest) / timedelta(hours=1)) + 1
    return [oldest + timedelta(hours=at) for at in range(count)]


def _picture(hours: Sequence[Hour]) -> list[str]:
    shown = columns(hours)
    if not shown:
        return ["<p>There is nothing yet.</p>"]
    rows: dict[tuple[str, str], dict[datetime, Hour]] = {}
    for hour in hours:
        rows.setdefault((hour.domain or "unknown", hour.cls or "unknown"), {})[hour.hour] = hour
    worst = sorted(rows, key=lambda name: (-_rank(rows[name].values()), name))
    head = ['<tr><th class="name">domain</th><th class="name">class</th>', *_days(shown), "</tr>"]
    body = [_row(name, rows[name], shown) for name in worst[:_DOMAINS]]
    earlier = sum(hour.hour < shown[0] and hour.state in ("missing", "doubled") for hour in hours)
    notes = []
    if len(worst) > _DOMAINS:
        notes.append(f"<p>{len(worst) - _DOMAINS} more domains are in the table audit_hours.</p>")
    if earlier:
        notes.append(f"<p>{earlier} earlier hours have losses; they are in the table audit_hours.</p>")
    table = ["<div class=scroll><table class=hours>", *head, *body, "</table></div>"]
    return [_legend(), *table, *notes]


def _legend() -> str:
    items = (
        f'<span><i class="{name}"></i>{escape(name)}: {escape(text)}</span>'
        for name, (_, text) in _STATES.items()
    )
    return f'<p class="legend">{"".join(items)}</p>'


def _days(shown: Sequence[datetime]) -> list[str]:
    days = groupby(shown, key=datetime.date)
    return [f'<th class="day" colspan="{len(list(hours))}">{day:%m-%d}</th>' for day, hours in days]


def _row(name: tuple[str, str], held: dict[datetime, Hour], shown: Sequence[datetime]) -> str:
    cells = "".join(_cell(held.get(hour), hour) for hour in shown)
    domain, cls = map(escape, name)
    return f'<tr><td class="name">{domain}</td><td class="name">{cls}</td>{cells}</tr>'


def _cell(hour: Hour | None, column: datetime) -> str:
    if hour is None:
        return f'<td><i class="none" title="{column:%Y-%m-%d %H}:00: nothing"></i></td>'
    text = f"{column:%Y-%m-%d %H}:00: {hour.in_readings} of {hour.in_bronze} readings in the table"
    for name in ("late", "pending", "quarantined", "dead", "missing", "doubled"):
        if count := getattr(hour, name):
            text += f", {count} {name}"
    if hour.lost:
        text += f", {hour.lost} batches never came"
    if hour.on_the_way:
        text += f", {hour.on_the_way} messages on their way"
    return f'<td><i class="{hour.state}" title="{escape(text)}">{_STATES[hour.state][0]}</i></td>'


def _rank(hours: Iterable[Hour]) -> int:
    return max(list(_STATES).index(hour.state) for hour in hours)


def _accounts(report: AuditReport) -> list[str]:
    names, rows = shown_columns(report)
    head = "".join(f'<th class="{_kind(name)}">{escape(name)}</th>' for name in names)
    body = [
        "<tr>"
        + "".join(
            f'<td class="{_kind(name)}">{escape(value)}</td>' for name, value in zip(names, row, strict=True)
        )
        + "</tr>"
        for row in rows
    ]
    return ["<div class=scroll><table class=accounts>", f"<tr>{head}</tr>", *body, "</table></div>"]


def _kind(column: str) -> str:
    return "name" if column in ("domain", "class", "run") else "count"


def _findings(findings: Sequence[str]) -> list[str]:
    if not findings:
        return ["<p>None.</p>"]
    items = [f"<li>{escape(finding)}</li>" for finding in findings[:_FINDINGS]]
    more = len(findings) - _FINDINGS
    return ["<ul>", *items, "</ul>", *([f"<p>And {more} more, in --json.</p>"] if more > 0 else [])]
