"""The command `petiole`: one module a command. A process imports only the module of its own command: `run`
lives for years, and the others must start fast."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Final

import typer

_COMMANDS: Final = {
    "run": "agent.cli.run:command",
    "check": "agent.cli.check:command",
    "status": "agent.cli.status:command",
    "where": "agent.cli.where:command",
    "render": "agent.cli.render:command",
    "enrol": "agent.cli.enrol:command",
    "command": "agent.cli.command:command",
    "resend": "agent.cli.resend:command",
    "test": "agent.cli.test:command",
    "tap": "agent.cli.tap:command",
    "demo": "agent.cli.demo:command",
    "server": "agent.cli.server:app",
    "sizing": "agent.cli.sizing:command",
    "fleet": "agent.cli.fleet:app",
    "user": "agent.cli.user:app",
    "version": "agent.cli.main:version",
}
"""Each command and where it is: a function, or an application with commands of its own."""


def composed(names: Iterable[str] = _COMMANDS) -> typer.Typer:
    """The application with these commands."""
    whole = typer.Typer(
        name="petiole",
        help="Carries telemetry from the edge to a hub, and proves that it arrived.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    # Without a callback an application of one command would take no name of it.
    whole.callback()(_nothing)
    for name in names:
        module, _, attribute = _COMMANDS[name].partition(":")
        command_ = getattr(import_module(module), attribute)
        if isinstance(command_, typer.Typer):
            whole.add_typer(command_, name=name)
        else:
            whole.command(name)(command_)
    return whole


def _nothing() -> None:
    return


def version() -> None:
    """Print the version of this program."""
    typer.echo(version_of("petiole"))


def __getattr__(name: str) -> Any:
    """`app`: the application with all commands."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return composed()


def plain_run(arguments: Sequence[str]) -> Path | None:
    """The configuration file where these arguments are those that a unit gives `run`, and nothing else."""
    match arguments:
        case ["run", "-c" | "--config", path]:
            return Path(path)
        case _:
            return None


def main() -> None:
    """The console script's entry point."""
    # Typer reads arguments by pydantic, 12 MB that an agent would hold for as long as it runs.
    if (path := plain_run(sys.argv[1:])) is not None:
        try:
            import_module("agent.cli.run").command(path)
        except typer.Exit as ended:
            sys.exit(ended.exit_code)
        return
    named = sys.argv[1] if len(sys.argv) > 1 else ""
    composed([named] if named in _COMMANDS else _COMMANDS)()
