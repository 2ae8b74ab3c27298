"""Reads the configuration for a command. All problems go to standard error at once; the exit code is 2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from agent.base import logs
from agent.config import Config, ConfigError, Problem, load
from agent.config.keys import SeedError, public_key
from agent.contract import Exit
from agent.leaf.inputs import OPTIONS
from agent.leaf.inputs.shared import NO_SERVER, LocalServer
from agent.process.preflight import mistakes
from agent.server.setup import identities

ConfigFile = Annotated[
    Path, typer.Option("--config", "-c", help="The configuration file (TOML).", show_default=False)
]


def configuration(path: Path) -> Config:
    """The configuration. A file with problems ends the process, which prints every problem."""
    try:
        return read(path)
    except ConfigError as error:
        end(error.problems)


def read(path: Path) -> Config:
    """The configuration with the options of all types of inputs. Raises `ConfigError` with every problem,
    including those that an input finds in its options."""
    try:
        return load(path, OPTIONS)
    except ConfigError as error:
        raise ConfigError.of([*error.found, *_of_inputs(error.inputs)]) from None


def _of_inputs(options: Sequence[Any]) -> list[Problem]:
    if not options:
        return []
    from agent.base.metrics import Metrics
    from agent.leaf.inputs import make_inputs  # not held in memory by a process that a good file starts

    problems = []
    for option in options:
        for sentence in mistakes(make_inputs([option], Metrics(), NO_SERVER)):
            key, _, rest = sentence.partition(": ")
            stood, _, remedy = rest.partition("; ")
            problems.append(Problem(key, stood, remedy or "put that right"))
    return problems


def end(problems: list[str], code: Exit = Exit.USAGE) -> NoReturn:
    """Print every problem to standard error and end the process."""
    for problem in problems:
        typer.echo(f"petiole: {problem}", err=True)
    raise typer.Exit(code)


def quiet(config: Config) -> None:
    """Log only errors, to standard error: a command prints the rest itself."""
    logs.set_up("error", config.log.format)


def account_key(config: Config) -> Path:
    """The seed with which the agent, or a command in its place, connects to its server. An unusable one
    ends the process."""
    path = identities(config).account
    try:
        public_key(path)
    except SeedError as error:
        end([f"{error}; it is the agent's own key, made when the agent first runs: run this as its user"])
    return path


def local_server(config: Config) -> LocalServer:
    """The leaf's own server, as inputs that need it know it."""
    return LocalServer(f"nats://{config.nats.listen}", identities(config).account)
