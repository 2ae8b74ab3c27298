"""A number for the contents of each reading and of each line in quarantine, so that the sums of a batch agree
where its contents do. It depends on a secret of the audit that counts, so nobody can make two contents agree.
Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.audit.count_rows import marks
from hub_jobs.tables.ranges import Numbers
from hub_jobs.tables.schemas import TIME

READ: Final = (
    *("ts", "ts_source", "device", "metric", "value", "text", "tags"),
    *("index", "event_date", "ts_original"),
)
"""The columns of readings that are compared. Of a reading whose time was corrected it is what the clock had
said."""
_TEXTS: Final = ("device", "metric", "text")
_NO_LINE: Final = -1


def of_readings(rows: pa.Table, secret: bytes) -> Numbers:
    """The numbers of some readings."""
    source = rows["ts_source"].cast(pa.string())
    ts = rows["ts"].cast(TIME)
    stamps = pc.coalesce(rows["ts_original"].cast(TIME), ts)
    found = marks(rows["index"].cast(pa.int64()).to_numpy())
    found = marks(found ^ stamps.cast(pa.int64()).to_numpy())
    found = marks(found ^ _hashed(pc.if_else(pc.equal(source, "corrected"), "agent", source), secret))
    for name in _TEXTS:
        found = marks(found ^ _hashed(rows[name].cast(pa.string()), secret))
    found = marks(found ^ _values(rows["value"]))
    found = marks(found ^ _tags(rows["tags"], secret))
    # The day follows from the time; one that does not is no line's.
    day = pc.equal(ts.cast(pa.date32()), rows["event_date"]).to_numpy()
    return np.where(day, found, ~found)


def of_line(line: int | None, excerpt: bytes | None, secret: bytes) -> int:
    """The number of a line in quarantine, or of a whole message."""
    place = str(_NO_LINE if line is None else line).encode()
    return _number(place + b" " + (excerpt or b""), secret)


def total(numbers: Iterable[int]) -> int:
    """The sum of some numbers, as 64 bits hold it."""
    found = sum(numbers) & 0xFFFFFFFFFFFFFFFF
    return found - (1 << 64) if found >> 63 else found


def _values(column: pa.ChunkedArray) -> Numbers:
    bits: Numbers = pc.fill_null(column, 0.0).to_numpy().view(np.int64)
    return np.where(pc.is_null(column).to_numpy(), _NO_LINE, bits)


def _hashed(column: pa.ChunkedArray, secret: bytes) -> Numbers:
    encoded = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = encoded.dictionary_encode()
    distinct = [_number(text.encode(), secret) for text in encoded.dictionary.to_pylist()]
    known: npt.NDArray[np.int64] = np.array([0, *distinct], dtype=np.int64)
    found: Numbers = known[pc.fill_null(encoded.indices, -1).to_numpy() + 1]
    return found


def _tags(column: pa.ChunkedArray, secret: bytes) -> Numbers:
    """The sum over the tags of each row, in whatever order they stand."""
    held = column.combine_chunks()
    if isinstance(held, pa.ChunkedArray):
        held = held.chunk(0) if held.num_chunks else pa.array([], column.type)
    pairs = marks(_hashed(held.keys, secret) ^ marks(_hashed(held.items, secret)))
    sums = np.concatenate(([0], np.cumsum(pairs)))
    ends = held.offsets.to_numpy()
    found: Numbers = sums[ends[1:]] - sums[ends[:-1]]
    return found


def _number(text: bytes, secret: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=secret).digest(), "little", signed=True)
