"""Readings of a plant as tests have them arrive: as agents send them, in batches, and refined by the job."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from agent.contract import Clock, Correction, Exit, batch_subject, machine_time
from hub_jobs.refine import run as refine
from tests.spark.lakes import add_bronze
from tests.unit.hub_jobs.rows import RUN, batch_headers, batch_row, header_block

SOON = timedelta(seconds=5)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DARK = "dark"
"""The boot of a machine whose clock was wrong."""


class Sent(NamedTuple):
    """A reading, and how long after its time it arrives at the hub. `booted` is when its machine was switched
    on, whose clock then showed 1970 and gave the reading its time; None where the time is the device's."""

    ts: datetime
    device: str
    metric: str
    value: float | str | bool
    late: timedelta = SOON
    domain: str = "edge-1"
    tags: tuple[tuple[str, str], ...] = ()
    booted: datetime | None = None


def ns(moment: datetime) -> int:
    """Nanoseconds since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1) * 1000


def bronze(sent: Iterable[Sent], run: str = RUN) -> list[dict[str, Any]]:
    """Rows of bronze, numbered by domain in the order of arrival: readings of one moment are a batch, which
    is sealed at once."""
    batches: dict[tuple[datetime, datetime, str, datetime | None], list[Sent]] = {}
    for reading in sent:
        batches.setdefault(
            (reading.ts + reading.late, reading.ts, reading.domain, reading.booted), []
        ).append(reading)
    numbers: dict[str, count[int]] = {}
    rows = []
    for (arrived, ts, domain, booted), held in sorted(batches.items(), key=lambda item: item[0][:3]):
        n = next(numbers.setdefault(domain, count(1)))
        rows.append(batch(b"".join(map(_line, held)), n, domain, (ts, arrived), booted, run))
    return rows


def batch(
    text: bytes,
    n: int,
    domain: str,
    times: tuple[datetime, datetime],
    booted: datetime | None = None,
    run: str = RUN,
) -> dict[str, Any]:
    """A batch of lines that was sealed and arrived at these times."""
    shown = _shown(times[0], booted)
    clock = Clock(booted is None, "boot" if booted is None else DARK, shown)
    lines = text.count(b"\n")
    headers = batch_headers(n, lines, run=run, sealed=(shown, clock))
    own = {"headers": header_block(headers), "subject": batch_subject(domain, "normal", "http"), "run": run}
    row = batch_row(text, n, lines, message_id=headers["Nats-Msg-Id"])
    return row | own | whence(domain, n, times[1])


def whence(domain: str, source_seq: int, arrived: datetime) -> dict[str, Any]:
    """The columns of bronze that say from where and when a message came."""
    return {
        "domain": domain,
        "source_stream": f"TEL_{domain}_normal",
        "source_seq": source_seq,
        "arrived": ns(arrived) // 1000,
    }


def correction(domain: str, booted: datetime, known: datetime) -> Correction:
    """What the agent says once it knows the time, of a machine that was switched on at `booted`."""
    return Correction(domain, DARK, 0, ns(known) - ns(booted), 0, ns(booted))


def fill(lake: Path, rows: list[dict[str, Any]]) -> None:
    """Ingest and refine."""
    add_bronze(lake, rows)
    assert refine.main(["--lake", str(lake)]) is Exit.WELL


def every(
    start: datetime, end: datetime, step: timedelta, *, but: tuple[datetime, datetime] | None = None
) -> list[datetime]:
    """Moments from `start` on and before `end`, but for those after the first of two and before the other."""
    moments = [start + step * at for at in range((end - start) // step + 1)]
    return [
        moment for moment in moments if moment < end and not (but is not None and but[0] < moment < but[1])
    ]


def _shown(ts: datetime, booted: datetime | None) -> int:
    """What the machine's clock showed, in nanoseconds since 1970."""
    return ns(ts) if booted is None else ns(ts) - ns(booted)


def _line(reading: Sent) -> bytes:
    ts = (
        reading.ts.isoformat() if reading.booted is None else machine_time(_shown(reading.ts, reading.booted))
    )
    line = {"ts": ts, "device": reading.device, "metric": reading.metric, "value": reading.value}
    return json.dumps(line | ({"tags": dict(reading.tags)} if reading.tags else {})).encode() + b"\n"
