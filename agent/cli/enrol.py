"""`petiole enrol`: make this machine's keys and print the public half, which the hub's configuration needs
(`petiole fleet add`). With a server that the agent does not run, the keys that its configuration names are
written next to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from agent.cli.configuration import ConfigFile, end
from agent.config import Config, ConfigError, load
from agent.config.keys import SeedError
from agent.leaf.inputs import OPTIONS

ServerDirectory = Annotated[
    Path | None,
    typer.Option(
        "--server-directory",
        help="Where the configuration of a server is that the agent does not run (default: next to this "
        "one); identity.conf is written there.",
        show_default=False,
    ),
]
New = Annotated[
    bool, typer.Option("--new", help="Make another key of the link, in place of one that is to be replaced.")
]


def command(config: ConfigFile, server_directory: ServerDirectory = None, new: New = False) -> None:
    """Make the missing keys of this machine, and print the table that lets it in at the hub."""
    from agent.server.identity import enrolled, write_identity

    try:
        settings = load(config, OPTIONS)
        if new and settings.role != "leaf":
            end(["--new is for the key of a leaf's link; a hub has none"])
        keys = enrolled(settings, new=new)
        identity = None
        if settings.nats.server == "external":
            identity = write_identity(settings, server_directory or config.resolve().parent)
    except ConfigError as error:
        end(error.problems)
    except (SeedError, OSError) as error:
        end([str(error)])
    if identity is not None:
        typer.echo(f"# written: {identity}; the server reads it when it is started")
    if settings.role == "leaf":
        typer.echo(_member(settings, keys))
    else:
        typer.echo("# the keys of the hub are there; leaves are let in with [[leaf]] tables")


def _member(settings: Config, keys: Mapping[str, str]) -> str:
    classes = json.dumps([cls.name for cls in settings.class_])
    table = f'[[leaf]]\ndomain = "{settings.domain}"\nkey = "{keys["link"]}"\nclasses = {classes}'
    users = [f'{user.name} = "{keys[f"link-{user.name}"]}"' for user in settings.user if user.linked]
    return f"{table}\nusers = {{ {', '.join(users)} }}" if users else table
