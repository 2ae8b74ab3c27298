"""Converts times of lines to microseconds since 1970, by column for the usual form. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Meta

from agent.contract import EPOCH_LIMIT, MACHINE_OFFSET
from hub_jobs.refine.line_types import FAULTS
from hub_jobs.tables.schemas import TIME

_TIME: Final = msgspec.json.Decoder(Annotated[datetime, Meta(tz=True)])
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Moments(NamedTuple):
    """Per row: microseconds since 1970, whether it has an own time, whether from the agent's clock, whether
    invalid.
    """

    stamps: Times
    own: Mask
    machine: Mask
    wrong: Mask
    quotes: int
    """Quotes of all fields."""


def moments(given: Sequence[object]) -> Moments:
    """Convert times from a decoder."""
    kinds = set(map(type, given))
    every = np.ones(len(given), dtype=np.bool_)
    if kinds == {str}:
        try:
            fast = _utc(pa.array(given, pa.string()))
        except (pa.ArrowException, UnicodeEncodeError):
            fast = None
        if fast is not None:
            return fast
    elif kinds == {float}:
        seconds = np.array(given, dtype=np.float64)
        wrong = ~((seconds >= 0) & (seconds <= EPOCH_LIMIT))
        stamps = np.rint(np.where(wrong, 0, seconds) * 1e6).astype(np.int64)
        return Moments(stamps, every, ~every, wrong, 2 * len(given))
    return _singly(given)


def text_moments(texts: pa.Array) -> Moments:
    """Convert times that are all texts."""
    return _utc(texts) or _singly(texts.to_pylist())


def _singly(given: Sequence[object]) -> Moments:
    stamps = np.zeros(len(given), dtype=np.int64)
    own = np.array([ts is not UNSET for ts in given], dtype=np.bool_)
    wrong = np.zeros(len(given), dtype=np.bool_)
    for at in np.flatnonzero(own).tolist():
        found = _time(given[at])
        if found is None:
            wrong[at] = True
        else:
            stamps[at] = found
    machine = np.array([isinstance(ts, str) and ts.endswith(MACHINE_OFFSET) for ts in given], dtype=np.bool_)
    texts = sum([isinstance(ts, str) for ts in given])
    return Moments(stamps, own, machine, wrong, 2 * int(np.count_nonzero(own)) + 2 * texts)


def _utc(texts: pa.Array) -> Moments | None:
    """Convert RFC 3339 UTC with up to six fraction digits; None when any differs.

    Arrow also accepts times without seconds, which the colon at 16 excludes.
    """
    _, offsets, content = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[: len(texts) + 1]
    letters = np.frombuffer(content, np.uint8)
    if (np.diff(ends) < _SHORTEST).any() or (letters[ends[:-1] + 16] != _COLON).any():
        return None
    machine = np.zeros(len(texts), np.bool_)
    if (letters[ends[1:] - 1] != _ZULU).any():
        by_machine = pc.ends_with(texts, MACHINE_OFFSET)
        if not pc.all(pc.or_(pc.ends_with(texts, "Z"), by_machine)).as_py():
            return None
        machine = by_machine.to_numpy(zero_copy_only=False)
    try:
        stamps: Times = texts.cast(TIME).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        return None
    return Moments(stamps, np.ones(len(texts), np.bool_), machine, _outside(stamps), 4 * len(texts))


_COLON, _ZULU = b":Z"
_SHORTEST: Final = 18
"""Characters of a time up to seconds."""


def _time(value: object) -> int | None:
    """Return a `ts` in microseconds since 1970, None when invalid."""
    if isinstance(value, str):
        try:
            moment = _TIME.decode(msgspec.json.encode(value))
        except FAULTS:
            return None
        stamp = (moment - _EPOCH) // _MICROSECOND
        return stamp if _FIRST <= stamp <= _LAST else None
    if isinstance(value, int | float) and 0 <= value <= EPOCH_LIMIT:
        return round(value * 1_000_000)
    return None


def _outside(stamps: Times) -> Mask:
    """Mark times outside years 1 to 9999 in UTC."""
    return (stamps < _FIRST) | (stamps > _LAST)
