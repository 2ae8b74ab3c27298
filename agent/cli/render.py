"""`petiole render`: the configurations of a whole site from one topology file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.cli.configuration import end
from agent.config import ConfigError
from agent.leaf.inputs import OPTIONS

if TYPE_CHECKING:
    from agent.cli.site.schema import Topology
    from agent.cli.site.site import Written

Out = Annotated[Path, typer.Option("--out", "-o", help="The directory to write to.", show_default=False)]
TopologyFile = Annotated[Path, typer.Argument(help="The topology file (TOML).", show_default=False)]


def command(topology: TopologyFile, out: Out) -> None:
    """Write the configurations of all servers and agents, and a README that says what goes where. Files that
    have not changed stay as they are."""
    from agent.cli.site import site

    try:
        topology_, done = site.write(topology, out, OPTIONS)
    except ConfigError as error:
        end(error.problems)
    except OSError as error:
        end([f"{error.filename}: cannot be written ({error.strerror})"])
    tell(topology_, done, out)


def tell(site: Topology, done: Written, out: Path) -> None:
    """Print which files were written, which are left over, and which leaves are not let in."""
    for name in done.changed:
        typer.echo(f"written: {out / name}")
    if done.same:
        typer.echo(f"unchanged: {len(done.same)}")
    for name in done.stale:
        typer.echo(f"not in the topology any more, remove it: {out / name}")
    waiting = [leaf.domain for leaf in site.leaf if not leaf.key and not leaf.revoked]
    if waiting:
        typer.echo(f"not let in, for the topology has no key of them: {', '.join(waiting)}")
