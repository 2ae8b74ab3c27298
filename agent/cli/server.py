"""Implements `petiole server` for the embedded nats-server, which outlives its agent."""

from __future__ import annotations

import asyncio

import typer

from agent.base.machine import machine_id
from agent.base.nats_server import RenderError, ServerError
from agent.cli.configuration import ConfigFile, configuration, end
from agent.config.keys import SeedError
from agent.contract import Exit
from agent.server.process import EmbeddedServer
from agent.server.setup import server_config, server_directory

app = typer.Typer(help="The embedded NATS server.", no_args_is_help=True)


@app.callback()
def about() -> None:
    """Look after the embedded NATS server without an agent."""


@app.command()
def stop(config: ConfigFile) -> None:
    """Stop the embedded server that an agent has left running."""
    settings = configuration(config)
    try:
        directory = server_directory(settings)
        pid = asyncio.run(EmbeddedServer(server_config(settings, machine_id()), directory).stop())
    except (SeedError, RenderError, OSError) as error:
        end([str(error)])
    except ServerError as error:
        end([str(error)], Exit.UNREACHABLE)
    typer.echo(f"no server runs for {directory}" if pid is None else f"the server is stopped (process {pid})")
