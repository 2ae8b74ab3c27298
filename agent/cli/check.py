"""`petiole check`: whether this machine, its server and its link are well, each finding with a remedy.

Exit codes, of the worst finding: 0 nothing worse than a warning; 2 the configuration (or the command line) is
wrong; 3 readings are being lost; 4 two machines have one domain; 5 a server can't be reached; 1 any other
failure.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from agent.cli.checks.finding import Finding, Level, outcome
from agent.cli.configuration import ConfigFile, local_server, read
from agent.config import Config, ConfigError
from agent.process.preflight import mistakes, obstacles
from agent.server.setup import taken_ports

_COLOURS: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "red"}

Offline = Annotated[
    bool, typer.Option("--offline", help="Look at the configuration and this machine only; ask no server.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def command(config: ConfigFile, offline: Offline = False, as_json: AsJson = False) -> None:
    """Check whether all is well, and say what to do if it is not. Changes nothing."""
    from agent.cli.checks.finding import findings_as_json, lines

    findings = _examined(config, offline)
    if as_json:
        typer.echo(json.dumps(findings_as_json(findings), indent=2))
    else:
        for line in lines(findings, lambda level, text: typer.style(text, fg=_COLOURS[level])):
            typer.echo(line)
    raise typer.Exit(outcome(findings))


def _examined(path: Path, offline: bool) -> list[Finding]:
    from agent.cli.checks.run import judge_unusable

    try:
        settings = read(path)
    except ConfigError as error:
        return judge_unusable(error.found)
    from agent.base import logs
    from agent.cli.checks.run import check_offline, check_online

    logs.set_up("error", "console")
    if offline:
        return check_offline(settings, path, partial(_in_the_way, settings))
    return asyncio.run(check_online(settings, path, partial(_in_the_way, settings)))


def _in_the_way(settings: Config, runs: bool) -> tuple[list[str], list[str]]:
    """The wrong options of the inputs, and what they lack on this machine now. Listeners are checked only
    if the agent does not run."""
    from agent.base.metrics import Metrics
    from agent.leaf.inputs import make_inputs

    inputs = make_inputs(settings.input, Metrics(), local_server(settings))
    waiting = [
        input_
        for input_, options in zip(inputs, settings.input, strict=True)
        if not (runs and options.listens)
    ]
    return mistakes(inputs), [*([] if runs else taken_ports(settings)), *obstacles(waiting)]
