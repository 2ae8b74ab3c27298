"""Lists an agent's mirrors and sources with their true lag by comparing both ends.

The server's `lag` is 0 while the origin is unreachable; then the last announcement gives a lower bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from agent.base.terminal import BAD, GOOD, WAITS, TerminalLine, cut_short, table
from agent.cli.query import NONSENSE, cannot_ask, own_server
from agent.config import Config
from agent.config.mirrors import ResolvedOrigin
from agent.contract import (
    HUB_DOMAIN,
    ContractError,
    CursorRequest,
    api_prefix,
    cell_of,
    cursor_subject,
    leaf_stream,
    parse_cursor_answer,
)
from agent.hub.fleet_rows import behind_of
from agent.jetstream import JetStream, request
from agent.jetstream.connection import EXPECTED
from agent.mirrors.observation import StreamProbe

_AT_ONCE: Final = 64
_ALL_SECONDS: Final = 15.0
"""Timeout of all ends; others are shown as announced."""
_CURSOR_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class LinkRow:
    """A mirror or source."""

    stream: str
    kind: str
    domain: str
    """Origin domain, "" for this one."""
    origin: str
    active: float | None
    """Seconds since a message or heartbeat; None if unknown."""
    lag: int | None
    """Messages; None if unknown."""
    bound: bool = False
    """Whether `lag` is a lower bound."""
    state: str = ""
    """The fault in a sentence."""


def gather_links(config: Config, status: Mapping[str, Any]) -> tuple[list[LinkRow], str]:
    """Return rows, faults first, and why ends were not asked ("" if they were)."""
    look = _hub(config, status) if status["role"] == "hub" else _leaf(config, status)
    rows, problem = asyncio.run(look)
    return sorted([*rows, *map(_declared, status["links"])], key=_gravity), problem


def _gravity(row: LinkRow) -> tuple[bool, int, str, str]:
    return not row.state, -(row.lag or 0), row.stream, row.origin


def link_lines(
    rows: Sequence[LinkRow], problem: str, most: int | None, width: int | None
) -> list[TerminalLine]:
    """Format rows, at most `most`, with their faults."""
    shown = rows[:most]
    cells = [
        ((row.stream, row.kind, row.domain, row.origin, _active(row.active), _lag(row)), _style(row))
        for row in shown
    ]
    drawn = table(("STREAM", "KIND", "DOMAIN", "ORIGIN", "ACTIVE", "LAG"), cells, (4, 5), width)
    drawn += cut_short(len(rows) - len(shown))
    drawn += [
        TerminalLine(f"  {row.stream} from {row.origin}: {row.state}", _style(row))
        for row in shown
        if row.state
    ]
    if problem:
        drawn.append(TerminalLine(f"the lags are those last announced: {problem}", WAITS))
    return drawn


def _active(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}s"


def _lag(row: LinkRow) -> str:
    return "unknown" if row.lag is None else f"{'≥ ' if row.bound else ''}{row.lag}"


def _style(row: LinkRow) -> str:
    if row.state:
        return BAD
    return WAITS if row.lag is None or row.lag or row.bound else GOOD


def _declared(row: Mapping[str, Any]) -> LinkRow:
    stream, _, _ = str(row["link"]).partition(" from ")
    origin, _, place = str(row.get("of", "")).partition(" of ")
    well = bool(row.get("up")) and not row["lag"]
    state = "" if well else str(row["state"])
    active = row.get("active")
    domain = place.removeprefix("domain ") if place else HUB_DOMAIN
    return LinkRow(stream, str(row["kind"]), domain, origin, active, row["lag"], state=state)


async def _hub(config: Config, status: Mapping[str, Any]) -> tuple[list[LinkRow], str]:
    """Return the aggregates' sources."""
    members = status["fleet"].get("leaves", {})
    pairs = [(domain, cls) for domain, member in members.items() for cls in member.get("classes", {})]
    rows = {place: _announced(*place, members[place[0]]) for place in pairs}
    if not rows:
        return [], ""
    try:
        for cell in sorted({cell_of(row.stream) for row in rows.values()}):
            await _look_in(config, cell, members, rows)
    except (*EXPECTED, *NONSENSE) as error:
        return list(rows.values()), cannot_ask(config, error)
    return list(rows.values()), ""


async def _look_in(
    config: Config, cell: str, members: Mapping[str, Any], rows: dict[tuple[str, str], LinkRow]
) -> None:
    """Look at the sources in one cell."""
    async with own_server(config, cell) as link:
        js = JetStream(link.nc)
        ours = [place for place, row in rows.items() if cell_of(row.stream) == cell]
        streams = sorted({rows[place].stream for place in ours})
        infos = {name: await js.stream_info(name) for name in streams}
        positions = {
            (name, source["name"]): source.get("seq", 0)
            for name, info in infos.items()
            for source in info.sources
        }
        origin_probe = StreamProbe(HUB_DOMAIN, config.identity)
        places = asyncio.Semaphore(_AT_ONCE)

        async def look(domain: str, cls: str) -> None:
            row = rows[domain, cls]
            api = api_prefix(domain)
            async with places:
                there = await origin_probe.remote(link.nc, ResolvedOrigin(row.origin, domain, api, ""))
            cursor = max(
                members[domain]["classes"][cls]["cursor"], positions.get((row.stream, row.origin), 0)
            )
            if there.kind == "answers":
                rows[domain, cls] = replace(row, lag=max(0, there.newest - cursor), bound=False)

        await _all(look(*place) for place in ours)


async def _all(looks: Any) -> None:
    """Wait for all within a bound."""
    tasks: list[asyncio.Task[None]] = [asyncio.create_task(look) for look in looks]
    _, late = await asyncio.wait(tasks, timeout=_ALL_SECONDS)
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _announced(domain: str, cls: str, member: Mapping[str, Any]) -> LinkRow:
    held = member["classes"][cls]
    lag = behind_of(held)
    well = member["linked"] and not held.get("error") and member["state"] == "flowing"
    state = "" if well else held.get("error") or member["state"]
    return LinkRow(
        held["stream"],
        "source",
        domain,
        leaf_stream(domain, cls),
        held.get("active"),
        lag,
        bound=lag is not None,
        state=str(state),
    )


async def _leaf(config: Config, status: Mapping[str, Any]) -> tuple[list[LinkRow], str]:
    """Return the hub's sources of this leaf."""
    domain, classes = status["domain"], status["classes"]
    rows = {
        cls: LinkRow(
            row.get("hub_stream") or "at the hub",
            "source",
            domain,
            leaf_stream(domain, cls),
            None,
            max(0, row["last"] - row["confirmed"]),
            bound=True,
            state="" if row["state"] == "flowing" else row["sentence"],
        )
        for cls, row in classes.items()
    }
    try:
        async with own_server(config) as link:
            js = JetStream(link.nc)
            positions = await _held(link.nc, domain, status)
            for cls, row in rows.items():
                last = (await js.stream_info(row.origin)).last
                cursor = max(positions.get(cls, 0), classes[cls]["confirmed"])
                rows[cls] = replace(row, lag=max(0, last - cursor), bound=cls not in positions)
    except (*EXPECTED, *NONSENSE) as error:
        return list(rows.values()), cannot_ask(config, error)
    return list(rows.values()), ""


async def _held(nc: Any, domain: str, status: Mapping[str, Any]) -> dict[str, int]:
    """Return the hub's complete sequence of each class."""
    epochs = {cls: row["epoch"] for cls, row in status["classes"].items() if row.get("epoch")}
    question = CursorRequest(str(status.get("machine")), str(status.get("run")), epochs)
    try:
        message = await request(nc, cursor_subject(domain), question.encode(), _CURSOR_SECONDS)
        answer = parse_cursor_answer(message.data)
    except (*EXPECTED, ContractError):
        return {}
    return {cls: held.leaf_seq for cls, held in answer.held.items()}
