"""`petiole enrol`: make this machine's key and print the public half, which the hub's configuration takes
in."""

from __future__ import annotations

import json

import typer

from agent.cli.configuration import ConfigFile, configuration, end
from agent.server.keys import SeedError, ensure_key
from agent.server.setup import link_key_file


def command(config: ConfigFile) -> None:
    """Make the key with which this leaf dials its hub, unless it is there, and print the table that lets it
    in."""
    settings = configuration(config)
    if settings.role != "leaf":
        end(["enrol is for a leaf; a hub takes leaves in with [[leaf]] tables"])
    try:
        key = ensure_key(link_key_file(settings))
    except (SeedError, OSError) as error:
        end([str(error)])
    classes = json.dumps([cls.name for cls in settings.class_])
    typer.echo(f'[[leaf]]\ndomain = "{settings.domain}"\nkey = "{key}"\nclasses = {classes}')
