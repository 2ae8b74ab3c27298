"""Reads hub streams of one domain by headers, and consumers of an agent's streams. Read-only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent.base.terminal import GOOD, WAITS, TerminalLine, cut_short, table
from agent.base.wait import timeout
from agent.cli.query import NONSENSE, cannot_ask, own_server
from agent.config import Config, cell_of_leaf, cells
from agent.contract import (
    COMMANDS,
    H_CLOCK,
    H_COUNT,
    H_MESSAGE_ID,
    H_SEALED_AT,
    HOME,
    MAX_UNPACKED_BYTES,
    ContractError,
    WaitingLedger,
    WaitingMessage,
    cell_of,
    leaf_stream,
    ledger_subject,
    parse_message_id,
    parse_subject,
)
from agent.jetstream import STREAM_NOT_FOUND, ConsumerInfo, JetStream, StreamInfo, nanoseconds, unless_refused
from agent.jetstream.connection import EXPECTED
from agent.jetstream.readers import StoredHeaders, read_headers

MOST: Final = 500_000
"""Most headers read, about ten seconds of work."""
_SECONDS: Final = 60.0
_AHEAD_SECONDS: Final = 3_600
_DIGITS: Final = 19


class HubBacklogError(Exception):
    """Streams can't be read; the text has the reason."""


@dataclass(slots=True)
class AggregatePosition:
    """An aggregate's first, last and ingested sequence."""

    stream: str
    after: int
    """The tables' sequence."""
    first: int
    last: int


@dataclass(slots=True)
class HubBacklog:
    """Messages of a domain that are not in the tables."""

    messages: list[WaitingMessage] = field(default_factory=list)
    ledgers: list[WaitingLedger] = field(default_factory=list)
    places: list[AggregatePosition] = field(default_factory=list)
    cut: bool = False


async def look(
    config: Config,
    domain: str,
    streams: Sequence[str],
    classes: Sequence[str],
    ingested: Callable[[str, str], int],
) -> HubBacklog:
    """Read aggregates; `ingested` returns a stream's ingested sequence. Raises `HubBacklogError`."""
    backlog = HubBacklog()
    try:
        async with timeout(_SECONDS), own_server(config, cell_of_leaf(config, domain)) as link:
            js = JetStream(link.nc)
            for stream in streams:
                info = await js.stream_info(stream)
                place = AggregatePosition(stream, _after(info, ingested), info.first, info.last)
                backlog.places.append(place)
                for cls in classes:
                    message = await js.get_message(stream, last_by_subject=ledger_subject(domain, cls))
                    if message is not None:
                        backlog.ledgers.append(WaitingLedger(cls, stream, message.seq, message.data))
                if place.after < info.last:
                    await _read(link.nc, js, domain, place, backlog)
        return backlog
    except EXPECTED as error:
        why = str(error) or f"no answer within {_SECONDS:.0f} s"
    except NONSENSE as error:
        why = f"it answers what no JetStream answers ({type(error).__name__}: {error})"
    raise HubBacklogError(f"the hub's NATS server at {config.nats.listen} cannot be asked: {why}")


async def _read(nc: Any, js: JetStream, domain: str, place: AggregatePosition, backlog: HubBacklog) -> None:
    start = {
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": max(place.after + 1, place.first, 1),
        "filter_subject": f"tel.{domain}.>",
    }

    def take(message: StoredHeaders) -> None:
        if (held := _held(domain, message)) is not None:
            backlog.messages.append(held)

    whole = await read_headers(nc, js, place.stream, start, take, lambda: len(backlog.messages) >= MOST)
    backlog.cut = backlog.cut or not whole


def _after(info: StreamInfo, ingested: Callable[[str, str], int]) -> int:
    """Return the tables' sequence; a restored stream ends earlier and is read again."""
    done = ingested(info.name, info.created)
    return done if done <= info.last else 0


def _held(domain: str, message: StoredHeaders) -> WaitingMessage | None:
    """Return a message with readings, or None."""
    try:
        subject = parse_subject(message.subject)
    except ContractError:
        return None
    if subject.domain != domain or subject.kind not in ("batch", "dead", "direct"):
        return None
    headers = message.headers
    moment = _moment(headers, message.time)
    if subject.kind == "direct":
        return WaitingMessage(subject.cls, None, None, 1, False, moment)
    try:
        ident = parse_message_id(headers.get(H_MESSAGE_ID, ""))
    except ContractError:
        return WaitingMessage(subject.cls, None, None, 1, False, moment)
    count = headers.get(H_COUNT, "")
    readings = int(count) if count.isdecimal() and len(count) <= _DIGITS else 0
    # A line has a byte at least; who has the agent's key may write any number there.
    readings = readings if readings <= MAX_UNPACKED_BYTES else 0
    return WaitingMessage(subject.cls, ident.run, ident.n, readings, subject.kind == "dead", moment)


def _moment(headers: Mapping[str, str], arrived: float) -> int:
    sealed = headers.get(H_SEALED_AT, "")
    if sealed.isdecimal() and len(sealed) <= _DIGITS:
        seconds = int(sealed) / 1e9
        if headers.get(H_CLOCK, "").startswith("synchronised=yes") and seconds <= arrived + _AHEAD_SECONDS:
            return int(sealed) // 1000
    return int(arrived * 1e6)


_COUNTS: Final = ("ACKED", "DELIVERED", "PENDING", "UNACKED", "AGAIN", "LAG", "ACTIVE")
_HEAD: Final = ("STREAM", "CONSUMER", *_COUNTS, "FILTER")


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A consumer. `ack_floor` and `delivered` are sequences; `lag` counts unacknowledged messages.

    `active` is seconds since its last delivery, None for never.
    """

    stream: str
    name: str
    filter: str
    ack_floor: int
    delivered: int
    pending: int
    ack_pending: int
    redelivered: int
    lag: int
    active: float | None


def gather_consumers(config: Config, status: Mapping[str, Any]) -> tuple[list[ConsumerRow], str]:
    """Return rows, largest lag first, and why some are missing ("" if none)."""
    rows: list[ConsumerRow] = []
    problem = asyncio.run(_ask(config, status, rows))
    return sorted(rows, key=lambda row: (-row.lag, row.stream, row.name)), problem


async def _ask(config: Config, status: Mapping[str, Any], rows: list[ConsumerRow]) -> str:
    hub = status["role"] == "hub"
    own = status["fleet"].get("aggregates", {}) if hub else status["classes"]
    streams = list(own) if hub else [leaf_stream(status["domain"], cls) for cls in own]
    try:
        for cell in cells(config) if hub else [HOME]:
            async with own_server(config, cell) as link:
                js = JetStream(link.nc)
                for stream in [*(name for name in streams if cell_of(name) == cell), COMMANDS]:
                    with unless_refused(STREAM_NOT_FOUND):
                        rows += [_row(stream, info) async for info in js.consumers(stream)]
    except (*EXPECTED, *NONSENSE) as error:
        return cannot_ask(config, error)
    return ""


def _row(stream: str, info: ConsumerInfo) -> ConsumerRow:
    filters = info.config.get("filter_subjects") or [info.config.get("filter_subject") or ">"]
    at = info.delivered_at
    return ConsumerRow(
        stream,
        info.name,
        ", ".join(filters),
        info.ack_floor,
        info.delivered,
        info.pending,
        info.ack_pending,
        info.redelivered,
        info.pending + info.ack_pending,
        max(0.0, time.time() - nanoseconds(at) / 1e9) if at else None,
    )


def consumer_lines(
    rows: Sequence[ConsumerRow], problem: str, most: int | None, width: int | None
) -> list[TerminalLine]:
    """Format rows, at most `most`."""
    shown = rows[:most]
    drawn = table(_HEAD, [(_cells(row), WAITS if row.lag else GOOD) for row in shown], range(2, 9), width)
    drawn += cut_short(len(rows) - len(shown))
    if problem:
        drawn.append(TerminalLine(f"not all could be asked: {problem}", WAITS))
    return drawn


def _cells(row: ConsumerRow) -> tuple[str, ...]:
    numbers = (row.ack_floor, row.delivered, row.pending, row.ack_pending, row.redelivered, row.lag)
    active = "never" if row.active is None else f"{row.active:.0f}s"
    return (row.stream, row.name, *map(str, numbers), active, row.filter)
