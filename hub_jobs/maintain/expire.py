"""Deletes old data from tables that only grow.

Files of `readings` and `quarantine` go when all their rows are old and settled by an audit. Rows of `bronze`
stay without payload, because repeats are recognised by them. Rows of old audits go, since the newest audit
repeats them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.audit.rows.pieces import UnsettledError
from hub_jobs.audit.settled import past as settled
from hub_jobs.audit.settled.files import expired, late, settled_files
from hub_jobs.job_loop import say
from hub_jobs.tables import commits, stream_history
from hub_jobs.tables.compaction import without
from hub_jobs.tables.delta import Table, ensure_table, open_table
from hub_jobs.tables.parquet_reading import parquet_columns
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import Numbers
from hub_jobs.tables.scan import bounds, files, latest
from hub_jobs.times import HOUR, at_micros, back, micros

_NAME: Final = "maintain"
_TABLES: Final = ("quarantine", "readings")


@dataclass(frozen=True, slots=True)
class Expiry:
    """Files per table to delete, whose rows all arrived before `since` (microseconds since 1970)."""

    since: int
    tables: Mapping[str, Table]
    paths: Mapping[str, list[str]]

    @property
    def moment(self) -> datetime:
        """The expiry limit."""
        return at_micros(self.since)


def plan(lake: Place, now: datetime, keep: timedelta) -> Expiry | None:
    """Return what arrived before the limit and may be deleted; None, with the reason printed, when nothing
    may.
    """
    tables = {name: ensure_table(lake, name, room=0) for name in _TABLES}
    try:
        until, known = _known(lake, list(tables.values()))
    except UnsettledError as error:
        say(_NAME, f"nothing is deleted for its age until the next audit: {error}")
        return None
    if not until:
        say(_NAME, "nothing is deleted for its age: no audit has settled anything yet")
        return None
    since = min(micros(back(now, keep)), until) // HOUR * HOUR
    bronze = open_table(lake, "bronze")
    if bronze is not None and (why := why_young(bronze, since, now, keep, "--keep")):
        say(_NAME, f"nothing is deleted for its age: {why}")
        return None
    first = 0 if bronze is None else _first_possible(bronze)
    paths: dict[str, list[str]] = {}
    for name, table in tables.items():
        paths[name], undated = expired(table, known[name], since, first)
        if undated:
            say(
                _NAME,
                f"{name}: {len(undated)} files stay that came while the hub's clock was far behind: by it "
                f"they arrived before {at_micros(first):%Y-%m-%d}, and no stream of the hub is that old",
            )
    if not _is_rolled_up(lake, tables["readings"], paths["readings"]):
        say(_NAME, "nothing is deleted for its age: run rollup first, which has not seen all of it")
        return None
    return Expiry(since, tables, paths)


def expire(expiry: Expiry) -> None:
    """Delete the files, one commit per table. Raises `ConflictError`."""
    for name, paths in expiry.paths.items():
        if paths:
            expiry.tables[name].expire(paths, expiry.since)
            say(
                _NAME,
                f"{name}: {len(paths)} files that arrived before {expiry.moment:%Y-%m-%d %H:%M} are gone",
            )


def late_files(lake: Place, table: Table) -> set[str]:
    """Return files with late rows that are not settled; merging them with settled rows would hide the
    difference.
    """
    try:
        until, known = _known(lake, [table])
    except UnsettledError:
        return set()  # all is read again
    return late(table, known[table.name], until) if until and table.name in known else set()


def _known(lake: Place, tables: Sequence[Table]) -> tuple[int, dict[str, dict[str, bool]]]:
    """Return the settled moment and the settled files per table."""
    until, marks = settled.marks_of(open_table(lake, "settled"))
    mine = [table for table in tables if table.name in marks]
    return until, {table.name: settled_files(table, marks[table.name], until) for table in mine}


def _first_possible(bronze: Table) -> int:
    """Return a lower bound of arrivals in microseconds since 1970, long before the first stream was created.

    Earlier arrivals come from a hub clock at 1970 and are not old.
    """
    made = [at for history in stream_history.all_of(bronze) if (at := history.made) is not None]
    return micros(back(min(made), _CLOCK_SET)) if made else 0


def why_young(bronze: Table, since: int, now: datetime, age: timedelta, option: str) -> str | None:
    """Return why rows before `since` (microseconds since 1970) may be younger than `age`, None otherwise."""
    silence = _silence(bronze, since, micros(now), age // 2)
    if silence is None:
        return None
    begin, end = map(at_micros, silence)
    return (
        f"by the hub's clock no message arrived from {begin:%Y-%m-%d} to {end:%Y-%m-%d}, more than half of "
        f"{option}: set the clock of the hub if it is ahead; if it is right, this ends on "
        f"{end + age // 2:%Y-%m-%d}"
    )


def _silence(bronze: Table, since: int, now: int, longest: timedelta) -> tuple[int, int] | None:
    """Return the first span without arrivals above `longest`: a hub clock that jumped ahead makes earlier
    rows seem old.
    """
    most = longest // timedelta(microseconds=1)
    if most <= 0:
        return None
    found, spans = files(bronze), []
    columns = (bounds(found, name) for name in ("path", "min.arrived", "max.arrived"))
    for path, first, last in zip(*columns, strict=True):
        is_known = None not in (first, last)
        if is_known and (micros(last) < since or last - first <= longest):
            spans.append((micros(first), micros(last)))
        else:
            arrived = parquet_columns(bronze.path / path, ["arrived"])["arrived"].cast(pa.int64())
            spans += _islands(np.unique(pc.drop_null(arrived).to_numpy()), most)
    if all(from_ >= since for from_, _ in spans):
        return None  # a lake that is younger than that
    end = since
    for from_, to in sorted(span for span in spans if span[0] <= now):
        if from_ > end + most:
            return end, from_
        end = max(end, to)
    return None


def _islands(ascending: Numbers, most: int) -> Iterator[tuple[int, int]]:
    """Yield spans of numbers with steps up to `most`."""
    for part in np.split(ascending, np.flatnonzero(np.diff(ascending) > most) + 1):
        if part.size:
            yield int(part[0]), int(part[-1])


def _is_rolled_up(lake: Place, readings: Table, paths: list[str]) -> bool:
    made = open_table(lake, "rollup_1d")
    if made is None or not paths:
        return True
    version = made.offset(commits.ROLLED_UP)
    if version is None or version > readings.delta.version():
        return False
    new = _holding_new_rows(readings, version)
    made.sync()  # what came of the readings is nowhere else then
    return new is not None and not new & set(paths)


def _holding_new_rows(table: Table, version: int) -> set[str] | None:
    """Return files with rows newer than a version, including merged ones; None when the log is too short."""
    new: set[str] = set()
    for number in range(version + 1, table.delta.version() + 1):
        entries = commits.entries(table.path, number)
        if entries is None:
            return None
        added = [entry["add"] for entry in entries if "add" in entry]
        removed = {entry["remove"]["path"] for entry in entries if "remove" in entry}
        if removed & new or any(add.get("dataChange", True) for add in added):
            new.update(add["path"] for add in added)
    return new


_CLOCK_SET: Final = timedelta(days=365)
"""Largest backward step of the hub's clock since its first stream was created."""
_AUDITS_KEPT: Final = timedelta(days=90)
"""Age relative to the newest audit, so that one always stays and a wrong clock deletes nothing more."""
_SLACK: Final = timedelta(days=30)
"""Keeps rows this much longer, so that a file is rewritten monthly rather than nightly."""


def drop_old_audits(lake: Place, *, dry_run: bool) -> None:
    """Delete the rows of old audits. Raises `ConflictError`."""
    table = open_table(lake, "audit")
    newest = None if table is None else latest(table, "at")
    if table is None or newest is None:
        return
    before = back(newest, _AUDITS_KEPT)
    oldest = min((least for least in bounds(files(table), "min.at") if least is not None), default=newest)
    if oldest >= back(before, _SLACK):
        return
    if dry_run:
        say(_NAME, f"audit: the rows of audits before {before:%Y-%m-%d} would be deleted")
        return

    def is_old(rows: pa.Table) -> pa.Array:
        return pc.less(rows["at"], pa.scalar(before, rows["at"].type))

    dropped = without(lake, table, is_old, ["at"], [("at", "<", before)])
    table.rewrite(dropped.kept, dropped.replaced, changed=True)
    say(_NAME, f"audit: {dropped.rows} rows of audits before {before:%Y-%m-%d} are deleted")
