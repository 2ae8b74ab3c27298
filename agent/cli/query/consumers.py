"""Every consumer of the streams that an agent keeps, as their server reports it now: who reads, how far,
and how much is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from agent.base.terminal import GOOD, WAITS, TerminalLine, table
from agent.cli.query.admin_status import NONSENSE
from agent.config import Config
from agent.contract import COMMANDS, leaf_stream
from agent.jetstream import STREAM_NOT_FOUND, ApiError, ConsumerInfo, JetStream, nanoseconds
from agent.jetstream.connection import EXPECTED, connected

_REGISTRAR: Final = "registrar"
_COUNTS: Final = ("ACKED", "DELIVERED", "PENDING", "UNACKED", "AGAIN", "LAG", "ACTIVE")
_HEAD: Final = ("STREAM", "CONSUMER", *_COUNTS, "FILTER")


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A consumer of a stream. `ack_floor` and `delivered` are sequences of the stream, the others numbers of
    messages; `lag` is what is not acknowledged. `active` is the seconds since it last delivered, None where
    it never did."""

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

    def as_json(self) -> dict[str, Any]:
        """A row of `--json`."""
        return asdict(self)


def gather_consumers(
    config: Config, status: Mapping[str, Any], account: Path
) -> tuple[list[ConsumerRow], str]:
    """All rows, those that are furthest behind first, and why there are not all of them ("" if there are)."""
    rows: list[ConsumerRow] = []
    problem = asyncio.run(_ask(config, status, account, rows))
    return sorted(rows, key=lambda row: (-row.lag, row.stream, row.name)), problem


async def _ask(config: Config, status: Mapping[str, Any], account: Path, rows: list[ConsumerRow]) -> str:
    hub = status["role"] == "hub"
    identity = _REGISTRAR if hub else str(status["domain"])
    own = status["fleet"].get("aggregates", {}) if hub else status["classes"]
    streams = list(own) if hub else [leaf_stream(status["domain"], cls) for cls in own]
    try:
        async with connected(f"nats://{config.nats.listen}", account, identity) as link:
            js = JetStream(link.nc)
            for stream in [*streams, COMMANDS]:
                try:
                    rows += [_row(stream, info) async for info in js.consumers(stream)]
                except ApiError as error:
                    if error.err_code != STREAM_NOT_FOUND:
                        raise
    except (*EXPECTED, *NONSENSE) as error:
        why = str(error) or type(error).__name__
        return f"the NATS server at {config.nats.listen} cannot be asked ({why})"
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
    """The rows as a table, at most so many."""
    shown = rows if most is None else rows[:most]
    drawn = table(_HEAD, [(_cells(row), WAITS if row.lag else GOOD) for row in shown], range(2, 9), width)
    if len(shown) < len(rows):
        drawn.append(
            TerminalLine(f"and {len(rows) - len(shown)} more; all of them in a pipe or with --json", WAITS)
        )
    if problem:
        drawn.append(TerminalLine(f"not all could be asked: {problem}", WAITS))
    return drawn


def _cells(row: ConsumerRow) -> tuple[str, ...]:
    numbers = (row.ack_floor, row.delivered, row.pending, row.ack_pending, row.redelivered, row.lag)
    active = "never" if row.active is None else f"{row.active:.0f}s"
    return (row.stream, row.name, *map(str, numbers), active, row.filter)
