"""Builds Arrow rows of `readings` from lines and their messages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.refine.clocks import Corrections, SealTime, errors
from hub_jobs.refine.columns import LineColumns
from hub_jobs.refine.messages import BronzeMessage
from hub_jobs.refine.moments import Mask, Times
from hub_jobs.tables.grouping import coded_column
from hub_jobs.tables.schemas import READINGS, TIME

LineNumbers = npt.NDArray[np.int32]
"""Line numbers in their message, from 0."""
LinesOfMessage = tuple[BronzeMessage, LineNumbers]


def reading_rows(parts: Sequence[LinesOfMessage], lines: LineColumns, corrections: Corrections) -> pa.Table:
    """Return rows of `readings` for the lines of parts."""
    messages = [message for message, _ in parts]
    sizes = np.array([numbers.size for _, numbers in parts], dtype=np.int64)
    owner = np.repeat(np.arange(len(parts), dtype=np.int32), sizes)
    given = lines.moments
    default = np.array([message.default_ts for message in messages], dtype=np.int64)[owner]
    stamps = np.where(given.own, given.stamps, default)
    clocks = np.array([_CLOCKS.index(message.ts_source) for message in messages], dtype=np.int32)[owner]
    clocks = np.where(given.own & ~(given.machine & (clocks == _AGENT)), 0, clocks).astype(np.int32)
    error = _errors(parts, stamps, clocks == _AGENT, corrections)
    moments = pa.array(stamps + error).cast(TIME)
    device = lines.device
    if device.null_count:
        domains = pa.array([message.domain for message in messages], pa.string())
        device = pc.coalesce(device, domains.take(pa.array(owner)))
    arrays = {
        "ts": moments,
        "ts_source": coded_column(np.where(error != 0, _CORRECTED, clocks).astype(np.int32), _CLOCKS),
        "domain": coded_column(owner, [message.domain for message in messages]),
        "device": device.dictionary_encode(),
        "metric": lines.metric.dictionary_encode(),
        "value": lines.value,
        "text": lines.text,
        "tags": lines.tags,
        "class": coded_column(owner, [message.cls for message in messages]),
        "run": coded_column(owner, [message.run for message in messages]),
        "n": _number(owner, [message.n for message in messages]),
        "index": pa.array(np.concatenate([_NO_NUMBERS, *(numbers for _, numbers in parts)])),
        "arrived": _number(owner, [message.arrived for message in messages]).cast(TIME),
        "event_date": moments.cast(pa.date32()),
        "source_stream": coded_column(owner, [message.source_stream for message in messages]),
        "source_identity": coded_column(owner, [message.source_identity for message in messages]),
        "source_seq": _number(owner, [message.source_seq for message in messages]),
        "ts_original": pa.array(stamps, mask=error == 0).cast(TIME),
        "value_array": lines.array,
        "value_bytes": lines.content,
    }
    return pa.table(arrays).select(READINGS.names)


def _errors(
    parts: Sequence[LinesOfMessage], stamps: Times, by_machine: Mask, corrections: Corrections
) -> Times:
    found = np.zeros(len(stamps), dtype=np.int64)
    first = 0
    for message, numbers in parts if corrections else ():
        rows = slice(first, first + numbers.size)
        first = rows.stop
        known = corrections.get(message.domain or "", ())
        if known and message.clock is not None:
            sealed = SealTime(message.default_ts, message.clock.boot, message.clock.monotonic)
            found[rows] = np.where(by_machine[rows], errors(stamps[rows], sealed, known), 0)
    return found


_NO_NUMBERS: Final = np.array([], dtype=np.int32)
_CLOCKS: Final = ("device", "agent", "hub", "corrected")
_AGENT: Final = 1
_CORRECTED: Final = 3


def _number(owner: npt.NDArray[np.int32], numbers: Sequence[int | None]) -> pa.Array:
    return pa.array(numbers, pa.int64()).take(pa.array(owner))
