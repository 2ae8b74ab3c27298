"""Judges how regularly series come and where they have holes, some whole devices at a time. Pure.

A series' usual interval is the median between its readings in the window; equal times count once.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import COMMAND_METRIC
from hub_jobs.tables.grouping import changes, different_rows
from hub_jobs.tables.ranges import Mask, Numbers
from hub_jobs.tables.schemas import GAPS, TIME
from hub_jobs.times import micros

LEAST_INTERVALS: Final = 5
"""Fewer intervals give no usual interval."""
UNEVEN_INTERVALS: Final = 20
"""Intervals from which the 95th percentile is more than the maximum."""
EDGES: Final = (1, 10, 60, 600, 3_600, 86_400)
"""Upper bounds in seconds of the lateness buckets, except the first and last."""
BUCKETS: Final = ("ahead", *(f"to_{edge}" for edge in EDGES), "later")
"""Bucket names: a second or more early; late by up to so many seconds; later."""
HEARD: Final = pa.schema(
    [
        *(("domain", pa.string()), ("device", pa.string()), ("metric", pa.string())),
        *(("tags", pa.map_(pa.string(), pa.string())), ("count", pa.int64())),
        *(("first", TIME), ("last", TIME)),
    ]
)
"""Input rows. In the window one row per reading: `last` is its time, `first` and `count` are null. Before the
window any rows per series: a count of readings, the first and the last.
"""
FOUND: Final = pa.schema([field for field in GAPS if field.name != "at"])
LATE: Final = pa.schema(
    [("domain", pa.string()), *((name, pa.int64()) for name in BUCKETS), ("worst", pa.float64())]
)
_SECOND: Final = 1e6

Floats = npt.NDArray[np.float64]


def judge(heard: pa.Table, begin: datetime, end: datetime, factor: float) -> pa.Table:
    """Return `gaps` rows for devices, given all their rows in `heard` (`HEARD`). Command answers are no
    series.

    A hole exceeds `factor` times the usual interval: the median, or without enough intervals the mean before
    the window. It is `factor` times the 95th percentile for uneven series. Open holes of silent devices are
    omitted. A device is silent when it is quiet longer than its quickest series' bound; without a usual
    interval, when it has readings only before the window; null when that can't be judged.
    """
    heard = heard.filter(pc.not_equal(heard["metric"], COMMAND_METRIC))
    if not heard.num_rows:
        return FOUND.empty_table()
    names = [heard[name] for name in ("domain", "device", "metric")]
    first_row, series = different_rows([*names, labels(heard["tags"])])
    shown = heard.select(["domain", "device", "metric", "tags"]).take(pa.array(first_row))
    first_of_device, device = different_rows([shown["domain"], shown["device"]])
    size, devices = len(first_row), len(first_of_device)
    opened, closed = micros(begin), micros(end)

    at, of, earlier, pace = _moments(heard, series, size)
    goes_on = np.append(of[1:] != of[:-1], True)  # to the end of the window
    until = np.where(goes_on, closed, np.append(at[1:], closed))
    seconds = (until - at) / _SECOND
    intervals = np.bincount(of[~goes_on], minlength=size)
    median, p95 = _ranks(of[~goes_on], seconds[~goes_on], intervals)
    paced = (earlier >= LEAST_INTERVALS) & (pace > 0)
    usual = np.where(intervals >= LEAST_INTERVALS, median, np.where(paced, pace, np.nan))
    uneven = (intervals >= UNEVEN_INTERVALS) & (p95 > median * factor)
    bound = np.where(uneven, p95, usual) * factor
    readings = np.bincount(of[at >= opened], minlength=size)

    is_hole = seconds > bound[of]  # nothing is longer than an unknown bound
    with np.errstate(invalid="ignore", divide="ignore"):
        due = (until - np.maximum(at, opened)) / _SECOND / usual[of]
    rounded = np.floor(due + 0.5)
    lacking = np.where(goes_on, np.ceil(due) - 1, np.where(at < opened, rounded, rounded - 1))
    missing = np.where(is_hole, np.maximum(lacking, 0), 0).astype(np.int64)

    ends = device[of[goes_on]]
    quickest = _least(device, bound, devices)
    heard_of = _sums(device, readings, devices)
    silent = np.where(np.isnan(quickest), heard_of == 0, _least(ends, seconds[goes_on], devices) > quickest)
    is_judged = ~np.isnan(quickest) | (heard_of == 0)
    last = np.full(devices, np.iinfo(np.int64).min)
    np.maximum.at(last, ends, at[goes_on])

    told, holes = np.flatnonzero(readings > 0), is_hole & ~(goes_on & silent[device[of]])
    return pa.concat_tables(
        [
            _rows(
                "series",
                shown.take(pa.array(told)),
                since=np.full(told.size, opened),
                until=np.full(told.size, closed),
                readings=readings[told],
                median=median[told],
                p95=p95[told],
                usual=usual[told],
                holes=_sums(of, is_hole, size)[told],
                missing=_sums(of, missing, size)[told],
            ),
            _rows(
                "hole",
                shown.take(pa.array(of[holes])),
                since=at[holes],
                until=until[holes],
                usual=usual[of[holes]],
                missing=missing[holes],
                open=goes_on[holes],
            ),
            _rows(
                "device",
                shown.take(pa.array(first_of_device)).select(["domain", "device"]),
                since=last,
                until=np.full(devices, closed),
                readings=heard_of,
                usual=_least(device, usual, devices),
                series=np.bincount(device, minlength=devices),
                silent=pa.array(silent, mask=~is_judged),
            ),
        ]
    )


def lateness(rows: pa.Table) -> pa.Table:
    """Return readings per domain and lateness (`LATE`), and the `worst` in seconds.

    Lateness is the arrival at the hub minus `ts`; readings timed by the hub are not counted.
    """
    stamped = rows.filter(pc.and_(pc.not_equal(rows["ts_source"], "hub"), pc.is_valid(rows["arrived"])))
    if not stamped.num_rows:
        return LATE.empty_table()
    first, of = different_rows([stamped["domain"]])
    late = (_micros(stamped["arrived"]) - _micros(stamped["ts"])) / _SECOND
    bucket = np.searchsorted((-1, *EDGES), late)
    counts = np.bincount(of * len(BUCKETS) + bucket, minlength=len(first) * len(BUCKETS))
    worst = np.full(len(first), -np.inf)
    np.maximum.at(worst, of, late)
    domains = stamped["domain"].take(pa.array(first)).cast(pa.string())
    return pa.table([domains, *counts.reshape(-1, len(BUCKETS)).T.copy(), worst], schema=LATE)


def lateness_of_all(parts: pa.Table) -> pa.Table:
    """Merge the lateness of parts."""
    sums = [(name, "sum") for name in BUCKETS]
    found = parts.group_by("domain").aggregate([*sums, ("worst", "max")])
    return found.rename_columns(
        [name.removesuffix("_sum").removesuffix("_max") for name in found.column_names]
    )


def labels(tags: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a text per row that identifies its tags in any order."""
    return pa.chunked_array(
        [_labels_of(chunk) for chunk in tags.chunks], pa.dictionary(pa.int32(), pa.string())
    )


def _labels_of(tags: pa.MapArray) -> pa.DictionaryArray:
    start, end = tags.offsets[0].as_py(), tags.offsets[-1].as_py()
    keys, items = (column.slice(start, end - start) for column in (tags.keys, tags.items))
    _, codes = different_rows([pa.chunked_array([keys]), pa.chunked_array([items])])
    begins = np.asarray(tags.offsets) - start
    lengths = np.diff(begins)
    # A column for each place in a map, with no code where the map is shorter.
    places = [
        np.where(lengths > at, np.append(codes, -1)[np.minimum(begins[:-1] + at, codes.size)], -1)
        for at in range(int(lengths.max(initial=0)))
    ]
    rows, which = different_rows([pa.chunked_array([pa.array(codes)]) for codes in (lengths, *places)])
    texts = [json.dumps(sorted(row or [])) for row in tags.take(pa.array(rows)).to_pylist()]
    return pa.DictionaryArray.from_arrays(pa.array(which, pa.int32()), pa.array(texts, pa.string()))


def _moments(heard: pa.Table, series: Numbers, size: int) -> tuple[Numbers, Numbers, Numbers, Floats]:
    """Return sorted distinct moments with their series, starting with the last before the window.

    Also returns per series the number of intervals before the window and their mean.
    """
    before = heard["count"].is_valid().to_numpy()
    last, first = np.full(size, np.iinfo(np.int64).min), np.full(size, np.iinfo(np.int64).max)
    of = series[before]
    known = heard.filter(pa.array(before))
    np.maximum.at(last, of, _micros(known["last"]))
    np.minimum.at(first, of, _micros(known["first"]))
    count = _sums(of, known["count"].to_numpy(), size)
    pace = np.full(size, np.nan)
    np.divide((last - first) / _SECOND, count - 1, out=pace, where=count > 1)
    there = np.flatnonzero(count)
    at = np.concatenate([_micros(heard["last"])[~before], last[there]])
    every = np.concatenate([series[~before], there])
    order = np.lexsort((at, every))
    at, every = at[order], every[order]
    new = changes(every, at)
    return at[new], every[new], count - 1, pace


def _ranks(of: Numbers, seconds: Floats, count: Numbers) -> tuple[Floats, Floats]:
    """Return median and 95th percentile per series, NaN without intervals."""
    ordered = np.append(seconds[np.lexsort((seconds, of))], np.nan)
    begins = np.cumsum(count) - count
    places = [begins + np.ceil(share * count).astype(np.int64) - 1 for share in (0.5, 0.95)]
    median, p95 = (np.where(count > 0, ordered[np.where(count > 0, place, 0)], np.nan) for place in places)
    return median, p95


def _least(of: Numbers, values: Floats, size: int) -> Floats:
    least = np.full(size, np.nan)
    np.fmin.at(least, of, values)
    return least


def _sums(of: Numbers, values: Numbers | Mask, size: int) -> Numbers:
    counted = np.bincount(of, values, size)  # in doubles, which hold these sums exactly
    return counted.astype(np.int64)


def _micros(moments: pa.ChunkedArray) -> Numbers:
    return np.asarray(moments.cast(TIME).cast(pa.int64()).to_numpy())


def _rows(kind: str, shown: pa.Table, **columns: Any) -> pa.Table:
    found = {name: shown[name] for name in shown.column_names}
    for name, values in columns.items():
        known = pa.array(values, from_pandas=True) if isinstance(values, np.ndarray) else values
        found[name] = known.cast(FOUND.field(name).type)
    found["kind"] = pa.array([kind] * shown.num_rows)
    arrays = [
        found[field.name].cast(field.type) if field.name in found else pa.nulls(shown.num_rows, field.type)
        for field in FOUND
    ]
    return pa.table(arrays, schema=FOUND)
