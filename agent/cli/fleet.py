"""Implements `petiole fleet list | add | replace | revoke | forget | split`, for the leaves of a hub.

Exit codes: 0 done; the gravest listed state's (`agent.contract.leaf_state`), 3 for unaccounted readings; 2
wrong usage or impossible; 4 another program edits the file; 5 the hub's agent does not answer or did not
apply the stored change.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from agent.cli.configuration import (
    AsJson,
    ConfigFile,
    account_key,
    configuration,
    editing,
    end,
)
from agent.config import Config, aggregates_of
from agent.contract import HOME, ContractError, Exit, LeafState, check_domain

if TYPE_CHECKING:
    from agent.cli.members.edit import Enrolled


class ListingGroup(TyperGroup):
    """Defaults to `list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `list` without a command name."""
        # A shell that asks what may follow wants the commands.
        asked = ctx.resilient_parsing and not args
        named = asked or (bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names))
        return super().parse_args(ctx, args if named else ["list", *args])


app = typer.Typer(cls=ListingGroup, help="The leaves: list them, let them in, shut them out.")
_RESERVED: Final = 4
"""Terminal lines beside rows."""


Patterns = Annotated[
    list[str] | None, typer.Argument(help="Only these domains; * and ? fit any.", show_default=False)
]
Only = Annotated[
    list[LeafState] | None,
    typer.Option("--only", help="Only leaves in this state; may be given several times."),
]
All = Annotated[bool, typer.Option("--all", help="On a terminal too, all rows, not those that fit.")]
Domain = Annotated[str, typer.Argument(help="The domain of the leaf.", show_default=False)]
Key = Annotated[
    str, typer.Argument(help="The public key that `petiole enrol` printed there.", show_default=False)
]
Who = Annotated[
    str, typer.Argument(help="The domain, or - to read what `petiole enrol` printed.", show_default=False)
]
Classes = Annotated[
    list[str] | None, typer.Option("--class", help="A class that it sends (default: normal).")
]


@app.command("list")
def listed(
    config: ConfigFile,
    patterns: Patterns = None,
    only: Only = None,
    everything: All = False,
    as_json: AsJson = False,
) -> None:
    """List the leaves: how each is, when it was last heard and how many messages the hub lacks."""
    from agent.base.terminal import draw, rows_that_fit, terminal_width
    from agent.cli.query import AdminStatusError, status_of
    from agent.hub import fleet_rows

    settings = configuration(config)
    if settings.role != "hub":
        end(["the fleet is known at the hub; name the hub's configuration with -c"])
    try:
        fleet = status_of(settings)["fleet"]
    except AdminStatusError as error:
        end([str(error)], Exit.UNREACHABLE)
    rows = fleet_rows.rows_of(fleet, datetime.now(UTC))
    shown = list(fleet_rows.chosen(rows, patterns or (), only or ()))
    if as_json:
        body = {"hub": fleet.get("state", ""), "leaves": [row.as_json() for row in shown]}
        typer.echo(json.dumps(body, indent=2))
    else:
        most = None if everything else rows_that_fit(_RESERVED)
        draw(fleet_rows.lines(fleet, rows, shown, most, terminal_width()))
    raise typer.Exit(fleet_rows.fleet_exit(shown))


@app.command()
def add(
    config: ConfigFile,
    domain: Who,
    key: Annotated[str, typer.Argument(help="Its public key.", show_default=False)] = "",
    classes: Classes = None,
    tenant: Annotated[str, typer.Option(help="The tenant in whose account it is.", show_default=False)] = "",
) -> None:
    """Let a leaf in."""
    from agent.cli.members.edit import Enrolled, MemberError, added, enrolled

    if domain == "-":
        try:
            leaf = enrolled(sys.stdin.read(65_536))
        except MemberError as error:
            end([str(error)])
        leaf = dataclasses.replace(leaf, tenant=tenant)
    elif not key:
        end(["the key is missing; `petiole enrol` prints it on the leaf"])
    else:
        leaf = Enrolled(domain, key, tuple(classes or ()), tenant)
    _check(leaf)
    _change(config, leaf.domain, lambda text: added(text, leaf), f"{leaf.domain} is let in")
    if tenant:
        typer.echo(f"{leaf.domain} itself needs [link] tenant = true, or it gets no commands")


@app.command()
def replace(config: ConfigFile, domain: Domain, key: Key) -> None:
    """Let a leaf in with another key, and shut out the old one."""
    from agent.cli.members.edit import LEAVES, Enrolled, replaced

    _check(Enrolled(domain, key))
    _change(
        config,
        domain,
        lambda text: replaced(text, LEAVES, domain, key),
        f"{domain} is let in with its new key only; its server dials with it once it is started again",
    )


@app.command()
def revoke(config: ConfigFile, domain: Domain) -> None:
    """Shut a leaf out and cut its link. What it sent stays, and what it has not sent, on its machine."""
    from agent.cli.members.edit import LEAVES, revoked

    _change(config, domain, lambda text: revoked(text, LEAVES, domain), f"{domain} is shut out")


@app.command()
def forget(config: ConfigFile, domain: Domain) -> None:
    """Shut a leaf out and remove what the hub knows of it, but nothing of what it sent."""
    from agent.cli.members.apply import NotAppliedError, forget_leaf
    from agent.cli.members.edit import LEAVES, forgotten

    try:
        check_domain(domain)  # its record is named by a subject, in which * would be those of all leaves
    except ContractError as error:
        end([str(error)])

    def forget_record(settings: Config) -> None:
        account_key(settings)
        try:
            was_known = asyncio.run(forget_leaf(settings, domain))
        except NotAppliedError as error:
            end([str(error)], Exit.UNREACHABLE)
        typer.echo(
            f"{domain} is forgotten; its readings stay"
            if was_known
            else f"the hub has no record of {domain!r}"
        )

    _change(
        config,
        domain,
        lambda text: forgotten(text, LEAVES, domain),
        f"{domain} is shut out",
        f"{config} has no leaf {domain!r}",
        forget_record,
    )


@app.command()
def split(config: ConfigFile) -> None:
    """Move leaves of a cell that has more than [registrar] cell_leaves into further cells. A leaf with
    commands that have not expired stays."""
    from agent.cli.members.apply import (
        NotAppliedError,
        apply_members,
        apply_or_end,
        commanded,
        edited_or_end,
        loaded_or_end,
    )
    from agent.cli.members.edit import split as split_text

    with editing(config) as file:
        settings = configuration(config)
        if settings.role != "hub" or settings.nats.server != "embedded":
            end(["cells are of a hub whose server its agent runs; name its configuration with -c"])
        if settings.nats.cluster.on:
            end(["write `cell` into the [[leaf]] tables of each machine alike, and reload their agents"])
        account_key(settings)
        try:
            staying = asyncio.run(commanded(settings))
        except NotAppliedError as error:
            end([str(error)], Exit.UNREACHABLE)
        kept, moved, stayed = len(aggregates_of(settings, HOME)), list[str](), list[str]()

        def edit(text: str) -> str:
            new, moving, remaining = split_text(text, staying, kept)
            moved.extend(moving)
            stayed.extend(remaining)
            return new

        text = edited_or_end(file, edit)
        if stayed:
            typer.echo(
                f"{len(stayed)} leaves stay, for they have commands that have not expired, or take or give "
                f"streams ({', '.join(stayed[:5])}{', …' if stayed[5:] else ''})"
            )
        if not moved:
            typer.echo("no leaf moves")
            return
        settings = loaded_or_end(config, text)
        file.store(text)
        apply_or_end("the hub's agent", settings, apply_members(settings), f"{len(moved)} leaves move")


def _check(leaf: Enrolled) -> None:
    from agent.config.keys import is_public_key, is_seed

    if is_seed(leaf.key):
        end(["this is a private key, which now has been seen: make another one with `petiole enrol --new`"])
    if not is_public_key(leaf.key):
        end([f'"{leaf.key:.60}" is not a public key; copy the line that begins with U from `petiole enrol`'])


def _change(
    path: Path,
    domain: str,
    edit: Callable[[str], str],
    done: str,
    unchanged: str = "",
    then: Callable[[Config], None] = lambda _: None,
) -> None:
    """Edit a configuration's leaves under lock, and reload the hub's agent.

    Prints `done`, or for an unchanged text `unchanged` if given; then calls `then` with the configuration.
    """
    from agent.cli.members.apply import edited_or_end, loaded_or_end

    with editing(path) as file:
        text = edited_or_end(file, edit)
        settings = loaded_or_end(path, text)
        if settings.role != "hub":
            end(["leaves are let in at the hub; name the hub's configuration with -c"])
        file.store(text)
        _apply(settings, domain, unchanged if unchanged and text == file.text else done)
        then(settings)


def _apply(settings: Config, domain: str, done: str) -> None:
    from agent.cli.members.apply import apply_members, apply_or_end, fleet_of, unsent

    left = unsent(fleet_of(settings), domain)
    apply_or_end("the hub's agent", settings, apply_members(settings), done)
    if left and domain not in {leaf.domain for leaf in settings.leaf if leaf.key}:
        typer.echo(f"{left} messages that it announced are not at the hub, and stay on its machine")
    if settings.nats.server == "external":
        typer.echo(
            "the hub's server is not run by its agent: give it the same leaves (`petiole render`) and have "
            "it read them: nats-server --signal reload"
        )
