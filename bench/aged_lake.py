"""The lake of many leaves at an age.

What a job's pass costs by the age of a lake is what it must look through: the files that a table names, the
entries of its log, and the runs in `seen`. All three are made in their true number. The rows are not: an old
file is a link to one small file, and its entry in the log says the size, the sequences and the times that a
file of this age has. Files are committed by the tables' own commit; the entries of a log between two of its
checkpoints, which change no file, are copies of such a commit.

The windows of `rollup` of the days and hours at which `gaps` looks back are made in their true number, of
every series of the newest readings; older hours, and minutes, are links.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import aggregate, new_run
from bench import lake as lakes
from hub_jobs.ingest.bronze import StreamOrigin, bronze_rows
from hub_jobs.refine import clock_corrections, plan, task
from hub_jobs.refine.task import RefinePart
from hub_jobs.tables import seen, seen_files, stream_history
from hub_jobs.tables.commits import ROLLED_UP
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.parquet import PartFile, PartWriter
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import rows
from hub_jobs.tables.schemas import ROLLUP, SEEN, TIME
from hub_jobs.tables.stream_history import StreamHistory

CLASSES: Final = 5
_HISTORY: Final = StreamHistory(aggregate(0), "2026-11-21T00:00:00Z")
NOW: Final = datetime(2026, 11, 21, tzinfo=UTC)
"""When the newest readings of `bench.lake` are of."""
_FILE_BYTES: Final = 120 * 1024**2
_FILES_A_DAY: Final = {
    "bronze": 40.0,
    "readings": 40.0,
    "quarantine": 0.1,
}
"""Of 120 MB, as `maintain` leaves them: a reading a second of each leaf is 4 to 5 GB a day in either."""
_THINNED: Final = 0.01
"""What is left of the bytes of bronze without payloads, of batches of 500 readings."""
_COMMITS_A_DAY: Final = {"bronze": 2880, "readings": 1440, "quarantine": 1440, "seen": 1440}
"""Of `ingest --every 30s` and `refine --every 60s`."""
_LOG_DAYS: Final = 1
"""Of seven, whatever the age of the lake."""
_RUN_DAYS: Final = 7
"""From one restart of an agent to the next."""
_PASS_BATCHES: Final = 10_000
_BATCH: Final = 10
_FILES_A_COMMIT: Final = 1_000
_CORES: Final = 2
_SERIES: Final = ["domain", "device", "metric", "tags"]
_LOOK_BACK: Final = timedelta(days=10)
"""A file of old hours; of these `gaps` looks back at seven."""
_MADE: Final = {
    "rollup_1m": (timedelta(minutes=1), 1, 4.0),
    "rollup_1h": (timedelta(hours=1), _LOOK_BACK // timedelta(hours=1), 0.1),
    "rollup_1d": (timedelta(days=1), _LOOK_BACK // timedelta(days=1), 0.0),
}
"""The length of a window, how many there are of each series, and files a day of older ones."""


class AgedLake:
    """A lake of `days` days of so many leaves; the tables hold the last `kept` of them, and bronze of what is
    older the rows without payloads. A pass brings `_PASS_BATCHES` of `batch` readings."""

    def __init__(self, lake: Path, leaves: int, days: int, kept: int, batch: int = _BATCH) -> None:
        self.path = self._lake = lake
        self._leaves, self.days, self._kept = leaves, days, kept
        self._shape = lakes.Shape(10**9, batch, leaves)
        self._pass = 0
        self._files: list[PartFile] = []
        self._refined: list[PartFile] = []
        self._old = round(_FILES_A_DAY["bronze"] * kept) * _PASS_BATCHES
        """Sequences of the hub's stream that old files hold."""

    def make(self) -> None:
        """Make every table as the jobs would have left it."""
        for name in ("bronze", "readings", "quarantine", "seen"):
            ensure_table(self._lake, name)
        self.next()
        self.ingest()
        self.refine()
        self._remember_runs()
        for name, a_day in _FILES_A_DAY.items():
            self.age(name, a_day, self._kept)
        for name, commits in _COMMITS_A_DAY.items():
            self._fill_log(name, commits * min(_LOG_DAYS, self.days))
        ensure_table(self._lake, "rollup_1d").commit(
            [], {ROLLED_UP: ensure_table(self._lake, "readings").delta.version()}
        )

    def next(self) -> None:
        """Write what the next passes of ingest and refine commit: one batch of each leaf."""
        first = self.bring()
        paths: list[Place] = [self._lake / "bronze" / file.path for file in self._files]
        part = RefinePart(self._lake, paths, _HISTORY.history, after=first, to=first + _PASS_BATCHES)
        self._refined = task.refine(part).readings

    def bring(self) -> int:
        """Write what the next pass of ingest commits; returns the sequence before its first."""
        first = self._pass * _PASS_BATCHES
        self._pass += 1
        names = {self._shape.domain(number) for number in range(self._leaves)}
        origin = StreamOrigin(_HISTORY.stream, _HISTORY.created, {lakes._index(name): name for name in names})
        with PartWriter(self._lake, "bronze") as writer:
            columns = lakes.batches(self._shape, range(first, first + _PASS_BATCHES))
            columns.seqs[:] = [seq + self._old for seq in columns.seqs]
            writer.write(bronze_rows(columns, origin))
        self._files = writer.files
        return self._old + first

    def ingest(self) -> None:
        """What ingest does beside reading the stream: find where bronze ends, compare the message there,
        commit."""
        bronze = ensure_table(self._lake, "bronze", stream_history.open_bronze(self._lake))
        done = bronze.offset(_HISTORY.ingested)
        if done is not None and not rows(bronze, ["digest"], _HISTORY.rows(done - 1, done)).num_rows:
            raise RuntimeError("bronze does not hold the message at which it ends")
        last = self._old + self._pass * _PASS_BATCHES
        bronze.commit(self._files, {_HISTORY.ingested: last})
        bronze.newest()  # it looks again, and finds nothing more

    def refine(self) -> None:
        """What the driver of refine does: the tasks decode a pass's rows, however old the lake is, and run
        before the clock."""
        tables = plan.RefineTables(*(ensure_table(self._lake, name) for name in plan.RefineTables._fields))
        planned = plan.plan(tables)
        if planned is None:
            raise RuntimeError("nothing of bronze is to be refined")
        known = seen.load(self._lake, tables.bronze, planned.before)
        clocks = clock_corrections.load(self._lake, tables.bronze, planned.before)
        increments = [(increment.history, increment.after, increment.to) for increment in planned.increments]
        clock_corrections.new_corrections(tables.bronze, increments, clocks)
        decision = plan.decide(tables.bronze, planned, known)
        if decision.repeated:
            raise RuntimeError("rows that came once were taken for repeats")
        plan.parts(self._lake, planned, decision, {}, clocks.by_domain(), _CORES)
        tables.quarantine.commit([], planned.offsets)
        tables.readings.commit(self._refined, planned.offsets)
        known.save(self._lake, planned.after)
        clock_corrections.save(self._lake, clocks, planned.after)

    def age(self, name: str, a_day: float, days: float, newest: timedelta = timedelta()) -> None:
        """Give a table its old files of so many days, but for the `newest`: links to one that it has."""
        table = ensure_table(self._lake, name)
        known = pa.table(table.delta.get_add_actions(flatten=True))
        if not known.num_rows:
            return
        path = known["path"].to_pylist()[0]
        stats = self._stats(name, path)
        number = round(a_day * days)
        if name == "bronze":
            number += round(a_day * _THINNED * (self.days - days))
        files = [self._link(name, path, _older(stats, at, number, self._old, a_day)) for at in range(number)]
        files = files[: len(files) - round(newest / timedelta(days=1) * a_day)]
        for first in range(0, number, _FILES_A_COMMIT):
            ensure_table(self._lake, name).commit(files[first : first + _FILES_A_COMMIT], {})

    def _stats(self, name: str, path: str) -> dict[str, Any]:
        for entry in sorted((self._lake / name / "_delta_log").glob("*.json")):
            for line in entry.read_text().splitlines():
                action = json.loads(line).get("add")
                if action is not None and action["path"] == path:
                    found: dict[str, Any] = json.loads(action["stats"])
                    return found
        raise RuntimeError(f"{path} is not in the log")

    def _link(self, name: str, path: str, stats: dict[str, Any]) -> PartFile:
        link = f"part-{uuid.uuid4()}.zstd.parquet"
        os.link(self._lake / name / path, self._lake / name / link)
        modified = int((NOW - timedelta(days=1)).timestamp() * 1000)
        return PartFile(name, link, _FILE_BYTES, stats["numRecords"], modified, json.dumps(stats))

    def _remember_runs(self) -> None:
        """A row of `seen` for each class and run that ever was, in the order in which they came."""
        pieces = [rows(ensure_table(self._lake, "seen"), SEEN.names), *self._runs()]
        upto = replace(_HISTORY, done=self._old + self._pass * _PASS_BATCHES)
        seen_files.replace_all(self._lake, pa.concat_tables(pieces), [upto])

    def _runs(self) -> Iterator[pa.Table]:
        domains = pa.array([self._shape.domain(leaf) for leaf in range(self._leaves)])
        for age in range(self.days, 0, -_RUN_DAYS):
            began = int((NOW - timedelta(days=age)).timestamp()) * 10**9
            runs = pa.array([new_run(began + leaf * 10**9) for leaf in range(self._leaves)])
            ones, most = np.ones(self._leaves, dtype=np.int64), np.full(self._leaves, 600_000)
            for cls in range(CLASSES):
                names = pc.binary_join_element_wise("batch", domains, f"class-{cls}", runs, "/")
                unordered = pa.nulls(self._leaves, pa.string())
                yield pa.table([names, pa.array(ones), pa.array(most), unordered], schema=SEEN)

    def _fill_log(self, name: str, number: int) -> None:
        """So many entries behind the newest commit of a table, and a checkpoint of all."""
        table = ensure_table(self._lake, name)
        table.commit([], {"years": 1})
        log, version = self._lake / name / "_delta_log", ensure_table(self._lake, name).delta.version()
        text = (log / f"{version:020d}.json").read_text()
        for later in range(version + 1, version + number + 1):
            (log / f"{later:020d}.json").write_text(text)
        ensure_table(self._lake, name).delta.create_checkpoint()


def _older(stats: dict[str, Any], at: int, number: int, sequences: int, a_day: float) -> dict[str, Any]:
    """The statistics of the file that has place `at` among so many, the eldest first."""
    began = NOW - timedelta(days=(number - at) / a_day)
    span = [began, began + timedelta(days=0.9 / a_day)]
    bounds = {name: dict(stats[name]) for name in ("minValues", "maxValues")}
    for times, moment, edge in (("minValues", span[0], 0), ("maxValues", span[1], 1)):
        said = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
        known = bounds[times]
        for column in ("arrived", "ts", "window", "first_ts", "last_ts"):
            if column in known:
                known[column] = said
        if "event_date" in known:
            known["event_date"] = said[:10]
        if "seq" in known:
            share = sequences // max(number, 1)
            known["seq"] = at * share + 1 if not edge else (at + 1) * share
    return {**stats, **bounds}


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
