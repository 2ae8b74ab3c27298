"""Finds times stamped by a wrong clock, and the error. Pure; times in microseconds.

A batch's seal (wall and monotonic time, kernel boot) dates its stamps unless the clock stepped in between;
each correction of that boot dates them by the earlier clock. The latest possible moment wins, because stamps
mostly precede the seal by little, and its correction applies.
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
"""Corrections by domain."""

_SLACK: Final = 50_000
"""Tolerance, since the agent reads its clocks in turn."""
_NEVER: Final = np.iinfo(np.int64).min


class SealTime(NamedTuple):
    """A batch's seal: `wall` in microseconds since 1970, `monotonic` in ns of `boot`."""

    wall: int
    boot: str
    monotonic: int


Batch = tuple[str, str, str, int]
"""Domain, class, run and number."""

PLACED: Final = ("ts", "ts_source", "domain", "class", "run", "n")
"""Columns that `errors_in` reads."""


def errors(stamps: Times, sealed: SealTime, corrections: Iterable[Correction]) -> Times:
    """Return the amounts to add to a batch's times stamped by the agent's machine."""
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
    """Return the amounts for rows of `readings`; 0 for corrected rows and other clocks."""
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
    """Return rows of `readings` with corrected times; keeps columns of other programs."""
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
