"""Implements `petiole lake show | adopt` for the lake behind which the hub deletes messages; run at the hub.

Exit codes: 0 done; 2 wrong usage; 4 the lake to replace is not the hub's; 5 server or agent can't be reached.
"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Final

import nats.errors
import typer

from agent.base.wait import timeout
from agent.cli.configuration import (
    AsJson,
    ConfigFile,
    account_key,
    configuration,
    end,
    end_unreachable,
    quiet,
)
from agent.cli.query import WHETHER_IT_RUNS, own_server
from agent.config import Config
from agent.contract import NEW_LAKE, Adoption, ContractError, Exit, check_lake, lake_subject
from agent.jetstream.connection import EXPECTED

app = typer.Typer(help="Which lake is this hub's.", no_args_is_help=True)

_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 20.0


@app.command()
def show(config: ConfigFile, as_json: AsJson = False) -> None:
    """Show the lake that the hub knows, and up to where it holds each stream."""
    lake = _ask(config, Adoption())
    if as_json:
        typer.echo(json.dumps(lake))
    elif lake is None:
        typer.echo("the hub knows no lake yet: the first one that ingest fills becomes its lake")
    else:
        typer.echo(f"{lake['id']}  {lake['place']}, reported {lake['at']}")
        for stream, (_, seq) in sorted(lake["streams"].items()):
            typer.echo(f"  {stream} up to {seq}")


@app.command()
def adopt(
    config: ConfigFile,
    lake: Annotated[
        str,
        typer.Argument(
            help=f"The id of the lake, as ingest names it, or `{NEW_LAKE}` for one that it makes next.",
            show_default=False,
        ),
    ],
    instead_of: Annotated[
        str, typer.Option(help="The id of the lake that is the hub's now.", show_default=False)
    ],
) -> None:
    """Have the hub delete behind another lake, a new one, or an older state of the same."""
    if lake != NEW_LAKE:
        try:
            check_lake(lake)
        except ContractError as error:
            end([f"{error}; or {NEW_LAKE}"])
    _ask(config, Adoption(lake, instead_of))
    whose = "the next lake that ingest fills" if lake == NEW_LAKE else lake
    typer.echo(f"the hub's lake is {whose}, instead of {instead_of}")


def _ask(config: ConfigFile, word: Adoption) -> dict[str, Any] | None:
    settings = configuration(config)
    quiet(settings)
    if settings.role != "hub":
        end(["a lake is the hub's; name the hub's configuration with -c"])
    account_key(settings)
    row = asyncio.run(_asked(settings, word))
    if "refused" in row:
        end([str(row["refused"])], Exit.CONFLICT)
    lake: dict[str, Any] | None = row["lake"]
    return lake


async def _asked(settings: Config, word: Adoption) -> dict[str, Any]:
    try:
        async with timeout(_CONNECT_SECONDS) as connecting, own_server(settings) as link:
            connecting.reschedule(None)
            try:
                reply = await link.nc.request(lake_subject(), word.encode(), timeout=_ANSWER_SECONDS)
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                end([f"no agent of the hub answers: {WHETHER_IT_RUNS}"], Exit.UNREACHABLE)
            row: dict[str, Any] = json.loads(reply.data)
            return row
    except EXPECTED as error:
        end_unreachable(settings, error, "the hub's")
