"""`petiole run`: the agent in the foreground."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import typer

from agent import daemon, logs
from agent.admin.server import AdminServer
from agent.cli.configuration import ConfigFile, configuration, end, local_server, read
from agent.config import Config, ConfigError, listen_address
from agent.inputs import make_inputs
from agent.intake import Input
from agent.metrics import Metrics
from agent.server.setup import identities, taken_ports

_FIXED = ("domain", "role", "state_dir")
"""What a running agent cannot change: its state file would not be that of the new one."""


def command(config: ConfigFile) -> None:
    """Run the agent until SIGTERM or SIGINT, then drain and end. An embedded server goes on running."""
    settings = configuration(config)
    logs.set_up(settings.log)
    metrics = Metrics()
    inputs = _inputs(settings, metrics)
    admin = AdminServer(listen_address(settings.admin.listen), metrics, dict, lambda: (False, ""))
    if problems := taken_ports(settings) + _checked([*inputs, admin]):
        end(problems)
    inputs += _qos0(settings, metrics)
    raise typer.Exit(daemon.run(settings, inputs, metrics, partial(_problems, config, settings)))


def _inputs(settings: Config, metrics: Metrics) -> list[Input]:
    return make_inputs(settings.input, metrics, local_server(settings))


def _qos0(settings: Config, metrics: Metrics) -> list[Input]:
    if not settings.nats.mqtt.on:
        return []
    from agent.inputs.qos0 import Qos0Input  # not held in memory where no device speaks MQTT

    classes = [one.name for one in settings.class_]
    return [Qos0Input(settings.nats.listen, identities(settings).account, classes, metrics)]


def _checked(parts: Iterable[object]) -> list[str]:
    """What stands in the way of these parts on this machine."""
    checks = [check for one in parts if (check := getattr(one, "check", None)) is not None]
    return [problem for check in checks for problem in check()]


def _problems(path: Path, running: Config) -> list[str]:
    """What stands in the way of running with the file as it is now instead of as it was."""
    try:
        settings = read(path)
    except ConfigError as error:
        return error.problems
    fixed = [
        f"{name}: {getattr(settings, name)} cannot take the place of {getattr(running, name)} while the "
        "agent runs; change it back, or stop the agent first"
        for name in _FIXED
        if getattr(settings, name) != getattr(running, name)
    ]
    # Who listens where this agent listens now would find the port taken by it.
    held = {running.admin.listen, *map(_listen, running.input)}
    inputs = [
        one
        for options, one in zip(settings.input, _inputs(settings, Metrics()), strict=True)
        if _listen(options) is None or _listen(options) not in held
    ]
    return fixed + _checked(inputs)


def _listen(options: Any) -> str | None:
    return getattr(options, "listen", None)
