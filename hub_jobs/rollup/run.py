"""Runs the job `rollup`, which aggregates `readings` by minute, hour and day.

It remakes the hours in which readings changed since the last run, in one commit per table; the last commit
has the version of `readings`. The next run repeats a killed one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import Exit
from hub_jobs.job_loop import Stop, job_parser, metrics_of, never, run_job, say
from hub_jobs.tables.changes import changed_files, hours_of
from hub_jobs.tables.commits import ROLLED_UP
from hub_jobs.tables.compaction import without
from hub_jobs.tables.delta import ConflictError, Table, ensure_table, no_table, open_table
from hub_jobs.tables.parquet import written
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import Condition, at_moment, file_paths, frame
from hub_jobs.tables.schemas import TIME
from hub_jobs.times import at_micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME: Final = "rollup"
_COUNTERS: Final = ["*_total", "*_count", "*_bucket", "*_sum"]
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
_END: Final = datetime.max.replace(tzinfo=UTC)
_HOURS_AT_ONCE: Final = 31 * 24
_FIRST, _SECOND, _LAST = "rollup_1m", "rollup_1h", "rollup_1d"
_TURN: Final = "rollup:turn"
"""The transaction that counts rollup commits to a table."""


@dataclass(frozen=True, slots=True)
class RollupOptions:
    """The command line's options."""

    lake: Place
    quantiles: bool
    counters: list[str]


def main(argv: Sequence[str] | None = None) -> Exit:
    """Run the job and return its exit code."""
    parser = job_parser(_NAME, "Readings by minute, hour and day.", repeats=True)
    parser.add_argument(
        "--quantiles", action="store_true", help="p50, p95 and p99 too; takes about four times as long"
    )
    parser.add_argument(
        "--counter",
        action="append",
        metavar="PATTERN",
        help=f"metrics that only grow, as globs; may be given several times (default: {' '.join(_COUNTERS)})",
    )
    given = parser.parse_args(argv)
    options = RollupOptions(given.lake, given.quantiles, given.counter or _COUNTERS)
    metrics = metrics_of(_NAME, parser, given)
    return run_job(partial(run, options), given.every, metrics)


def run(options: RollupOptions, stop: Stop = never) -> Exit:
    """Update all outdated windows. A stopped run ends between two months and is repeated. Raises
    `ConflictError` for a parallel rollup.
    """
    # Before readings are opened: what another rollup made of newer ones is then seen by its turns.
    made = Made(options.lake)
    readings = open_table(options.lake, "readings")
    if readings is None:
        raise no_table(options.lake, "readings", "refine")
    version, known = readings.delta.version(), made.known
    if known == version:
        return Exit.WELL
    hours, older = kept(readings, touched(readings, known))
    if older:
        say(_NAME, f"{older} hours stay as they are: readings of them may have been deleted for their age")
    if hours:
        from hub_jobs.spark.session import session

        spark = session(_NAME)
        for chunk in chunks(hours):
            if stop():
                return Exit.WELL
            _roll(spark, options, readings, made, chunk)
    made.finish(version)
    say(_NAME, f"{len(hours)} hours are made of version {version} of readings")
    return Exit.WELL


class Made:
    """The window tables of one rollup. Any parallel rollup's commit is a conflict."""

    def __init__(self, lake: Place) -> None:
        self.lake = lake
        tables = {name: open_table(lake, name) for name in (_FIRST, _SECOND, _LAST)}
        self._turns = {name: None if table is None else table.offset(_TURN) for name, table in tables.items()}
        last = tables[_LAST]
        self.known = None if last is None else last.offset(ROLLED_UP)
        """The version of `readings` below them, None if unknown."""

    def open(self, name: str) -> Table:
        """Open a table. Raises `ConflictError` when another rollup changed it."""
        table = ensure_table(self.lake, name)
        if table.offset(_TURN) != self._turns[name]:
            raise ConflictError(f"table {table.path}: another rollup was first")
        return table

    def next_turn(self, name: str) -> dict[str, int]:
        """Return the transaction of the next commit to an opened table; a failed commit ends the run."""
        self._turns[name] = turn = (self._turns[name] or 0) + 1
        return {_TURN: turn}

    def finish(self, version: int) -> None:
        """Commit the version of `readings` below the tables."""
        self.open(_LAST).commit([], {ROLLED_UP: version, **self.next_turn(_LAST)})


def touched(readings: Table, known: int | None) -> list[datetime]:
    """Return hours, ascending, with readings changed since version `known`, and the hour after each for
    counters.
    """
    changed = changed_files(readings, known)
    found = hours_of(file_paths(readings) if changed is None else changed, "ts")
    if changed is None:  # what went can't be told any more: the hours that it left have windows
        made = (open_table(readings.path.parent, name) for name in (_FIRST, _SECOND, _LAST))
        found |= hours_of([path for table in made if table for path in file_paths(table)], "window")
    return sorted(found | {hour + _HOUR for hour in found if hour.year < datetime.max.year})


def kept(readings: Table, hours: list[datetime]) -> tuple[list[datetime], int]:
    """Return hours that can be remade, and how many can't because their readings, or earlier counters, may be
    expired.
    """
    if readings.kept_since is None:
        return hours, 0
    first = at_micros(readings.kept_since) + _HOUR
    found = [hour for hour in hours if hour >= first]
    return found, len(hours) - len(found)


def chunks(hours: Sequence[datetime]) -> Iterator[list[datetime]]:
    """Yield pieces of hours to make at once, with whole days."""
    piece: list[datetime] = []
    for hour in hours:
        if len(piece) >= _HOURS_AT_ONCE and hour.date() != piece[-1].date():
            yield piece
            piece = []
        piece.append(hour)
    if piece:
        yield piece


def spans(
    units: Sequence[datetime], length: timedelta, before: timedelta = timedelta()
) -> list[tuple[datetime, datetime]]:
    """Return time spans that cover ascending units and the time `before` each; gaps under a day
    are bridged.
    """
    found: list[tuple[datetime, datetime]] = []
    for unit in units:
        first, end = unit - before, unit + length if unit.year < datetime.max.year else _END
        if found and first - found[-1][1] < _DAY:
            found[-1] = found[-1][0], end
        else:
            found.append((first, end))
    return found


def _roll(
    spark: SparkSession, options: RollupOptions, readings: Table, made: Made, hours: list[datetime]
) -> None:
    from hub_jobs.rollup.windows import longer, minutes, with_increases

    near: Condition = ("ts", "within", spans(hours, _HOUR, before=_HOUR))
    given = frame(spark, readings, [near]).where("value is not null and ts is not null")
    rows = _in(with_increases(given, options.counters), _HOUR, "ts", hours)
    _put(made, _FIRST, hours, _HOUR, minutes(rows, quantiles=options.quantiles))
    by_minute = _windows(spark, options.lake, _FIRST, hours, _HOUR)
    _put(made, _SECOND, hours, _HOUR, longer(by_minute, 3_600, quantiles=options.quantiles))
    days = sorted({hour.replace(hour=0) for hour in hours})
    by_hour = _windows(spark, options.lake, _SECOND, days, _DAY)
    _put(made, _LAST, days, _DAY, longer(by_hour, 86_400, quantiles=options.quantiles))


def _windows(
    spark: SparkSession, lake: Place, name: str, units: list[datetime], length: timedelta
) -> DataFrame:
    """Return a table's windows for these units."""
    where: Condition = ("window", "within", spans(units, _DAY))
    return _in(frame(spark, ensure_table(lake, name), [where]), length, "window", units)


def _in(rows: DataFrame, length: timedelta, column: str, units: Sequence[datetime]) -> DataFrame:
    from hub_jobs.rollup.windows import window_of

    return rows.where(
        window_of(column, int(length.total_seconds())).isin([at_moment(unit) for unit in units])
    )


def _put(made: Made, name: str, units: list[datetime], length: timedelta, windows: DataFrame) -> None:
    """Replace a table's windows of these units."""
    table = made.open(name)
    unit = "hour" if length == _HOUR else "day"
    marks = pa.array(units, TIME)

    def mine(rows: pa.Table) -> pa.Array:
        return pc.is_in(pc.floor_temporal(rows["window"].cast(TIME), unit=unit), value_set=marks)

    files = written(windows.sort("window"), made.lake, name)
    where: Condition = ("window", "within", spans(units, length))
    old = without(made.lake, table, mine, ["window"], [where])
    table.rewrite([*files, *old.kept], old.replaced, made.next_turn(name), changed=True)
