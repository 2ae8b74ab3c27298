"""Runs the job `gaps`, which reports silent devices, holes in series, and late arrivals.

It covers unsent and late data; the audit covers lost data. It sorts one window of `ts` and adds the result to
the table `gaps`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

from agent.contract import Exit
from hub_jobs.gaps import hear
from hub_jobs.gaps.cadence import BUCKETS
from hub_jobs.gaps.hear import Heard
from hub_jobs.gaps.look_back import Rolled, Span, known_before, open_rolled
from hub_jobs.gaps.outages import COLUMNS, worst
from hub_jobs.gaps.report import GapFindings, Late, as_json, as_text
from hub_jobs.job_loop import job_parser, metrics_of, run_once, say
from hub_jobs.metrics import JobMetrics
from hub_jobs.tables.delta import Table, ensure_table, no_table, open_table
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import Condition, batches, latest
from hub_jobs.times import at_micros, back, moment, stretch

_NAME: Final = "gaps"
_WINDOW: Final = timedelta(days=1)
_LOOK_BACK: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class GapsOptions:
    """The command line's options; None where open."""

    lake: Place
    begin: datetime | None
    end: datetime | None
    look_back: timedelta
    factor: float
    domain: str | None
    json: Path | None


def main(argv: Sequence[str] | None = None) -> Exit:
    """Run the job and return its exit code."""
    options, metrics = _options(argv)
    return run_once(partial(run, options), metrics)


def run(options: GapsOptions) -> Exit:
    """Look for gaps, print the result, and write it to the table `gaps` and the file."""
    rolled = open_rolled(options.lake)
    readings = open_table(options.lake, "readings")
    if readings is None:
        say(_NAME, str(no_table(options.lake, "readings", "refine")))
        return Exit.USAGE
    newest = latest(readings, "arrived")
    if newest is None:
        say(_NAME, f"there is nothing in {readings.path} yet: nothing to do")
        return Exit.WELL
    begin, end = window(options, newest)
    if (kept_since := readings.kept_since) is not None:
        oldest = at_micros(kept_since)
        if begin < oldest:
            say(_NAME, f"the window begins at {oldest:%Y-%m-%dT%H:%M:%SZ}: what is older may be deleted")
            begin = oldest
    if begin >= end:
        say(
            _NAME,
            f"the newest reading came at {newest:%Y-%m-%dT%H:%M:%SZ}, before --from: run ingest and refine",
        )
        return Exit.USAGE
    found = _look(options, readings, rolled, (begin, end))
    if options.json is not None:
        options.json.write_text(as_json(found))
    print(as_text(found))
    return Exit.WELL


def window(options: GapsOptions, newest: datetime) -> tuple[datetime, datetime]:
    """Return the window, which ends at the newest arrival at the latest: a delay in the hub is no silence."""
    end = newest if options.end is None else min(options.end, newest)
    return (options.begin or back(end, _WINDOW)), end


def _look(options: GapsOptions, readings: Table, rolled: Rolled | None, window: Span) -> GapFindings:
    at, (begin, end) = datetime.now(UTC), window
    where: list[Condition] = [] if options.domain is None else [("domain", "=", options.domain)]
    before = known_before(readings, rolled, (back(begin, options.look_back), begin), where)
    heard = Heard(readings, window, where, before, options.factor)
    rows = heard.most_rows()
    table = ensure_table(options.lake, "gaps")
    if rows is not None and rows <= hear.HERE_ROWS:
        files, late = hear.judge_here(heard, at)
    else:
        from hub_jobs.spark.session import session

        files, late = hear.judge_by_tasks(session(_NAME), heard, at, rows)
    table.commit(files, {})
    stored = batches(ensure_table(options.lake, "gaps"), COLUMNS, [("at", "=", at)])
    return GapFindings(at, begin, end, options.factor, worst(stored), _late(late))


def _late(rows: pa.Table) -> list[Late]:
    found = [
        Late(row["domain"], {name: row[name] for name in BUCKETS}, row["worst"]) for row in rows.to_pylist()
    ]
    return sorted(found, key=lambda late: late.domain)


def _options(argv: Sequence[str] | None) -> tuple[GapsOptions, JobMetrics]:
    parser = job_parser(_NAME, "Silent devices, holes, and what came late.")
    parser.add_argument(
        "--from",
        dest="begin",
        type=moment,
        metavar="TIME",
        help="`ts` at or after, RFC 3339 (default: a day before)",
    )
    parser.add_argument(
        "--to",
        dest="end",
        type=moment,
        metavar="TIME",
        help="`ts` before, RFC 3339 (default, and at most: when the newest reading arrived at the hub)",
    )
    parser.add_argument(
        "--look-back",
        type=stretch,
        default=_LOOK_BACK,
        metavar="LENGTH",
        help="how long before the window to look for what is not in it any more, such as 12h (default: 7d)",
    )
    parser.add_argument(
        "--factor",
        type=_factor,
        default=3.0,
        metavar="K",
        help="what is longer than K times the usual interval is a hole (default: 3)",
    )
    parser.add_argument("--domain", help="only this one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found as JSON too")
    given = parser.parse_args(argv)
    if given.begin is not None and given.end is not None and given.begin >= given.end:
        parser.error("--from is not before --to")
    options = GapsOptions(
        given.lake,
        given.begin,
        given.end,
        given.look_back,
        given.factor,
        given.domain,
        given.json,
    )
    return options, metrics_of(_NAME, parser, given)


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 < factor <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 1, such as 3 or 2.5")
    return factor
