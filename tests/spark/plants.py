"""Readings of a plant as tests have them arrive: as agents send them, in batches, and refined by the job."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from agent.contract import Clock, Exit, batch_subject
from hub_jobs import refine
from tests.spark.lakes import add_bronze
from tests.unit.hub_jobs.rows import RUN, batch_headers, batch_row, header_block

SOON = timedelta(seconds=5)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Sent(NamedTuple):
    """A reading, and how long after its time it arrives at the hub."""

    ts: datetime
    device: str
    metric: str
    value: float | str | bool
    late: timedelta = SOON
    domain: str = "edge-1"
    tags: tuple[tuple[str, str], ...] = ()


def ns(moment: datetime) -> int:
    """Nanoseconds since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1) * 1000


def bronze(sent: Iterable[Sent], run: str = RUN) -> list[dict[str, Any]]:
    """Rows of bronze: what of a domain arrives at one moment is a batch."""
    batches: dict[tuple[datetime, str], list[Sent]] = {}
    for one in sent:
        batches.setdefault((one.ts + one.late, one.domain), []).append(one)
    numbers: dict[str, count[int]] = {}
    rows = []
    for (arrived, domain), held in sorted(batches.items()):
        n = next(numbers.setdefault(domain, count(1)))
        sealed = (ns(arrived), Clock(True, "boot", ns(arrived)))
        headers = batch_headers(n, len(held), run=run, sealed=sealed)
        rows.append(
            batch_row(
                b"".join(map(_line, held)),
                n,
                run=run,
                domain=domain,
                arrived=ns(arrived) // 1000,
                source_stream=f"TEL_{domain}_normal",
                source_seq=n,
                message_id=headers["Nats-Msg-Id"],
            )
            | {"headers": header_block(headers), "subject": batch_subject(domain, "normal", "http")}
        )
    return rows


def fill(lake: Path, rows: list[dict[str, Any]]) -> None:
    """Ingest and refine."""
    add_bronze(lake, rows)
    assert refine.main(["--lake", str(lake)]) is Exit.WELL


def every(
    start: datetime, end: datetime, step: timedelta, *, but: tuple[datetime, datetime] | None = None
) -> list[datetime]:
    """Moments from `start` on and before `end`, but for those after the first of two and before the other."""
    moments = [start + step * at for at in range((end - start) // step + 1)]
    return [one for one in moments if one < end and not (but is not None and but[0] < one < but[1])]


def _line(one: Sent) -> bytes:
    reading = {"ts": one.ts.isoformat(), "device": one.device, "metric": one.metric, "value": one.value}
    return json.dumps(reading | ({"tags": dict(one.tags)} if one.tags else {})).encode() + b"\n"
