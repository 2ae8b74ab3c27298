"""From decoded lines to Arrow columns. What a line's own decoder left unchecked, times and tags, is checked
here, a column at a time; the rows that fail are named for the caller to look at one by one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Meta

from agent.contract import EPOCH_LIMIT, MACHINE_OFFSET
from hub_jobs.refine.lines import FAULTS, ReadingLine, Tags
from hub_jobs.tables.schemas import TIME

_TIME: Final = msgspec.json.Decoder(Annotated[datetime, Meta(tz=True)])
_TAGS: Final = msgspec.json.Decoder(Tags)
_RAW_TAGS: Final = attrgetter("tags")
_MAP: Final = pa.map_(pa.string(), pa.string())
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Moments(NamedTuple):
    """Of every row: microseconds since 1970, whether it has a time of its own, whether that is by the clock
    of the agent's machine, and whether it is none."""

    stamps: Times
    own: Mask
    machine: Mask
    wrong: Mask


def times(rows: Sequence[ReadingLine]) -> Moments:
    """The times of rows."""
    given = [row.ts for row in rows]
    kinds = set(map(type, given))
    stamps = np.zeros(len(given), dtype=np.int64)
    if kinds == {str}:
        fast = _texts(given)
        if fast is not None:
            return Moments(fast[0], np.ones(len(given), dtype=np.bool_), fast[1], _outside(fast[0]))
    elif kinds == {float}:
        seconds = np.array(given, dtype=np.float64)
        wrong = ~((seconds >= 0) & (seconds <= EPOCH_LIMIT))
        stamps = np.rint(np.where(wrong, 0, seconds) * 1e6).astype(np.int64)
        return Moments(stamps, np.ones(len(given), dtype=np.bool_), np.zeros(len(given), np.bool_), wrong)
    own = np.array([ts is not UNSET for ts in given], dtype=np.bool_)
    wrong = np.zeros(len(given), dtype=np.bool_)
    for at in np.flatnonzero(own).tolist():
        found = _time(given[at])
        if found is None:
            wrong[at] = True
        else:
            stamps[at] = found
    machine = np.array([isinstance(ts, str) and ts.endswith(MACHINE_OFFSET) for ts in given], dtype=np.bool_)
    return Moments(stamps, own, machine, wrong)


def _texts(given: Sequence[object]) -> tuple[Times, Mask] | None:
    """RFC 3339 in UTC with up to six digits of a second, all of them, and which are by the machine's clock;
    None when one is of another form. Arrow also takes times without seconds, which the colon at 16
    excludes."""
    try:
        texts = pa.array(given, pa.string())
        machine = pc.ends_with(texts, MACHINE_OFFSET)
        strict = pc.and_(
            pc.or_(pc.ends_with(texts, "Z"), machine),
            pc.equal(pc.utf8_slice_codeunits(texts, start=16, stop=17), ":"),
        )
        if not pc.all(strict).as_py():
            return None
        found: Times = texts.cast(TIME).cast(pa.int64()).to_numpy()
    except pa.ArrowException:
        return None
    return found, machine.to_numpy(zero_copy_only=False)


def _time(value: object) -> int | None:
    """Microseconds since 1970 of a `ts`, None for one that is none."""
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
    """Times that no calendar of years 1 to 9999 holds once they are in UTC."""
    return (stamps < _FIRST) | (stamps > _LAST)


def values(rows: Sequence[ReadingLine]) -> tuple[pa.Array, pa.Array]:
    """The columns `value` and `text`. A whole number that a double does not hold exactly is rounded in
    `value` and stands with all its digits in `text`."""
    given: list[Any] = [row.value for row in rows]
    texts: list[str | None] = [None] * len(given)
    for at in [at for at, kind in enumerate(map(type, given)) if kind is not float and kind is not int]:
        value = given[at]
        texts[at] = value if isinstance(value, str) else _BOOLS[bool(value)]
        given[at] = None if isinstance(value, str) else float(value)
    try:
        numbers = pa.array(given, pa.float64())
    except pa.ArrowInvalid:
        # Arrow takes no whole number beyond 2^53, though a double may hold it exactly.
        for at in [at for at, kind in enumerate(map(type, given)) if kind is int]:
            rounded = float(given[at])
            if int(rounded) != given[at]:
                texts[at] = str(given[at])
            given[at] = rounded
        numbers = pa.array(given, pa.float64())
    return numbers, pa.array(texts, pa.string())


_BOOLS: Final = {True: "true", False: "false"}


def tags(rows: Sequence[ReadingLine]) -> tuple[pa.MapArray, Mask]:
    """The column `tags`, each distinct text parsed once, and which rows have tags that are none."""
    texts = pa.array(list(map(bytes, map(_RAW_TAGS, rows))), pa.binary()).dictionary_encode()
    parsed: list[list[tuple[str, str]]] = []
    wrong: list[int] = []
    for at, text in enumerate(texts.dictionary.to_pylist()):
        try:
            parsed.append(list(_TAGS.decode(text).items()))
        except FAULTS:
            parsed.append([])
            wrong.append(at)
    codes = texts.indices.to_numpy()
    column = pa.array(parsed, _MAP).take(texts.indices)
    return column, np.isin(codes, np.array(wrong, dtype=np.int32))


def devices(rows: Sequence[ReadingLine], domains: pa.Array, owner: npt.NDArray[np.int32]) -> pa.Array:
    """The column `device`, with the domain of its message where a line has none."""
    given = [row.device for row in rows]
    if UNSET not in given:
        return pa.array(given, pa.string())
    named = pa.array([None if device is UNSET else device for device in given], pa.string())
    return pc.coalesce(named, domains.take(pa.array(owner)))
