"""Makes a row per leaf, those in trouble first. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from agent.base.logs import NO_THREAT
from agent.base.terminal import BAD, GOOD, WAITS, TerminalLine, table
from agent.contract import Exit, LeafState, Severity, exit_of, state_of

STATES: Final = tuple(state.value for state in LeafState)
"""Words of leaf states, gravest first."""
ACCOUNTED: Final = ("no", "never", "old", "yes")
"""Audit results, gravest first: losses or doubles, unknown, outdated, well."""
OLD_AUDIT: Final = 172_800.0
"""Seconds after which an audit is outdated; it runs daily."""
_STYLES: Final = {Severity.BAD: BAD, Severity.WAITS: WAITS, Severity.GOOD: GOOD}
_AGO: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


class FleetRow(Struct, frozen=True):
    """A leaf; None if unknown."""

    domain: str
    state: str
    """One of `STATES`."""
    sentence: str
    """All states in words."""
    linked: bool
    heard: float | None
    """Seconds since its announcement."""
    behind: int | None
    """Messages missing at the hub then."""
    loss: float | None
    """Announced seconds to a loss; infinity for none."""
    machine: str
    run: str
    versions: Mapping[str, str]
    classes: Mapping[str, Any]
    accounted: str = "never"
    """One of `ACCOUNTED`."""
    audited: float | None = None
    """Seconds since the audit."""
    audit: Mapping[str, Any] | None = None
    """Its findings."""
    words: Sequence[str] = ()
    """All states, gravest first."""

    def as_json(self) -> dict[str, Any]:
        """Return a row of `--json`; `loss` null for infinity."""
        return asdict(self) | {"loss": None if self.loss == math.inf else self.loss}


def rows_of(fleet: Mapping[str, Any], now: datetime) -> list[FleetRow]:
    """Return all leaves, troubled first, then furthest behind."""
    return by_gravity(each_row(fleet, now))


def each_row(fleet: Mapping[str, Any], now: datetime) -> Iterator[FleetRow]:
    return (_row(domain, leaf, now) for domain, leaf in fleet.get("leaves", {}).items())


def by_gravity(rows: Iterable[FleetRow]) -> list[FleetRow]:
    """Sort as `rows_of`."""
    return sorted(rows, key=lambda row: (_rank(row), -(row.behind or 0), row.domain))


def _rank(row: FleetRow) -> int:
    state = LeafState.LOSING if row.accounted == "no" else state_of(row.state)
    return STATES.index(state)


def fleet_exit(rows: Iterable[FleetRow]) -> Exit:
    """Return a command's exit code for these leaves."""
    rows = list(rows)
    return (
        Exit.LOSS
        if any(row.accounted == "no" for row in rows)
        else exit_of(state_of(row.state) for row in rows)
    )


def chosen(rows: Iterable[FleetRow], patterns: Sequence[str], states: Sequence[str]) -> Iterator[FleetRow]:
    """Yield rows matching patterns and states (empty: all)."""
    return (
        row
        for row in rows
        if (not patterns or any(fnmatchcase(row.domain, pattern) for pattern in patterns))
        and (not states or not {row.state, *row.words}.isdisjoint(states))
    )


SORTS: Final[Mapping[str, Callable[[FleetRow], Any]]] = {
    "domain": lambda row: row.domain,
    "state": lambda row: None,
    "heard": lambda row: row.heard,
    "behind": lambda row: row.behind,
    "loss": lambda row: row.loss,
    "accounted": lambda row: (ACCOUNTED.index(row.accounted), -(row.audited or 0.0)),
}
"""Sort keys and row values; `state` is the order of `rows_of`."""


def ordered(rows: Iterable[FleetRow], sort: str, *, down: bool) -> list[FleetRow]:
    """Sort rows by one of `SORTS`, unknown last, stable."""
    if sort == "state":
        return list(rows)[:: -1 if down else 1]
    value = SORTS[sort]
    known: list[FleetRow] = []
    unknown: list[FleetRow] = []
    for row in rows:
        (unknown if value(row) is None else known).append(row)
    return sorted(known, key=value, reverse=down) + unknown


def _row(domain: str, leaf: Mapping[str, Any], now: datetime) -> FleetRow:
    classes = leaf.get("classes", {})
    losses = [seconds for cls in classes.values() if (seconds := loss_of(cls)) is not None]
    heard = seconds_since(str(leaf.get("announced_at", "")), now)
    audit = leaf.get("audit")
    audited = None if audit is None else seconds_since(str(audit["at"]), now)
    lags = [lag for cls in classes.values() if (lag := behind_of(cls)) is not None]
    return FleetRow(
        domain=domain,
        state=str(leaf.get("word", "trouble")),
        sentence=str(leaf["state"]),
        linked=bool(leaf["linked"]),
        heard=heard,
        behind=sum(lags) if lags else None,
        loss=max(0.0, min(losses) - (heard or 0.0)) if losses else None,
        machine=str(leaf.get("machine", "")),
        run=str(leaf.get("run", "")),
        versions=leaf.get("versions", {}),
        classes=classes,
        accounted=_accounted(audit, audited),
        audited=audited,
        audit=audit,
        words=leaf.get("words", ()),
    )


def _accounted(audit: Mapping[str, Any] | None, audited: float | None) -> str:
    if audit is None or audited is None:
        return "never"
    if audit["lost"]:
        return "no"
    return "old" if audited > OLD_AUDIT else "yes"


def behind_of(cls: Mapping[str, Any]) -> int | None:
    """Return a class's missing messages by announcement, or None."""
    return None if cls["last"] is None else max(0, cls["last"] - cls["cursor"])


def loss_of(cls: Mapping[str, Any]) -> float | None:
    """Return a class's time to loss, None if unknown."""
    said = cls.get("seconds_to_loss")
    return None if said is None else float(said)


def seconds_since(moment: str, now: datetime) -> float | None:
    """Return seconds since an RFC 3339 time, None if invalid."""
    try:
        return max(0.0, (now - datetime.fromisoformat(moment)).total_seconds())
    except (ValueError, TypeError):
        return None


def ago(seconds: float | None) -> str:
    """Format seconds."""
    if seconds is None:
        return "-"
    for size, unit in _AGO:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def until(seconds: float | None) -> str:
    """Format a time to loss."""
    return "none" if seconds is not None and seconds >= NO_THREAT else ago(seconds)


def lines(
    fleet: Mapping[str, Any],
    all_: Sequence[FleetRow],
    rows: Sequence[FleetRow],
    most: int | None,
    width: int | None,
) -> list[TerminalLine]:
    """Return a summary and chosen rows."""
    counts = {state: sum(row.state == state for row in all_) for state in STATES}
    said = ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no leaves"
    lost = sum(row.accounted == "no" for row in all_)
    if lost:
        said += f"; {lost} not accounted for"
    grave = lost or fleet_exit(all_) is not Exit.WELL or fleet.get("state", "well") != "well"
    found = [TerminalLine(f"hub: {fleet.get('state') or 'not ready yet'}; {said}", BAD if grave else GOOD)]
    shown = rows if most is None else rows[:most]
    cells = [
        (
            (
                row.domain,
                row.state,
                ago(row.heard),
                "-" if row.behind is None else str(row.behind),
                until(row.loss),
                accounted(row),
                words(row),
            ),
            BAD if row.accounted == "no" else _STYLES[state_of(row.state).severity],
        )
        for row in shown
    ]
    if cells:
        found += table(
            ("DOMAIN", "STATE", "HEARD", "BEHIND", "LOSS", "ACCOUNTED", ""), cells, (2, 3, 4), width
        )
    if len(shown) < len(rows):
        found.append(TerminalLine(f"and {len(rows) - len(shown)} more: --all, a pattern, or --only", WAITS))
    if all_ and not rows:
        found.append(TerminalLine("no leaf fits; without patterns and --only all are shown"))
    return found


def number(count: int | None) -> str:
    """Format a count, "-" if unknown."""
    return "-" if count is None else f"{count:,}"


def words(row: FleetRow) -> str:
    """Return remarks beside the state."""
    said = [] if row.state == "flowing" else [row.sentence]
    return "; ".join([*said, *([losses(row.audit)] if row.audit and row.audit["lost"] else [])])


def accounted(row: FleetRow) -> str:
    """Format the audit result and age."""
    return row.accounted if row.audited is None else f"{row.accounted}, {ago(row.audited)}"


def losses(audit: Mapping[str, Any]) -> str:
    """Format an audit's faults, "" for none."""
    found = (
        (audit["missing"], "readings missing"),
        (audit["doubled"], "doubled"),
        (audit["unexplained"], "rows that no message explains"),
        (audit["gaps"], "sequences of its streams gone"),
    )
    return ", ".join(f"{count:,} {what}" for count, what in found if count)
