"""Which times were stamped by a clock that was wrong, and by how much. Pure; times in microseconds.

What a batch says of its sealing (wall and monotonic time, kernel boot) tells when each of its times was
stamped, if the clock was not stepped in between; each correction of that boot tells it for the clock as it
was. What was stamped was stamped before it was sealed, and mostly just before: the latest of these moments
that is possible counts, and with it the correction that it came from, or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import EPOCH_LIMIT, Correction
from hub_jobs.refine.moments import Times
from hub_jobs.tables.parquet_reading import fitted, with_more
from hub_jobs.tables.schemas import READINGS, TIME

Corrections = Mapping[str, Sequence[Correction]]
"""By domain."""

_SLACK: Final = 50_000
"""The agent reads its clocks one after the other."""
_NEVER: Final = np.iinfo(np.int64).min


class SealTime(NamedTuple):
    """When a batch was sealed: `wall` in microseconds since 1970, `monotonic` in ns of `boot`."""

    wall: int
    boot: str
    monotonic: int


Batch = tuple[str, str, str, int]
"""Domain, class, run and number."""

PLACED: Final = ("ts", "ts_source", "domain", "class", "run", "n")
"""The columns of readings that `errors_in` looks at."""


def errors(stamps: Times, sealed: SealTime, corrections: Iterable[Correction]) -> Times:
    """What is to be added to times that the agent's machine stamped and that came in one batch."""
    upto = sealed.monotonic // 1000
    moments = np.where(stamps <= sealed.wall + _SLACK, stamps - (sealed.wall - upto), _NEVER)
    found = np.zeros(len(stamps), dtype=np.int64)
    for correction in corrections:
        if correction.boot != sealed.boot:
            continue
        by = correction.by // 1000
        then = stamps - correction.offset // 1000
        possible = (
            (correction.since // 1000 - _SLACK <= then)
            & (then < correction.until // 1000)
            & (then <= upto + _SLACK)
        )
        possible &= (stamps + by >= 0) & (stamps + by <= EPOCH_LIMIT * 1_000_000)
        later = possible & (then > np.maximum(moments, _NEVER + _SLACK) - _SLACK)
        moments = np.where(later, then, moments)
        found = np.where(later, by, found)
    return found


def errors_in(
    readings: pa.Table, corrections: Sequence[Correction], sealed: Mapping[Batch, SealTime]
) -> Times:
    """The same for rows of `readings`; 0 for what was not stamped by the machine or is corrected already."""
    found = np.zeros(readings.num_rows, dtype=np.int64)
    chosen = np.flatnonzero(pc.equal(readings["ts_source"], "agent").to_numpy())
    by_batch: dict[Batch, list[int]] = {}
    columns = [readings[name].take(chosen).to_pylist() for name in ("domain", "class", "run", "n")]
    for at, batch in zip(chosen.tolist(), zip(*columns, strict=True), strict=True):
        if batch in sealed:
            by_batch.setdefault(batch, []).append(at)
    stamps = readings["ts"].cast(pa.int64()).to_numpy()
    for batch, rows in by_batch.items():
        mine = [correction for correction in corrections if correction.domain == batch[0]]
        found[rows] = errors(stamps[rows], sealed[batch], mine)
    return found


def with_errors(readings: pa.Table, found: Times) -> pa.Table:
    """Rows of `readings` with their times corrected, in the newest columns; those that another program has
    added stay."""
    wrong = pa.array(found != 0)
    schema = with_more(READINGS, readings.schema)
    rows = fitted(readings, schema)  # a file may be older than a column
    original = rows["ts"]
    ts = pc.add(original.cast(pa.int64()), pa.array(found)).cast(TIME)
    changed = {
        "ts": ts,
        "ts_source": pc.if_else(wrong, "corrected", rows["ts_source"]),
        "event_date": ts.cast(pa.date32()),
        "ts_original": pc.if_else(wrong, original, rows["ts_original"]),
    }
    return pa.table([changed.get(name, rows[name]) for name in schema.names], schema=schema)
