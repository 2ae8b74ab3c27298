"""Renders a leaf: state, announcement, audit, and hourly readings as picture and table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from agent.contract import AUDIT_HOURS, AuditedHour, AuditedLeaf
from agent.hub import fleet_rows
from agent.hub.fleet_rows import FleetRow
from agent.hub.web.fleet_page import PATH, leaf_path, refreshing, said, state_class
from agent.hub.web.html import STYLE, Markup, document, element, table

_COUNTS: Final = ("accepted", "stored", "refused", "refused_late", "discarded", "dead")
_HOUR: Final = 3_600
_WIDE, _HIGH, _LEAST = 10, 100, 6
"""Width and height of an hour in the picture, and the smallest visible part."""
PARTS: Final = (
    ("in_table", "in the table"),
    ("named", "in quarantine, or dead letters"),
    ("pending", "arrived, and not in the table yet"),
    ("missing", "missing"),
    ("doubled", "doubled"),
)


def leaf_page(
    row: FleetRow, announced_at: str, now: datetime, found: AuditedLeaf | None, *, refresh: bool
) -> Markup:
    """Render a leaf; `found` is its audit."""
    behind = "not known" if row.behind is None else f"{row.behind:,} messages"
    facts = [
        ("State", element("span", row.state, class_=state_class(row.state))),
        ("Link", "up" if row.linked else "down"),
        ("Last heard", f"{fleet_rows.ago(row.heard)} ago, {announced_at}" if announced_at else "never"),
        ("Behind", behind),
        ("Time to first loss", "not known" if row.loss is None else fleet_rows.until(row.loss)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in row.versions.items()) or "not known"),
        ("Machine", row.machine or "not known"),
        ("Run", row.run or "not known"),
    ]
    return document(
        f"{row.domain} - Petiole fleet",
        STYLE,
        element("nav", element("a", "Fleet", href=PATH)),
        element("h1", row.domain),
        said(row.sentence, well=row.state == "flowing"),
        refreshing(now, refresh, leaf_path(row.domain)),
        _facts(facts),
        *_accounted(row, found),
        *_classes(row.classes),
        refresh=refresh,
    )


def unknown_page(domain: str) -> Markup:
    """Render an unknown domain."""
    return document(
        "Petiole fleet",
        STYLE,
        element("nav", element("a", "Fleet", href=PATH)),
        element("h1", "No such leaf"),
        element("p", f"{domain:.80} is not among the leaves of this hub's configuration."),
    )


def _facts(facts: Iterable[tuple[str, str]]) -> Markup:
    return element(
        "dl", *(part for name, value in facts for part in (element("dt", name), element("dd", value)))
    )


def _accounted(row: FleetRow, found: AuditedLeaf | None) -> list[Markup]:
    head = element("h2", "Accounted for")
    audit = row.audit
    if audit is None:
        never = (
            "No audit has looked at this leaf yet, or none has reported to this hub: run audit with --server."
        )
        return [head, element("p", never, class_="old")]
    when = f"audit of {datetime.fromisoformat(audit['at']).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    answer = {
        "no": f"no: {fleet_rows.losses(audit)}",
        "old": "it was, but the newest audit is old",
        "yes": "yes: nothing is missing, nothing is doubled",
    }[row.accounted]
    way = audit["on_the_way"]
    figures = [
        ("Accepted", audit["accepted"]),
        ("In the table", audit["in_table"]),
        ("Not there, for a reason", audit["named"]),
        ("Waiting for refine", audit["pending"]),
        ("On their way", "not known" if way is None else way),
        ("Accepted, not stored yet", audit["open"]),
        ("Missing", audit["missing"]),
        ("Doubled", audit["doubled"]),
    ]
    return [
        head,
        element("p", element("span", answer, class_=f"accounted-{row.accounted}")),
        element("p", f"By the {when}, {fleet_rows.ago(row.audited)} ago. Readings:", class_="dim"),
        _facts((name, f"{count:,}" if isinstance(count, int) else count) for name, count in figures),
        *(element("p", sentence) for sentence in audit["findings"]),
        *(_hours(found, datetime.fromisoformat(audit["at"])) if found is not None else ()),
    ]


def _hours(found: AuditedLeaf, at: datetime) -> list[Markup]:
    last = int(at.timestamp()) // _HOUR
    known = {hour.hour: hour for hour in found.hours}
    if known and not last - AUDIT_HOURS < max(known) <= last:
        last = max(known)  # of a leaf that is away for long, the last hours that it had
    shown = [known.get(number) for number in range(last - AUDIT_HOURS + 1, last + 1)]
    first, newest = (_moment(number) for number in (last - AUDIT_HOURS + 1, last))
    columns = ("Hour", "In the table", "Not there, for a reason", "Pending", "Late", "Missing", "Doubled")
    numbers = [_numbers(hour) for hour in reversed(shown) if hour is not None]
    most = max((_size(hour) for hour in shown if hour is not None), default=0)
    ends = (f"{first:%m-%d %H}:00", f"at most {most:,} an hour", f"{newest:%m-%d %H}:00 UTC")
    axis = element("div", *(element("span", words) for words in ends))
    legend = [element("span", element("i", class_=f"part-{name}"), words) for name, words in PARTS]
    return [
        element("h2", "Way of its readings, hour by hour"),
        element("div", picture(shown), axis, class_="hours"),
        element("p", *legend, class_="legend"),
        element(
            "details",
            element("summary", "The same in numbers"),
            table(columns, 1, numbers) if numbers else element("p", "No readings in these hours."),
        ),
    ]


def picture(hours: Sequence[AuditedHour | None]) -> Markup:
    """Render a bar per hour, from stored up to missing readings."""
    full = max((_size(hour) for hour in hours if hour is not None), default=0) or 1
    bars = [
        element("g", element("title", _words(hour)), *_bar(hour, at * _WIDE, full))
        for at, hour in enumerate(hours)
        if hour is not None
    ]
    ground = element("rect", class_="ground", x="0", y=str(_HIGH), width=str(len(hours) * _WIDE), height="1")
    return element(
        "svg",
        ground,
        *bars,
        viewBox=f"0 0 {len(hours) * _WIDE} {_HIGH + 1}",
        preserveAspectRatio="none",
        role="img",
        aria_label="Readings by the hour; the numbers are below",
    )


def _size(hour: AuditedHour) -> int:
    return hour.in_table + hour.named + hour.pending + hour.missing


def _bar(hour: AuditedHour, left: int, full: int) -> list[Markup]:
    grave = {"missing": hour.missing or hour.lost, "doubled": hour.doubled}
    heights = {
        "in_table": hour.in_table,
        "named": hour.named,
        "pending": hour.pending,
        "missing": hour.missing,
        "doubled": hour.doubled,
    }
    drawn = {name: _HIGH * count / full for name, count in heights.items()}
    drawn = {name: max(high, _LEAST) if grave.get(name) else high for name, high in drawn.items()}
    over = sum(drawn.values()) / _HIGH
    bottom, found = float(_HIGH), []
    for name, high in drawn.items():
        high /= max(1.0, over)
        bottom -= high
        if high:
            place = {"x": f"{left + 1}", "y": f"{bottom:.2f}", "width": f"{_WIDE - 2}"}
            found.append(element("rect", class_=f"part-{name}", **place, height=f"{high:.2f}"))
    return found


def _words(hour: AuditedHour) -> str:
    said_ = [f"{hour.in_table:,} readings in the table"]
    for name in ("named", "pending", "late", "missing", "doubled"):
        if count := getattr(hour, name):
            said_.append(f"{count:,} {name}")
    said_ += [f"{hour.lost:,} batches never came"] if hour.lost else []
    said_ += [f"{hour.on_the_way:,} messages on their way"] if hour.on_the_way else []
    return f"{_moment(hour.hour):%Y-%m-%d %H}:00 UTC: {', '.join(said_)}"


def _numbers(hour: AuditedHour) -> list[str]:
    counts = (hour.in_table, hour.named, hour.pending, hour.late, hour.missing, hour.doubled)
    return [f"{_moment(hour.hour):%m-%d %H}:00", *(f"{count:,}" for count in counts)]


def _moment(number: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=number)


def _classes(classes: Mapping[str, Any]) -> list[Markup]:
    if not classes:
        return []
    flow = ("Class", "At the hub in", "Hub has", "Leaf had", "Behind", "Time to first loss", "Sign of life")
    ledger = ("Class", "Run", *(name.replace("_", " ").capitalize() for name in _COUNTS))
    counted = {name: cls["ledger"] for name, cls in classes.items() if cls.get("ledger")}
    found = [
        element("h2", "Way to the hub"),
        table(flow, 2, [_flow(name, cls) for name, cls in classes.items()]),
        *(element("p", f"{name}: {cls['error']}") for name, cls in classes.items() if cls.get("error")),
        element("h2", "Ledger: readings of its run, as it said last"),
    ]
    if not counted:
        return [*found, element("p", "Nothing since the hub's agent started.", class_="dim")]
    return [*found, table(ledger, 2, [_counts(name, ledger_) for name, ledger_ in counted.items()])]


def _flow(name: str, cls: Mapping[str, Any]) -> list[str]:
    active = cls.get("active")
    return [
        name,
        str(cls["stream"]),
        f"{cls['cursor']:,}",
        fleet_rows.number(cls["last"]),
        fleet_rows.number(fleet_rows.behind_of(cls)),
        fleet_rows.until(fleet_rows.loss_of(cls)),
        "-" if active is None else f"{fleet_rows.ago(active)} ago",
    ]


def _counts(name: str, ledger: Mapping[str, Any]) -> list[str]:
    return [name, str(ledger["run"]), *(f"{ledger['readings'].get(count, 0):,}" for count in _COUNTS)]
