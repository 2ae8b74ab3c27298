"""Dispatches `petiole` to one module per command, importing only that, for memory and speed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from agent.base.late_imports import collect_rarely, load_late

_COMMANDS: Final = {
    "run": "agent.cli.run:command",
    "check": "agent.cli.check:command",
    "status": "agent.cli.status:command",
    "top": "agent.cli.top:command",
    "where": "agent.cli.where:command",
    "proof": "agent.cli.proof:command",
    "render": "agent.cli.render:command",
    "enrol": "agent.cli.enrol:command",
    "command": "agent.cli.command:command",
    "resend": "agent.cli.resend:command",
    "test": "agent.cli.test:command",
    "tap": "agent.cli.tap:command",
    "map": "agent.cli.map:command",
    "demo": "agent.cli.demo:command",
    "server": "agent.cli.server:app",
    "new": "agent.cli.new:app",
    "fleet": "agent.cli.fleet:app",
    "lake": "agent.cli.lake:app",
    "user": "agent.cli.user:app",
    "completion": "agent.cli.main:completion",
    "version": "agent.cli.main:version",
}
"""Commands and their functions or applications."""


_ASKED: Final = "_PETIOLE_COMPLETE"
"""Variable of shell completion."""


def composed(names: Iterable[str] = _COMMANDS) -> typer.Typer:
    whole = typer.Typer(
        name="petiole",
        help="Carries telemetry from the edge to a hub, and proves that it arrived.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["--help", "-h"]},
        # Then a bare option is enough, without a command.
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    # Without a callback an application of one command would take no name of it.
    whole.callback()(_options)
    for name in names:
        module, _, attribute = _COMMANDS[name].partition(":")
        command_ = getattr(import_module(module), attribute)
        if isinstance(command_, typer.Typer):
            whole.add_typer(command_, name=name)
        else:
            whole.command(name)(command_)
    return whole


def _options(
    shown: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version of this program.")
    ] = False,
) -> None:
    if shown:
        version()
        raise typer.Exit


def version() -> None:
    """Print the version of this program."""
    typer.echo(version_of("petiole"))


class Shell(StrEnum):
    """A shell with completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell that reads it.", show_default=False)],
) -> None:
    """Print a script by which a shell completes commands and options with the tab key."""
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="petiole", complete_var=_ASKED, shell=shell))


def __getattr__(name: str) -> Any:
    """Return `app`, the application with all commands."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return composed()


def plain_run(arguments: Sequence[str]) -> Path | None:
    """Return the configuration file of a unit's plain `run` arguments."""
    match arguments:
        case ["run"]:
            return import_module("agent.cli.configuration").default_file()  # type: ignore[no-any-return]
        case ["run", "-c" | "--config", path]:
            return Path(path)
        case _:
            return None


def _asked_words() -> list[str]:
    """Return the line to complete."""
    return (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()


def main() -> None:
    collect_rarely()
    # nats-py imports them for websockets, which is a fifth of what an agent takes to start, and 9 MB.
    load_late("aiohttp", "multidict")
    # Typer reads arguments by pydantic, 12 MB that an agent would hold for as long as it runs.
    if _ASKED in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    elif (path := plain_run(sys.argv[1:])) is not None:
        try:
            import_module("agent.cli.run").command(path)
        except typer.Exit as ended:
            sys.exit(ended.exit_code)
        return
    words = _asked_words() if _ASKED in os.environ else sys.argv
    named = words[1] if len(words) > 1 else ""
    composed([named] if named in _COMMANDS else _COMMANDS)()
