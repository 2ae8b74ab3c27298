"""Implements `petiole render`, which writes a site's configurations from a topology file."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec import Struct

from agent.base.files import write_private
from agent.cli.configuration import end, only_command
from agent.cli.site import Topology
from agent.cli.site.rendering import CLUSTER, MARK, SHARED, rendered
from agent.config import ConfigError, read_struct, read_table
from agent.leaf.inputs import OPTIONS

_PASSWORD: Final = re.compile(r'^(?:.*password: ")?([A-Za-z0-9_-]{32,64})"?', re.MULTILINE)


@dataclass(slots=True)
class Written:
    """Changed, unchanged and obsolete files."""

    changed: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)


def write(
    table: dict[str, Any],
    out: Path,
    inputs: Mapping[str, type[Struct]],
    first: Callable[[], None] = lambda: None,
) -> tuple[Topology, Written]:
    """Render a topology into a directory; calls `first` before writing.

    Raises `ConfigError` with every problem, without writing, or `OSError`.
    """
    site, problems = read_struct(Topology, table)
    files = rendered(site, inputs, _password(out), problems)
    first()
    out.mkdir(parents=True, exist_ok=True)
    done = Written()
    for file in files:
        path, data, mode = out / file.name, file.text.encode(), 0o600 if file.private else 0o644
        if path.exists() and path.read_bytes() == data and path.stat().st_mode & 0o777 == mode:
            done.same.append(file.name)
        else:
            write_private(path, data, mode)
            done.changed.append(file.name)
    names = {file.name for file in files}
    done.stale = sorted(path.name for path in out.iterdir() if path.name not in names and _is_ours(path))
    return site, done


def _password(out: Path) -> str:
    """Return the cluster's earlier or new password."""
    for name in (CLUSTER, SHARED):
        path = out / name
        if path.exists() and (match := _PASSWORD.search(path.read_text())):
            return match[1]
    return secrets.token_urlsafe(32)


def _is_ours(path: Path) -> bool:
    if path.suffix not in (".toml", ".conf") or not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(256).decode(errors="replace")
    return start.startswith((MARK, "# Written by petiole;"))


Out = Annotated[Path, typer.Option("--out", "-o", help="The directory to write to.", show_default=False)]
TopologyFile = Annotated[Path, typer.Argument(help="The topology file (TOML).", show_default=False)]


def command(topology: TopologyFile, out: Out) -> None:
    """Write the configurations of all servers and agents, and a README that says what goes where. Files that
    have not changed stay as they are."""
    with only_command(topology):
        render_or_end(lambda: read_table(topology), out)


def render_or_end(
    table: Callable[[], dict[str, Any]], out: Path, first: Callable[[], None] = lambda: None
) -> Written:
    """Render and print the result, or exit."""
    try:
        site, done = write(table(), out, OPTIONS, first)
    except ConfigError as error:
        end(error.problems)
    except OSError as error:
        end([f"{error.filename}: cannot be written ({error.strerror})"])
    _tell(site, done, out)
    return done


def _tell(site: Topology, done: Written, out: Path) -> None:
    """Print written and obsolete files, and leaves without access."""
    for name in done.changed:
        typer.echo(f"written: {out / name}")
    if done.same:
        typer.echo(f"unchanged: {len(done.same)}")
    for name in done.stale:
        typer.echo(f"not in the topology any more, remove it: {out / name}")
    waiting = [leaf.domain for leaf in site.leaf if not leaf.key and not leaf.revoked]
    if waiting:
        typer.echo(f"not let in, for the topology has no key of them: {', '.join(waiting)}")
