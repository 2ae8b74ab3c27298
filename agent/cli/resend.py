"""`petiole resend`: send batches again that this leaf still holds."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from agent.cli.configuration import ConfigFile, account_key, configuration, end
from agent.config import Config
from agent.contract import DEFAULT_CLASS, ContractError, Exit, check_run

ClassName = Annotated[str, typer.Option("--class", help="The class whose batches are meant.")]
Run = Annotated[
    str | None, typer.Option("--run", help="Its run; by default the newest, with --missing every run.")
]
From = Annotated[int | None, typer.Option("--from", min=1, help="The first number of a range.")]
To = Annotated[int | None, typer.Option("--to", min=1, help="The last number of a range.")]
Missing = Annotated[bool, typer.Option("--missing", help="Ask the hub what it lacks, and send that.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Report as one JSON object.")]


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
    from agent.cli.resend_batches.job import ResendRequest, resend
    from agent.jetstream.connection import EXPECTED

    settings = configuration(config)
    if problems := _problems(settings, cls, run, (first, last), missing):
        end(problems)
    account_key(settings)
    logs.set_up(settings.log.level, settings.log.format)
    request = ResendRequest(cls, run, first, last, missing, dry_run)
    try:
        report = asyncio.run(resend(settings, request, lambda text: typer.echo(f"petiole: {text}", err=True)))
    except EXPECTED as error:
        why = str(error) or type(error).__name__
        end([f"the local NATS server at {settings.nats.listen} cannot be used: {why}"], Exit.UNREACHABLE)
    typer.echo(json.dumps(report.as_json()) if as_json else report.as_text())
    if report.failure is not None:
        end([report.failure], report.exit)
    raise typer.Exit(report.exit)


def _problems(
    config: Config, cls: str, run: str | None, span: tuple[int | None, int | None], missing: bool
) -> list[str]:
    """What is wrong with the command line, one sentence each."""
    if config.role != "leaf":
        return ["resend is for a leaf, which has the batches"]
    problems = []
    classes = [cls.name for cls in config.class_]
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
