"""Implements `petiole where`, which counts a domain's readings by stage and explains differences.

Exit codes: 0 all accounted for; 2 wrong usage; 3 losses without reason or doubles; 5 a requested part was not
observable.
"""

from __future__ import annotations

import asyncio
import json
import time
from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.cli.configuration import AsJson, ConfigFile, account_key, configuration, end, quiet
from agent.config import Config, Seconds, aggregates_of, cell_of_leaf
from agent.contract import DEFAULT_CLASS, MAX_NAME, VERSION, ContractError, check_domain, parse_hub_lake

if TYPE_CHECKING:
    from agent.cli.query.where_reasons import DomainObservation, LeafReport
    from hub_jobs.where import Lake, ScanPart

Domain = Annotated[str, typer.Argument(help="The leaf.", show_default=False)]
LakeDir = Annotated[
    str | None,
    typer.Option("--lake", help="Where the tables are, as for the jobs: a directory or a store's address."),
]
Device = Annotated[str | None, typer.Option("--device", help="Also how the readings of this device fare.")]
From = Annotated[
    str | None,
    typer.Option("--from", help="Only what was sealed from then on: ISO 8601, or 2h for two hours ago."),
]
To = Annotated[str | None, typer.Option("--to", help="Only what was sealed before then.")]


def command(
    config: ConfigFile,
    domain: Domain,
    lake: LakeDir = None,
    device: Device = None,
    since: From = None,
    until: To = None,
    as_json: AsJson = False,
) -> None:
    """Say where the readings of a domain are, and why they are not further."""
    from agent.base.terminal import draw, rows_that_fit, terminal_width
    from agent.cli.query.where_reasons import DomainObservation, report

    settings = configuration(config)
    quiet(settings)
    span = span_of(since, until)
    _check(settings, domain, lake, device, span)
    now = datetime.now(UTC)
    seen, unseen, failed = DomainObservation(), list[str](), False
    try:
        seen.leaf = _leaf(settings, domain, unseen)
    except LookupError as error:
        unseen.append(str(error))
        failed = True
    tables = _lake(lake, unseen)
    failed |= lake is not None and tables is None
    if settings.role == "hub":
        failed |= _hub(settings, domain, seen, tables, unseen)
        failed |= tables is not None and _is_other_lake(settings, tables, unseen)
    else:
        unseen.append("the hub's streams: this is the leaf's configuration; run it at the hub")
    if tables is not None:
        failed |= _tables(tables, domain, device, span, seen, unseen)
    _known(settings, domain, seen)
    report_ = report(domain, now, seen, device, _words(span))
    report_.unseen = [*unseen, *report_.unseen]
    report_.failed = failed
    if as_json:
        typer.echo(json.dumps(report_.as_json(), indent=2))
    else:
        draw(report_.lines(rows_that_fit(1), terminal_width()))
    raise typer.Exit(report_.exit)


Span = tuple[int | None, int | None]
"""Start and end in microseconds since 1970."""


def span_of(since: str | None, until: str | None) -> Span:
    """Parse `--from` and `--to`, or exit."""
    first, end_ = _moment("--from", since), _moment("--to", until)
    if first is not None and end_ is not None and first >= end_:
        end([f"--from {since} is not before --to {until}"])
    return first, end_


def _moment(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int((time.time() - float(Seconds.parse(text))) * 1e6)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return microseconds(moment)
    except (ValueError, OverflowError):
        end([f"{option} {text!r} is not a time; write 2026-11-21T10:00:00Z, or 2h for two hours ago"])


def microseconds(moment: datetime) -> int:
    """Return a moment in microseconds since 1970."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _words(span: Span) -> str:
    ends = [None if moment is None else datetime.fromtimestamp(moment / 1e6, UTC) for moment in span]
    words = [f"{word} {at:%Y-%m-%dT%H:%M:%SZ}" for word, at in zip(("from", "to"), ends, strict=True) if at]
    return " ".join(words)


def _check(settings: Config, domain: str, lake: str | None, device: str | None, span: Span) -> None:
    """Exit on a wrong command line."""
    problems = []
    try:
        check_domain(domain)
    except ContractError as error:
        problems.append(str(error))
    if settings.role == "leaf" and domain != settings.domain:
        problems.append(f"this is the configuration of {settings.domain}; another domain is known at the hub")
    if device is not None and not 0 < len(device) <= MAX_NAME:
        problems.append(f"--device: a name has 1 to {MAX_NAME} characters")
    if lake is None and (device is not None or span != (None, None)):
        problems.append("--device, --from and --to are looked up in the tables: name them with --lake")
    if problems:
        end(problems)


def _leaf(settings: Config, domain: str, unseen: list[str]) -> LeafReport | None:
    """Return the leaf as the agent knows it, or None; missing parts go to `unseen`. Raises `LookupError`
    without agent.
    """
    from agent.cli.query import AdminStatusError, status_of
    from agent.cli.query.where_reasons import LeafReport
    from agent.hub.fleet_rows import behind_of

    try:
        status = status_of(settings)
    except AdminStatusError as error:
        raise LookupError(f"what {domain} still holds: {error}") from None
    if status["role"] == "leaf":
        classes = status["classes"]
        ledgers = {
            cls: {"run": status.get("run", ""), "readings": row["readings"]}
            for cls, row in classes.items()
            if "readings" in row
        }
        behind = {cls: max(0, row["last"] - row["confirmed"]) for cls, row in classes.items()}
        return LeafReport(status["link"]["sentence"], ledgers, behind)
    leaf = status["fleet"].get("leaves", {}).get(domain)
    if leaf is None:
        return None
    classes = leaf.get("classes", {})
    unseen += [
        f"what {domain} still holds of class {cls}: it has not announced since the hub's agent began"
        for cls, row in sorted(classes.items())
        if row["last"] is None
    ]
    return LeafReport(
        leaf["state"],
        {cls: row["ledger"] for cls, row in classes.items() if row.get("ledger")},
        {cls: lag for cls, row in classes.items() if (lag := behind_of(row)) is not None},
    )


def _lake(name: str | None, unseen: list[str]) -> Lake | None:
    if name is None:
        unseen.append("the tables: name their directory with --lake")
        return None
    try:
        from hub_jobs.tables.delta import TableError
        from hub_jobs.tables.places import parse_place
        from hub_jobs.where import open_lake
    except ImportError as error:
        unseen.append(f"the tables: {error}; install petiole[hub]")
        return None
    try:
        return open_lake(parse_place(name))
    except (TableError, ArgumentTypeError) as error:
        unseen.append(f"the tables: {error}")
        return None


def _hub(
    settings: Config, domain: str, seen: DomainObservation, tables: Lake | None, unseen: list[str]
) -> bool:
    """Read the hub's streams; returns whether that failed."""
    from agent.cli.query import streams

    account_key(settings)
    classes = next((leaf.classes for leaf in settings.leaves if leaf.domain == domain), [DEFAULT_CLASS])
    try:
        ingested = tables.ingested if tables is not None else lambda _stream, _created: 0
        cell = cell_of_leaf(settings, domain)
        names = aggregates_of(settings, cell)
        seen.hub = asyncio.run(streams.look(settings, domain, names, classes, ingested))
    except streams.HubBacklogError as error:
        unseen.append(f"what is at the hub and not in bronze: {error}")
        return True
    if seen.hub.cut:
        unseen.append(f"all that waits at the hub: only {streams.MOST:,} messages of it were")
    return False


def _is_other_lake(settings: Config, tables: Lake, unseen: list[str]) -> bool:
    """Tell whether these are not the hub's lake or are an older state."""
    from agent.cli.query import AdminStatusError, status_of
    from hub_jobs.tables.hub_lake import why_not_hubs

    try:
        row = status_of(settings)["fleet"].get("lake")
    except AdminStatusError:
        return False  # that the agent does not answer is said already
    known = parse_hub_lake(json.dumps({"v": VERSION, **row})) if row else None
    why = why_not_hubs(known, tables.path, tables.bronze)
    if why:
        unseen.append(f"the tables of the hub: {why}")
    return why is not None


def _tables(
    tables: Lake, domain: str, device: str | None, span: Span, seen: DomainObservation, unseen: list[str]
) -> bool:
    """Read the tables; returns whether that failed."""
    from hub_jobs.tables.delta import TableError
    from hub_jobs.where import ScanPart, Waiting, look

    hub = seen.hub
    waiting = Waiting() if hub is None else Waiting(hub.messages, hub.ledgers)
    try:
        part: ScanPart = ScanPart(domain, *span)
        seen.tables = look(tables, part, waiting, device)
        seen.device = seen.tables.device
    except TableError as error:
        unseen.append(f"the tables: {error}")
        return True
    return False


def _known(settings: Config, domain: str, seen: DomainObservation) -> None:
    """Exit for a domain unknown to configuration and tables."""
    domains: list[Any] = [leaf.domain for leaf in settings.leaves] if settings.role == "hub" else [domain]
    if domain in domains or (seen.tables is not None and seen.tables.classes):
        return
    end([f"there is no leaf {domain!r}; the hub's configuration has {', '.join(sorted(domains)) or 'none'}"])
