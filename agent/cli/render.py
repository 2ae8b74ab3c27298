"""Implements `petiole render`, which writes the configuration of a server that the agent does not run.

Exit codes: 0 written; 2 a wrong configuration, or files that cannot be read or written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from agent.base.files import write_private
from agent.base.nats_server import RenderError
from agent.cli.configuration import ConfigFile, configuration, end
from agent.config import Config
from agent.config.keys import SeedError, read_password
from agent.server.render import cluster_include, render
from agent.server.setup import server_config
from agent.server.values import HubConfig

_SERVER: Final = "nats.conf"
_FIRST: Final = "a"
"""The name of a hub's server without `nats.cluster.name`."""

Out = Annotated[Path, typer.Option("--out", "-o", help="The directory to write to.", show_default=False)]


def command(config: ConfigFile, out: Out) -> None:
    """Write the configuration of a server that the agent does not run (nats.server = "external"). It holds no
    private key; `petiole enrol` writes these beside it."""
    settings = configuration(config)
    try:
        files = rendered(settings)
    except (RenderError, SeedError) as error:
        end([f"{config}: {error}"])
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, (text, mode) in files.items():
            _write(out / name, text.encode(), mode)
    except OSError as error:
        end([f"{error.filename}: cannot be written ({error.strerror})"])


def rendered(config: Config) -> dict[str, tuple[str, int]]:
    """Return texts and modes of files by name. Raises `RenderError` or `SeedError`."""
    if config.nats.server == "embedded":
        raise RenderError('nats.server is "embedded": the agent renders the configuration of its own server')
    if config.nats.store_dir is None:
        raise RenderError("nats.store_dir is missing; name the directory of the server's streams")
    server = server_config(config, _FIRST)
    files = {_SERVER: (render(server), 0o644)}
    cluster = server.cluster if isinstance(server, HubConfig) else None
    if cluster is not None and cluster.password_file is not None:
        text = cluster_include(read_password(cluster.password_file), cluster.routes)
        files[cluster.include] = (text, 0o600)
    return files


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a changed file and print its path. Raises `OSError`."""
    is_same = path.exists() and path.read_bytes() == data and path.stat().st_mode & 0o777 == mode
    if not is_same:
        write_private(path, data, mode)
    typer.echo(f"{'unchanged' if is_same else 'written'}: {path}")
