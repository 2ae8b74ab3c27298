"""`petiole fleet`: all leaves as the hub's agent knows them, those in trouble first.

Exit codes: 0 none of the leaves that are shown needs somebody; 3 one does, its agent is silent, or it is
linked and nothing flows; 2 wrong usage; 5 the hub's agent does not answer.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Final

import typer

from agent.cli.configuration import ConfigFile, configuration, end
from agent.contract import Exit

_RESERVED: Final = 4
"""Lines of a terminal that are not rows."""


class FleetStateName(StrEnum):
    """How a leaf is, in one word; as in `agent.hub.fleet_rows.STATES`, which is not held in memory here."""

    TROUBLE = "trouble"
    SILENT = "silent"
    STOPPED = "stopped"
    AWAY = "away"
    NEVER = "never"
    FLOWING = "flowing"


Patterns = Annotated[
    list[str] | None, typer.Argument(help="Only these domains; * and ? fit any.", show_default=False)
]
Only = Annotated[
    list[FleetStateName] | None,
    typer.Option("--only", help="Only leaves in this state; may be given several times."),
]
All = Annotated[bool, typer.Option("--all", help="On a terminal too, all rows, not those that fit.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def command(
    config: ConfigFile,
    patterns: Patterns = None,
    only: Only = None,
    everything: All = False,
    as_json: AsJson = False,
) -> None:
    """List the leaves: how each is, when it was last heard and how many messages the hub lacks."""
    from agent.base.terminal import draw, rows_that_fit, terminal_width
    from agent.cli.query.admin_status import AdminStatusError, status_of
    from agent.hub import fleet_rows

    settings = configuration(config)
    if settings.role != "hub":
        end(["the fleet is known at the hub; name the hub's configuration with -c"])
    try:
        fleet = status_of(settings.admin)["fleet"]
    except AdminStatusError as error:
        end([str(error)], Exit.UNREACHABLE)
    rows = fleet_rows.rows_of(fleet, fleet_rows.now())
    shown = fleet_rows.chosen(rows, patterns or (), only or ())
    if as_json:
        body = {"hub": fleet.get("state", ""), "leaves": [row.as_json() for row in shown]}
        typer.echo(json.dumps(body, indent=2))
    else:
        most = None if everything else rows_that_fit(_RESERVED)
        draw(fleet_rows.lines(fleet, rows, shown, most, terminal_width()))
    raise typer.Exit(Exit.LOSS if any(row.state in fleet_rows.GRAVE for row in shown) else Exit.WELL)
