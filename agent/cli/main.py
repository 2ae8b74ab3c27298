"""The command `petiole`: one module a command, composed here."""

from __future__ import annotations

from importlib.metadata import version as version_of

import typer

from agent.cli import (
    check,
    command,
    demo,
    enrol,
    fleet_keys,
    render,
    resend,
    run,
    server,
    status,
    tap,
    trial,
    where,
)

app = typer.Typer(
    name="petiole",
    help="Carries telemetry from the edge to a hub, and proves that it arrived.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(run.command)
app.command("check")(check.command)
app.command("status")(status.command)
app.command("where")(where.command)
app.command("render")(render.command)
app.command("enrol")(enrol.command)
app.command("command")(command.command)
app.command("resend")(resend.command)
app.command("test")(trial.command)
app.command("tap")(tap.command)
app.command("demo")(demo.command)
app.add_typer(server.app, name="server")
app.add_typer(fleet_keys.app, name="fleet")


@app.command()
def version() -> None:
    """Print the version of this program."""
    typer.echo(version_of("petiole"))


def main() -> None:
    """The console script's entry point."""
    app()
