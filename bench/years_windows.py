"""What `rollup` has made of an aged lake. The days and hours that `gaps` looks back at are made in their true
number, of every series that the newest readings have, with a reading a second of each leaf; older hours, and
minutes, are links as in `bench/years_lake.py`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.years_lake import NOW, AgedLake
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.scan import rows
from hub_jobs.tables.schemas import ROLLUP, TIME

_SERIES: Final = ["domain", "device", "metric", "tags"]
_LOOK_BACK: Final = timedelta(days=10)
"""A file of old hours; of these `gaps` looks back at seven."""
_MADE: Final = {
    "rollup_1m": (timedelta(minutes=1), 1, 4.0),
    "rollup_1h": (timedelta(hours=1), _LOOK_BACK // timedelta(hours=1), 0.1),
    "rollup_1d": (timedelta(days=1), _LOOK_BACK // timedelta(days=1), 0.0),
}
"""The length of a window, how many there are of each series, and files a day of older ones."""


def make_windows(lake: AgedLake, leaves: int) -> None:
    """Make the windows of all days of a lake, for no option deletes windows."""
    series = _series(lake)
    for name, (length, number, a_day) in _MADE.items():
        count = round(length.total_seconds()) * leaves // series.num_rows
        table = ensure_table(lake.path, name)
        with PartWriter(lake.path, name) as writer:
            for at in range(1, 1 + number):
                writer.write(_windows(series, NOW - at * length, length, count))
        table.commit(writer.files, {})
        if a_day:
            lake.age(name, a_day, lake.days, _LOOK_BACK)


def _series(lake: AgedLake) -> pa.Table:
    """A row a series, which a device and a metric tell here."""
    readings = rows(ensure_table(lake.path, "readings"), _SERIES, [("arrived", ">=", NOW)])
    names = pc.binary_join_element_wise(*(readings[name] for name in _SERIES[:-1]), "/")
    _, first = np.unique(names.to_numpy(), return_index=True)
    return readings.take(first)


def _windows(series: pa.Table, began: datetime, length: timedelta, count: int) -> pa.Table:
    """One window of each series."""
    moments = {"window": began, "first_ts": began, "last_ts": began + length - timedelta(seconds=1)}
    given = {name: pa.repeat(pa.scalar(moment, TIME), series.num_rows) for name, moment in moments.items()}
    given |= {name: series[name] for name in _SERIES}
    given["count"] = pa.repeat(count, series.num_rows)
    columns = [given.get(field.name, pa.nulls(series.num_rows, field.type)) for field in ROLLUP]
    return pa.table(columns, schema=ROLLUP)
