"""Implements `petiole resend`, which republishes this leaf's batches under their ids; the table drops
repeats.

It uses the local server with the agent's key, whether the agent runs or not.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from agent.cli.configuration import AsJson, ConfigFile, account_key, configuration, end, end_unreachable
from agent.cli.query import own_server
from agent.cli.resend.plan import (
    MAX_BATCHES,
    Copies,
    Plan,
    copies_missing,
    plan_missing,
    plan_range,
    ranges_of,
)
from agent.cli.resend.stream import HubQueryError, LeafStream, ResendResult
from agent.config import Config
from agent.contract import DEFAULT_CLASS, ContractError, Exit, Ledger, check_run
from agent.contract.ranges import Ranges, RangeSet, size, text, union
from agent.jetstream import JetStreamError, UnavailableError
from agent.jetstream.connection import EXPECTED

ClassName = Annotated[str, typer.Option("--class", help="The class whose batches are meant.")]
Run = Annotated[
    str | None, typer.Option("--run", help="Its run; by default the newest, with --missing every run.")
]
From = Annotated[int | None, typer.Option("--from", min=1, help="The first number of a range.")]
To = Annotated[int | None, typer.Option("--to", min=1, help="The last number of a range.")]
Missing = Annotated[bool, typer.Option("--missing", help="Ask the hub what it lacks, and send that.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")]


def command(
    config: ConfigFile,
    cls: ClassName = DEFAULT_CLASS,
    run: Run = None,
    first: From = None,
    last: To = None,
    missing: Missing = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Publish stored batches again under their own ids, so that they travel the link once more; the table
    drops what it has. The agent may run meanwhile, or not."""
    from agent.base import logs

    settings = configuration(config)
    if problems := _problems(settings, cls, run, (first, last), missing):
        end(problems)
    account_key(settings)
    logs.set_up(settings.log.level, settings.log.format)
    request = ResendRequest(cls, run, first, last, missing, dry_run)
    try:
        report = asyncio.run(resend(settings, request, lambda text: typer.echo(f"petiole: {text}", err=True)))
    except EXPECTED as error:
        end_unreachable(settings, error)
    typer.echo(json.dumps(report.as_json()) if as_json else report.as_text())
    if report.failure is not None:
        end([report.failure], report.exit)
    raise typer.Exit(report.exit)


def _problems(
    config: Config, cls: str, run: str | None, span: tuple[int | None, int | None], missing: bool
) -> list[str]:
    """Return faults of the command line, a sentence each."""
    if config.role != "leaf":
        return ["resend is for a leaf, which has the batches"]
    problems = []
    classes = config.class_names
    if cls not in classes:
        problems.append(f"--class {cls}: there is no such class; the configuration has {', '.join(classes)}")
    if run is not None:
        try:
            check_run(run)
        except ContractError as error:
            problems.append(f"--run: {error}")
    if missing is any(span):
        problems.append("give either --missing or a range of numbers with --from and --to")
    first, last = span
    if first and last and first > last:
        problems.append(f"--from {first} is above --to {last}")
    return problems


_MEANINGS = {
    "sent": "sent again",
    "to_send": "would be sent again",
    "under_way": "not at the hub yet, on their way",
    "unknown": "purged from the hub's stream, or too near to what was: the audit tells whether they arrived",
    "refused": "never stored: refused, and their senders know",
    "gone": "in no message of this leaf any more",
    "unrecorded": "in no message, and no record of this leaf says that they were stored",
    "repeated": "not stored: the stream still knows their ids; retry in two minutes",
    "not_sent": "not sent",
}


@dataclass(frozen=True, slots=True)
class ResendRequest:
    """The batches to resend."""

    cls: str
    run: str | None = None
    """None: the newest, or all with `missing`."""
    first: int | None = None
    last: int | None = None
    """Range of numbers; None: all."""
    missing: bool = False
    """Ask the hub what it lacks."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RunReport:
    """Results of one run's numbers; `sent` None if not tried."""

    plan: Plan
    sent: ResendResult | None = None

    def numbers(self) -> dict[str, Ranges]:
        """Return numbers by result."""
        plan, planned = self.plan, ranges_of(copy.n for copy in self.plan.send)
        numbers = {
            "under_way": plan.under_way,
            "unknown": plan.unknown,
            "refused": plan.refused,
            "gone": plan.gone,
            "unrecorded": plan.unrecorded,
        }
        if self.sent is None:
            return {"to_send": planned, **numbers}
        sent = self.sent
        done = {*sent.again, *sent.repeated, *sent.gone}
        numbers["gone"] = tuple(union((*plan.gone, *ranges_of(sent.gone))))
        return {
            "sent": ranges_of(sent.again),
            **numbers,
            "repeated": ranges_of(sent.repeated),
            "not_sent": ranges_of(copy.n for copy in plan.send if copy.n not in done),
        }


@dataclass(slots=True)
class ResendReport:
    """The command's result; `failure` if it ended early."""

    domain: str
    cls: str
    dry_run: bool
    runs: list[RunReport] = field(default_factory=list)
    failure: str | None = None
    failed_as: Exit = Exit.FAILED

    @property
    def exit(self) -> Exit:
        if self.failure is not None:
            return self.failed_as
        runs = [run.numbers() for run in self.runs]
        if any(run.get("repeated") or run.get("not_sent") for run in runs):
            return Exit.FAILED
        return Exit.LOSS if any(run["gone"] for run in runs) else Exit.WELL

    def as_json(self) -> dict[str, Any]:
        return {
            "domain": self.domain,
            "class": self.cls,
            "dry_run": self.dry_run,
            "runs": [{"run": run.plan.run, **run.numbers(), "more": run.plan.more} for run in self.runs],
            "failure": self.failure,
        }

    def as_text(self) -> str:
        lines = [line for run in self.runs for line in _lines(run)]
        if not lines and self.failure is None:
            lines = [
                "nothing to send: the hub has all that it can tell of" if self.runs else "no batch is stored"
            ]
        return "\n".join(lines)


def _lines(report: RunReport) -> list[str]:
    lines = [
        f"  {size(ranges)} {_MEANINGS[name]}: {text(ranges, noun='ranges')}"
        for name, ranges in report.numbers().items()
        if ranges
    ]
    if report.sent is not None and report.sent.refused is not None:
        lines.append(f"  the stream refuses: {report.sent.refused}")
    if report.plan.more:
        lines.append(f"  more than {MAX_BATCHES} at once: run it again for the rest")
    return [f"run {report.plan.run}:", *lines] if lines else []


async def resend(config: Config, request: ResendRequest, say: Callable[[str], None]) -> ResendReport:
    """Run a request; `say` reports waits. Raises `NatsError`, `OSError` or `TimeoutError` without local
    server.
    """
    report = ResendReport(config.domain, request.cls, request.dry_run)
    async with own_server(config) as link:
        stream = LeafStream(link.nc, config.domain, request.cls)
        try:
            await _resend(stream, request, report, say)
        except (HubQueryError, JetStreamError) as error:
            report.failure = str(error)
            report.failed_as = Exit.UNREACHABLE if isinstance(error, UnavailableError) else Exit.FAILED
    return report


async def _resend(
    stream: LeafStream, request: ResendRequest, report: ResendReport, say: Callable[[str], None]
) -> None:
    stored = (await stream.runs()).numbers
    newest_first = sorted(stored, reverse=True)
    runs = [request.run] if request.run is not None else newest_first if request.missing else newest_first[:1]
    for run in runs:
        ledger = await stream.ledger(run)
        last = _highest(stored.get(run), ledger)
        if request.missing:
            plan = await _missing(stream, run, last, ledger, say)
        else:
            span = (request.first or 1, request.last or last)
            ranges = (span,) if span[0] <= span[1] else ()
            plan = plan_range(run, ranges, await stream.find(Copies(run, ranges)), last, ledger)
        if request.dry_run:
            report.runs.append(RunReport(plan))
            continue
        sent = ResendResult()
        report.runs.append(RunReport(plan, sent))
        await stream.send(plan, sent, say)
        if sent.refused is not None:
            return


async def _missing(
    stream: LeafStream, run: str, last: int, ledger: Ledger | None, say: Callable[[str], None]
) -> Plan:
    if last == 0:
        return Plan(run)
    verified = await stream.verify(run, last, say)
    copies = await stream.find(copies_missing(run, verified))
    return plan_missing(run, verified, copies, last, ledger)


def _highest(stored: RangeSet | None, ledger: Ledger | None) -> int:
    """Return a run's highest known stored number."""
    highest = stored.highest if stored is not None else 0
    return max(highest, max((last for _, last in ledger.stored), default=0) if ledger is not None else 0)
