"""`petiole run`: the agent in the foreground."""

from __future__ import annotations

import typer

from agent import daemon, logs
from agent.admin.server import AdminServer
from agent.cli.configuration import ConfigFile, configuration, end
from agent.config import listen_address
from agent.inputs import INPUTS
from agent.metrics import Metrics


def command(config: ConfigFile) -> None:
    """Run the agent until SIGTERM or SIGINT, then drain and end. An embedded server goes on running."""
    settings = configuration(config)
    logs.set_up(settings.log)
    metrics = Metrics()
    inputs = [INPUTS[options.__struct_config__.tag].make(options, metrics) for options in settings.input]
    admin = AdminServer(listen_address(settings.admin.listen), metrics, dict, lambda: (False, ""))
    checks = [check for one in (*inputs, admin) if (check := getattr(one, "check", None)) is not None]
    problems = [problem for check in checks for problem in check()]
    if problems:
        end(problems)
    raise typer.Exit(daemon.run(settings, inputs, metrics))
