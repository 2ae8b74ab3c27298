"""Selects the worst gaps from rows of the table, piece by piece. Pure; memory grows with devices, not
readings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.tables.schemas import GAPS

LISTED: Final = 1_000
"""Longest list per kind."""
COLUMNS: Final = [name for name in GAPS.names if name != "at"]
_GROUP: Final = ["domain", "device", "open", "from_minute", "to_minute"]
_FOLDS: Final = [
    ("series", "sum"),
    ("metric", "min"),
    ("since", "min"),
    ("until", "max"),
    ("missing", "sum"),
    ("usual", "min"),
]


@dataclass(frozen=True, slots=True)
class Site:
    """A domain's number of known and silent devices, and its newest reading."""

    domain: str
    devices: int
    silent: int
    since: datetime


@dataclass(frozen=True, slots=True)
class SilentDevice:
    """A silent device in a domain with active ones; last reading `since` and `usual` interval in seconds, or
    None.
    """

    domain: str
    device: str
    since: datetime
    seconds: float
    usual: float | None
    readings: int
    series: int


@dataclass(frozen=True, slots=True)
class Hole:
    """A hole in one series (`metric`) or several at once; `missing` counts all."""

    domain: str
    device: str
    metric: str
    series: int
    since: datetime
    until: datetime
    open: bool
    seconds: float
    missing: int
    usual: float


@dataclass(frozen=True, slots=True)
class Pace:
    """A series and its intervals in seconds, or None."""

    domain: str
    device: str
    metric: str
    tags: dict[str, str]
    readings: int
    median: float | None
    p95: float | None
    holes: int
    missing: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of everything, listed or not. `unjudged` devices have no usual interval; series have readings in
    the window.
    """

    devices: int
    silent: int
    unjudged: int
    series: int
    holes: int
    missing: int


@dataclass(frozen=True, slots=True)
class Worst:
    """Lists sorted worst first; wholly silent domains are in `sites` only."""

    totals: Totals
    sites: list[Site]
    silent: list[SilentDevice]
    holes: list[Hole]
    series: list[Pace]


Listed = TypeVar("Listed", SilentDevice, Hole, Pace)


def worst(stored: Iterable[pa.Table]) -> Worst:
    """Select from rows of one look (`COLUMNS`). Joins holes of a device that begin and end in the same
    minutes.
    """
    devices, series, together = _Devices(), _Series(), _Holes()
    for rows in stored:
        for kind, taker in (("device", devices), ("series", series), ("hole", together)):
            taker.take(rows.filter(pc.equal(rows["kind"], kind)))
    sites = devices.sites()
    totals = Totals(
        sum(site.devices for site in sites),
        sum(site.silent for site in sites),
        devices.unjudged,
        series.count,
        together.count,
        together.missing,
    )
    heard = [site.domain for site in sites if site.silent < site.devices]
    return Worst(totals, sites, devices.worst(heard), together.worst(), series.worst())


class _Devices:
    def __init__(self) -> None:
        self.unjudged = 0
        self._sites: dict[str, Site] = {}
        self._silent: list[pa.Table] = []

    def take(self, rows: pa.Table) -> None:
        self.unjudged += rows["silent"].null_count
        flags = rows.append_column("quiet", pc.fill_null(rows["silent"], False).cast(pa.int64()))
        found = flags.group_by("domain").aggregate([("device", "count"), ("quiet", "sum"), ("since", "max")])
        for row in found.to_pylist():
            name, since = row["domain"], row["since_max"]
            known = self._sites.get(name, Site(name, 0, 0, since))
            self._sites[name] = Site(
                name,
                known.devices + row["device_count"],
                known.silent + row["quiet_sum"],
                max(known.since, since),
            )
        self._silent.append(rows.filter(rows["silent"]))

    def sites(self) -> list[Site]:
        """Return the sites, wholly silent first."""
        return sorted(self._sites.values(), key=lambda site: (site.silent < site.devices, site.domain))

    def worst(self, domains: list[str]) -> list[SilentDevice]:
        if not self._silent:
            return []
        rows = _with_seconds(pa.concat_tables(self._silent))
        rows = rows.filter(pc.is_in(rows["domain"], value_set=pa.array(domains, pa.string())))
        times = pc.divide(rows["seconds"], rows["usual"])
        return _first(rows.append_column("times", times), SilentDevice, "times", "domain", "device")


class _Series:
    def __init__(self) -> None:
        self.count = 0
        self._worst: pa.Table | None = None

    def take(self, rows: pa.Table) -> None:
        self.count += rows.num_rows
        every = rows if self._worst is None else pa.concat_tables([self._worst, rows])
        self._worst = _sorted(every, "missing", "domain", "device", "metric").slice(0, LISTED)

    def worst(self) -> list[Pace]:
        if self._worst is None:
            return []
        return _first(self._worst, Pace, "missing", "domain", "device", "metric")


class _Holes:
    def __init__(self) -> None:
        self.count = 0
        self.missing = 0
        self._together: pa.Table | None = None

    def take(self, rows: pa.Table) -> None:
        self.count += rows.num_rows
        self.missing += pc.sum(rows["missing"]).as_py() or 0
        single = rows.set_column(
            rows.column_names.index("series"), "series", pa.array([1] * rows.num_rows, pa.int64())
        )
        for name, moment in (("from_minute", "since"), ("to_minute", "until")):
            single = single.append_column(name, pc.floor_temporal(rows[moment], unit="minute"))
        single = single.select([*_GROUP, *(name for name, _ in _FOLDS)])
        every = single if self._together is None else pa.concat_tables([self._together, single])
        found = every.group_by(_GROUP).aggregate(_FOLDS)
        self._together = found.rename_columns([*_GROUP, *(name for name, _ in _FOLDS)]).cast(single.schema)

    def worst(self) -> list[Hole]:
        if self._together is None:
            return []
        return _first(_with_seconds(self._together), Hole, "seconds", "domain", "device", "since")


def _with_seconds(rows: pa.Table) -> pa.Table:
    micros = pc.subtract(rows["until"].cast(pa.int64()), rows["since"].cast(pa.int64()))
    return rows.append_column("seconds", pc.divide(micros.cast(pa.float64()), 1_000_000.0))


def _sorted(rows: pa.Table, most: str, *then: str) -> pa.Table:
    keys = [(most, "descending"), *((name, "ascending") for name in then)]
    return rows.take(pc.sort_indices(rows, sort_keys=keys))


def _first(rows: pa.Table, kind: type[Listed], most: str, *then: str) -> list[Listed]:
    names = [field.name for field in fields(kind)]
    chosen = _sorted(rows, most, *then).slice(0, LISTED).select(names)
    return [kind(**{name: _plain(row[name]) for name in names}) for row in chosen.to_pylist()]


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, list) else value
