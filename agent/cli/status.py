"""`petiole status`: what the running agent says of itself, from its admin server.

Exit codes: 0 all is well or on its way; 3 the link needs somebody's attention; 5 the agent does not answer.
"""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer

from agent.cli.configuration import ConfigFile, configuration, end
from agent.contract import Exit

_SECONDS: Final = 5.0
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def command(
    config: ConfigFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print what /status answers.")] = False,
) -> None:
    """Say how the link is, class by class, and how long until something would be lost."""
    settings = configuration(config)
    status = ask(settings.admin.listen)
    if as_json:
        typer.echo(json.dumps(status, indent=2))
    else:
        for line in lines(status):
            typer.echo(line)
    raise typer.Exit(Exit.WELL if _is_well(status) else Exit.LOSS)


def ask(listen: str) -> dict[str, Any]:
    """What the agent's `/status` answers, or the end of the process."""
    url = f"http://{listen}/status"
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            status: dict[str, Any] = json.loads(answer.read())
            return status
    except (OSError, ValueError) as error:
        end(
            [f"the agent does not answer at {url} ({error}); see whether `petiole run` runs"],
            Exit.UNREACHABLE,
        )


def lines(status: Mapping[str, Any]) -> Iterator[str]:
    """The status in words, a fact a line."""
    if status["role"] == "hub":
        yield from _fleet(status["fleet"])
        return
    yield f"{status['domain']}: {status['link']['sentence']}"
    for name, one in status["classes"].items():
        waiting = max(0, one["last"] - one["confirmed"])
        stored = f"stored up to {one['last']}, {waiting} not confirmed by the hub"
        yield f"  class {name}: {one['state']}; {stored}"
        yield f"    time to first loss: {_duration(one['seconds_to_loss'])}"
        if why := one.get("held_back"):
            yield f"    held back: {why}"
        if gone := one.get("discarded"):
            yield f"    discarded before the hub had them: {_discarded(gone)}"
        if one["state"] != status["link"]["state"]:
            yield f"    {one['sentence']}"
    for link in status["links"]:
        lag = "lag unknown" if link["lag"] is None else f"lag {link['lag']}"
        yield f"  {link['kind']} {link['link']}: {link['state']} ({lag})"
    if trouble := status.get("server", {}).get("warning"):
        yield f"  server: {trouble}"


def _discarded(gone: Mapping[str, Any]) -> str:
    doubt = f"; {gone['in_doubt']} messages more, unless the hub has them" if gone["in_doubt"] else ""
    return f"{gone['readings']} readings and {gone['direct']} messages of devices{doubt}"


def _fleet(fleet: Mapping[str, Any]) -> Iterator[str]:
    if not fleet:
        yield "hub: its NATS server has not answered yet"
        return
    yield f"hub: {fleet['state']}"
    for name, one in fleet["aggregates"].items():
        size = f"{one['bytes']} of {one['max_bytes']} bytes"
        yield f"  {name}: {one['sources']} sources, {size}; {one['state']}"
    for domain, one in fleet["leaves"].items():
        yield f"  {domain}: {one['state']}"


def _is_well(status: Mapping[str, Any]) -> bool:
    return status["role"] == "hub" or not status["link"]["attention"]


def _duration(seconds: float | None) -> str:
    """Seconds as people say them; JSON has no infinity, so it comes as null."""
    if seconds is None or math.isinf(seconds):
        return "none: the backlog does not grow"
    for size, name in ((_DAY, "days"), (_HOUR, "hours"), (_MINUTE, "minutes")):
        if seconds >= 2 * size:
            return f"about {seconds / size:.0f} {name}"
    return f"about {seconds:.0f} seconds"
