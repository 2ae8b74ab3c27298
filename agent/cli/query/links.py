"""Every mirror and source that an agent keeps, with its true lag: both ends are asked now, and compared.

The server's own `lag` is not shown: it is what the last message that came had said, so it stays 0 while the
origin is away. Where an end does not answer, what was last announced stands in for it, and is called a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from agent.base.terminal import BAD, GOOD, WAITS, TerminalLine, table
from agent.cli.query.admin_status import NONSENSE
from agent.config import Config
from agent.config.mirrors import ResolvedOrigin
from agent.contract import (
    HUB_DOMAIN,
    ContractError,
    CursorRequest,
    api_prefix,
    cursor_subject,
    leaf_stream,
    parse_cursor_answer,
)
from agent.jetstream import JetStream, request
from agent.jetstream.connection import EXPECTED, connected
from agent.mirrors.probe import StreamProbe

_AT_ONCE: Final = 64
_ALL_SECONDS: Final = 15.0
"""All ends have answered by then, or are shown as they were last announced."""
_CURSOR_SECONDS: Final = 2.0
_REGISTRAR: Final = "registrar"


@dataclass(frozen=True, slots=True)
class LinkRow:
    """A mirror or source: `stream` takes from `origin` of a domain ("" for this one). `active` is the seconds
    since a sign of life, None where it was never heard or that is not known; `lag` is in messages, None where
    it is not known, and at least so many where it is a `bound`. `state` says what is wrong, "" if nothing
    is."""

    stream: str
    kind: str
    domain: str
    origin: str
    active: float | None
    lag: int | None
    bound: bool = False
    state: str = ""

    def as_json(self) -> dict[str, Any]:
        """A row of `--json`."""
        return asdict(self)


def gather(config: Config, status: Mapping[str, Any], account: Path) -> tuple[list[LinkRow], str]:
    """All rows, those in trouble first, and why the ends could not be asked ("" if they could)."""
    look = _hub(config, status, account) if status["role"] == "hub" else _leaf(config, status, account)
    rows, problem = asyncio.run(look)
    return sorted([*rows, *map(_declared, status["links"])], key=_gravity), problem


def _gravity(row: LinkRow) -> tuple[bool, int, str, str]:
    return not row.state, -(row.lag or 0), row.stream, row.origin


def lines(rows: Sequence[LinkRow], problem: str, most: int | None, width: int | None) -> list[TerminalLine]:
    """The rows as a table, at most so many, and then what is wrong with each, in words."""
    shown = rows if most is None else rows[:most]
    cells = [
        ((one.stream, one.kind, one.domain, one.origin, _active(one.active), _lag(one)), _style(one))
        for one in shown
    ]
    found = table(("STREAM", "KIND", "DOMAIN", "ORIGIN", "ACTIVE", "LAG"), cells, (4, 5), width)
    if len(shown) < len(rows):
        found.append(
            TerminalLine(f"and {len(rows) - len(shown)} more; all of them in a pipe or with --json", WAITS)
        )
    found += [
        TerminalLine(f"  {one.stream} from {one.origin}: {one.state}", _style(one))
        for one in shown
        if one.state
    ]
    if problem:
        found.append(TerminalLine(f"the lags are those last announced: {problem}", WAITS))
    return found


def _active(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}s"


def _lag(one: LinkRow) -> str:
    return "unknown" if one.lag is None else f"{'≥ ' if one.bound else ''}{one.lag}"


def _style(one: LinkRow) -> str:
    if one.state:
        return BAD
    return WAITS if one.lag is None or one.lag or one.bound else GOOD


def _declared(row: Mapping[str, Any]) -> LinkRow:
    stream, _, _ = str(row["link"]).partition(" from ")
    origin, _, place = str(row.get("of", "")).partition(" of ")
    well = bool(row.get("up")) and not row["lag"]
    state = "" if well else str(row["state"])
    active = row.get("active")
    domain = place.removeprefix("domain ") if place else HUB_DOMAIN
    return LinkRow(stream, str(row["kind"]), domain, origin, active, row["lag"], state=state)


async def _hub(config: Config, status: Mapping[str, Any], account: Path) -> tuple[list[LinkRow], str]:
    """The sources of the aggregates."""
    members = status["fleet"].get("leaves", {})
    asked = [(domain, cls) for domain, one in members.items() for cls in one.get("classes", {})]
    rows = {place: _announced(*place, members[place[0]]) for place in asked}
    if not rows:
        return [], ""
    try:
        async with connected(f"nats://{config.nats.listen}", account, _REGISTRAR) as link:
            js = JetStream(link.nc)
            streams = sorted({row.stream for row in rows.values()})
            infos = {name: await js.stream_info(name) for name in streams}
            held = {
                (name, one["name"]): one.get("seq", 0) for name, info in infos.items() for one in info.sources
            }
            asker = StreamProbe(HUB_DOMAIN, _REGISTRAR)
            places = asyncio.Semaphore(_AT_ONCE)

            async def look(domain: str, cls: str) -> None:
                row = rows[domain, cls]
                api = api_prefix(domain)
                async with places:
                    there = await asker.origin(link.nc, ResolvedOrigin(row.origin, domain, api, ""))
                cursor = max(members[domain]["classes"][cls]["cursor"], held.get((row.stream, row.origin), 0))
                if there.kind == "answers":
                    rows[domain, cls] = replace(row, lag=max(0, there.newest - cursor), bound=False)

            await _all(look(*place) for place in asked)
    except (*EXPECTED, *NONSENSE) as error:
        return list(rows.values()), _why(config, error)
    return list(rows.values()), ""


async def _all(looks: Any) -> None:
    """Wait for all of them, but not for ever."""
    tasks: list[asyncio.Task[None]] = [asyncio.create_task(one) for one in looks]
    _, late = await asyncio.wait(tasks, timeout=_ALL_SECONDS)
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _announced(domain: str, cls: str, member: Mapping[str, Any]) -> LinkRow:
    one = member["classes"][cls]
    lag = None if one["last"] is None else max(0, one["last"] - one["cursor"])
    well = member["linked"] and not one.get("error") and member["state"] == "flowing"
    state = "" if well else one.get("error") or member["state"]
    return LinkRow(
        one["stream"],
        "source",
        domain,
        leaf_stream(domain, cls),
        one.get("active"),
        lag,
        bound=lag is not None,
        state=str(state),
    )


async def _leaf(config: Config, status: Mapping[str, Any], account: Path) -> tuple[list[LinkRow], str]:
    """The hub's sources that take from this leaf."""
    domain, classes = status["domain"], status["classes"]
    rows = {
        cls: LinkRow(
            one.get("hub_stream") or "at the hub",
            "source",
            domain,
            leaf_stream(domain, cls),
            None,
            max(0, one["last"] - one["confirmed"]),
            bound=True,
            state="" if one["state"] == "flowing" else one["sentence"],
        )
        for cls, one in classes.items()
    }
    try:
        async with connected(f"nats://{config.nats.listen}", account, domain) as link:
            js = JetStream(link.nc)
            held = await _held(link.nc, domain, status)
            for cls, row in rows.items():
                last = (await js.stream_info(row.origin)).last
                cursor = max(held.get(cls, 0), classes[cls]["confirmed"])
                rows[cls] = replace(row, lag=max(0, last - cursor), bound=cls not in held)
    except (*EXPECTED, *NONSENSE) as error:
        return list(rows.values()), _why(config, error)
    return list(rows.values()), ""


async def _held(nc: Any, domain: str, status: Mapping[str, Any]) -> dict[str, int]:
    """Up to which sequence of each class the hub holds everything, of those for which it says so now."""
    epochs = {cls: one["epoch"] for cls, one in status["classes"].items() if one.get("epoch")}
    question = CursorRequest(str(status.get("machine")), str(status.get("run")), epochs)
    try:
        message = await request(nc, cursor_subject(domain), question.encode(), _CURSOR_SECONDS)
        answer = parse_cursor_answer(message.data)
    except (*EXPECTED, ContractError):
        return {}
    return {cls: one.leaf_seq for cls, one in answer.held.items()}


def _why(config: Config, error: Exception) -> str:
    nonsense = "it answers what no JetStream answers: " if isinstance(error, NONSENSE) else ""
    why = f"{nonsense}{str(error) or type(error).__name__}"
    return f"the NATS server at {config.nats.listen} cannot be asked ({why})"
