"""Implements `petiole user list | add | replace | revoke | forget` for programs with own accounts on the
server.

Exit codes: 0 done; 2 wrong usage or impossible; 4 another program edits the file; 5 stored but not applied.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from agent.cli.configuration import ConfigFile, configuration, editing, end
from agent.config import Config

app = typer.Typer(help="Programs with an account of their own on the server here.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The name of the program.", show_default=False)]


@app.command("list")
def listed(config: ConfigFile) -> None:
    """List the users: name, account, what each may read."""
    from agent.contract import user_account

    for user in configuration(config).users:
        state = "let in" if user.key else "revoked"
        reads = ", ".join(user.reads) or "nothing"
        linked = ", linked" if user.linked else ""
        typer.echo(f"{user.name}  {user_account(user.name)}  {state}, reads {reads}{linked}")


@app.command()
def add(
    config: ConfigFile,
    name: Name,
    key: Annotated[
        str, typer.Argument(help="Its public key; without one a key is made here.", show_default=False)
    ] = "",
    reads: Annotated[
        list[str] | None,
        typer.Option(help="A class of this leaf, or an aggregate of this hub, that it may read."),
    ] = None,
    linked: Annotated[
        bool, typer.Option("--linked", help="Link its account to that of the same name at the hub.")
    ] = False,
) -> None:
    """Let a program in."""
    from agent.base.machine import unwritable
    from agent.cli.members.edit import NewUser, added
    from agent.config.keys import SeedError, ensure_key
    from agent.server.setup import key_file

    seed = None
    if not key:
        settings = configuration(config)
        seed = key_file(settings, f"user-{name}")
        try:
            key = ensure_key(seed)
        except SeedError as error:
            end([str(error)])
        except OSError as error:
            end([unwritable(settings.state_dir, error)])
    user = NewUser(name, key, tuple(reads or ()), linked)
    settings = _change(config, lambda text: added(text, user), f"{name} is let in")
    if seed is not None:
        typer.echo(f"its seed, for that program alone: {seed}")
    if linked:
        typer.echo("then, for the hub: petiole enrol | petiole fleet add -, and there: petiole user add")
    if settings.nats.server == "external":
        typer.echo("the server is not run by the agent: give it the same users (`petiole render`)")


@app.command()
def replace(
    config: ConfigFile,
    name: Name,
    key: Annotated[str, typer.Argument(help="Its new public key.", show_default=False)],
) -> None:
    """Let a program in with another key, and shut out the old one."""
    from agent.cli.members.edit import USERS, replaced

    _change(config, lambda text: replaced(text, USERS, name, key), f"{name} is let in with its new key only")


@app.command()
def revoke(config: ConfigFile, name: Name) -> None:
    """Shut a program out and end its connections. Its streams stay."""
    from agent.cli.members.edit import USERS, revoked

    _change(config, lambda text: revoked(text, USERS, name), f"{name} is shut out; its streams stay")


@app.command()
def forget(config: ConfigFile, name: Name) -> None:
    """Shut a program out and remove its account. Its streams stay on disk until its name is let in again."""
    from agent.cli.members.edit import USERS, forgotten

    _change(
        config,
        lambda text: forgotten(text, USERS, name),
        f"{name} is shut out",
        f"{config} has no user {name!r}",
    )


def _change(path: Path, edit: Callable[[str], str], done: str, unchanged: str = "") -> Config:
    """Edit a file's users and reload the agent. Prints `done`, or `unchanged` if given."""
    from agent.cli.members.apply import apply_or_end, apply_users, edited_or_end, loaded_or_end

    with editing(path) as file:
        text = edited_or_end(file, edit)
        settings = loaded_or_end(path, text)
        file.store(text)
        apply_or_end("the agent", settings, apply_users(settings), (text == file.text and unchanged) or done)
    return settings
