"""Implements `petiole run`: the agent in the foreground."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import typer

from agent.base import logs
from agent.base.listen_sockets import LISTEN_SOCKETS
from agent.base.metrics import Metrics
from agent.cli.configuration import (
    ConfigFile,
    configuration,
    end,
    local_server,
    mistakes,
    obstacles,
    problems,
    read,
)
from agent.config import Config
from agent.config.server_checks import check_files
from agent.leaf.inputs import make_inputs
from agent.leaf.intake import CheckedInput, Input
from agent.process import daemon
from agent.process.admin_server import AdminServer
from agent.server.setup import identities


def command(config: ConfigFile) -> None:
    """Run the agent until SIGTERM or SIGINT, then drain and end. An embedded server goes on running. SIGHUP
    reloads the configuration."""
    LISTEN_SOCKETS.inherit_fds(os.environ)
    settings = configuration(config)
    logs.set_up(settings.log.level, settings.log.format)
    metrics = Metrics()
    inputs = make_inputs(settings.input, metrics, local_server(settings))
    if wrong := mistakes(inputs):
        end(wrong)
    running = [*inputs, *_qos0(settings, metrics)]
    ended = daemon.run(settings, running, metrics, _Files(config, metrics))
    logs.end()
    raise typer.Exit(ended)


def _qos0(settings: Config, metrics: Metrics) -> list[Input]:
    if not settings.nats.mqtt.on:
        return []
    from agent.leaf.inputs.mqtt.local_qos0 import Qos0Input  # not held in memory where no device speaks MQTT

    return [Qos0Input(settings.nats.listen, identities(settings).account, settings.class_names, metrics)]


class _Files:
    """Rereads this agent's configuration and makes its inputs."""

    def __init__(self, path: Path, metrics: Metrics) -> None:
        self._path, self._metrics = path, metrics

    def read(self) -> Config:
        """Read the configuration. Raises `ConfigError`."""
        return read(self._path)

    def make(self, config: Config, names: Sequence[str]) -> Sequence[CheckedInput]:
        chosen = [options for options in config.input if options.name in names]
        return make_inputs(chosen, self._metrics, local_server(config))

    def problems(self, config: Config, inputs: Sequence[CheckedInput], *, restart: bool) -> list[str]:
        """Return obstacles of inputs, and of the agent for a restart."""
        if not restart:
            return problems(inputs)
        admin = AdminServer(config.admin, self._metrics, dict, lambda: (False, ""))
        return [*map(str, check_files(config)), *mistakes(inputs), *obstacles([*inputs, admin])]
