"""spark-submit hub_jobs/audit.py: what the agents acknowledged against what is in the tables.

Each ledger against the batches in bronze, each batch in bronze against its readings and quarantine, and
every sequence of a hub's or a source's stream. What is missing is named by its batches and places; exit
code 3 when something is gone without a reason, or doubled. The accounts also go into the table `audit`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.contract import Exit, Ledger, Previous, parse_ledger
from hub_jobs import incarnations, report
from hub_jobs.exits import ended, say
from hub_jobs.tables import ensure_table, frame, open_table, seen
from hub_jobs.transforms import accounts, balance
from hub_jobs.transforms.accounts import Account, Arrived
from hub_jobs.transforms.ranges import Range, holes, runs_of, size, text, without
from hub_jobs.transforms.spaces import Seen, batch_space

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_NAME: Final = "audit"
_LISTED: Final = 1_000
"""Batches, places of direct messages, and ledger records that are named one by one; their sums count all."""

Run = tuple[str, str, str]
"""Domain, class and run."""


class Frames(NamedTuple):
    """The tables, read at one moment: everything that `readings` should hold is in the other two."""

    bronze: DataFrame
    readings: DataFrame
    quarantine: DataFrame
    offsets: dict[tuple[str, str], int]
    """Up to which hub sequence each stream and incarnation is refined."""
    seen: Seen


def main(argv: Sequence[str] | None = None) -> Exit:
    """Run the job and return its exit code."""
    parser = argparse.ArgumentParser(prog="audit.py", description="Compare the ledgers with the tables.")
    parser.add_argument("--lake", required=True, type=Path, help="the directory of the tables")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the accounts as JSON too")
    options = parser.parse_args(argv)
    return ended(_NAME, lambda: run(options.lake.absolute(), options.json))


def run(lake: Path, json_file: Path | None = None) -> Exit:
    """Audit a lake, print its accounts, and write them to the table `audit` and to `json_file`."""
    at = datetime.now(UTC)
    if open_table(lake, "bronze") is None:
        say(_NAME, f"there is no table {lake / 'bronze'}: give --lake the directory that ingest writes to")
        return Exit.USAGE
    from hub_jobs.session import session

    found = _audit(session(_NAME), lake, at)
    report.store(lake, found)
    if json_file is not None:
        json_file.write_text(report.as_json(found))
    print(report.as_text(found))
    return Exit.LOSS if found.lost else Exit.WELL


def _audit(spark: SparkSession, lake: Path, at: datetime) -> report.Report:
    frames = _open(spark, lake)
    said, remembered, unreadable = _said(frames.bronze)
    arrived, direct = _balance(frames)
    for key in said.keys() | remembered.keys():
        arrived.setdefault(key, Arrived())
    rows = [
        accounts.of_run(
            *key,
            said.get(key),
            remembered.get(key),
            replace(held, batches=frames.seen.ranges(batch_space(*key))),
        )
        for key, held in sorted(arrived.items())
    ]
    lost, explained = _gaps(frames, said)
    return report.Report(at, rows + direct, lost, explained + unreadable)


def _open(spark: SparkSession, lake: Path) -> Frames:
    # The oldest snapshot first: a refine that commits meanwhile then adds nothing to readings that bronze
    # lacks.
    readings, quarantine = ensure_table(lake, "readings"), ensure_table(lake, "quarantine")
    bronze = ensure_table(lake, "bronze")
    known = incarnations.all_of(bronze)
    offsets = {(one.stream, one.created): readings.offset(one.refined) or 0 for one in known}
    refined = balance.refined(offsets)
    return Frames(
        frame(spark, bronze),
        frame(spark, readings),
        frame(spark, quarantine).where(refined),
        offsets,
        seen.load(lake, bronze, known),
    )


def _said(bronze: DataFrame) -> tuple[dict[Run, Ledger], dict[Run, Previous], list[str]]:
    """The newest good ledger record of every run, what later runs remembered of earlier ones, and the records
    that can't be used."""
    said: dict[Run, Ledger] = {}
    remembered: dict[Run, Previous] = {}
    records = balance.ledgers(bronze).persist()
    unusable = records.where("fault is not null").orderBy("stream", "seq").limit(_LISTED)
    unreadable = [
        f"{row.domain}, class {row['class']}: the ledger record at hub sequence {row.seq} of {row.stream} "
        f"can't be used: {row.fault}"
        for row in unusable.collect()
    ]
    for row in balance.newest(records).toLocalIterator():
        ledger = parse_ledger(bytes(row.payload))
        said[ledger.domain, ledger.cls, ledger.run] = ledger
        if ledger.previous is not None:
            key = (ledger.domain, ledger.cls, ledger.previous.run)
            known = remembered.get(key)
            if known is None or known.n <= ledger.previous.n:
                remembered[key] = ledger.previous
    records.unpersist()
    return said, remembered, unreadable


def _balance(frames: Frames) -> tuple[dict[Run, Arrived], list[Account]]:
    """What arrived of every run, and the accounts of messages that are of none."""
    refined = balance.refined(frames.offsets)
    tables = (frames.readings, frames.quarantine)
    held = balance.batches(frames.bronze, *tables, refined).persist()
    broken = balance.incomplete(held, *tables).persist()
    findings: dict[Run, list[str]] = {}
    for row in broken.orderBy(balance.BATCH).limit(_LISTED).collect():
        findings.setdefault((row.domain, row["class"], row.run), []).append(_broken_text(row))
    runs = {
        (row.domain, row["class"], row.run): _arrived(
            row, findings.get((row.domain, row["class"], row.run), [])
        )
        for row in balance.runs(held, broken).toLocalIterator()
    }
    held.unpersist()
    broken.unpersist()
    return runs, _direct(frames)


def _direct(frames: Frames) -> list[Account]:
    refined = balance.refined(frames.offsets)
    others = balance.others(frames.bronze, frames.readings, frames.quarantine, refined).persist()
    findings: dict[tuple[str | None, str | None], list[str]] = {}
    for row in (
        others.where("difference <> 0").orderBy("source_stream", "source_seq").limit(_LISTED).collect()
    ):
        verb = "is missing from readings" if row.difference > 0 else "is in readings more than once"
        findings.setdefault((row.domain, row["class"]), []).append(
            f"{row.domain}: message {row.source_seq} of {row.source_stream} ({row.source_identity}) {verb}"
        )
    found = [
        accounts.of_direct(
            row.domain, row["class"], _arrived(row, findings.get((row.domain, row["class"]), []))
        )
        for row in balance.direct(others).orderBy("domain", "class").collect()
    ]
    others.unpersist()
    return found


def _arrived(row: Row, findings: list[str]) -> Arrived:
    names = ("in_bronze", "pending", "in_readings", "quarantined", "missing", "doubled")
    return Arrived(**{name: row[name] for name in names}, findings=tuple(findings))


def _broken_text(row: Row) -> str:
    import numpy as np

    places = runs_of(np.array(row.places, dtype=np.int64))
    lacking = without([(0, row["count"] - 1)], places) if row["count"] else []
    repeated = sorted(
        {place for place, after in zip(row.places, row.places[1:], strict=False) if place == after}
    )
    parts = [f"indexes {text(lacking)} of {row['count']} are missing from readings"] if lacking else []
    if repeated:
        doubled = text(runs_of(np.array(repeated, dtype=np.int64)))
        parts.append(f"indexes {doubled} are in readings more than once")
    name = f"{row.domain}, class {row['class']}, run {row.run}, batch {row.n}"
    return f"{name}: {'; '.join(parts) or 'more readings than it has'}"


def _gaps(frames: Frames, said: dict[Run, Ledger]) -> tuple[list[str], list[str]]:
    """Sequences that never came, without and with a reason."""
    lost = []
    explained = []
    discarded: dict[tuple[str, str], int] = {}
    for (domain, cls, _), ledger in said.items():
        ranges: list[Range] = [(first, last) for first, last, _, _ in ledger.discarded]
        discarded[domain, cls] = discarded.get((domain, cls), 0) + size(ranges)
    sources = {
        f"source/{row.source_stream}/{row.source_identity}": (row.domain, row["class"])
        for row in balance.sources(frames.bronze).collect()
    }
    for space, ranges in sorted(frames.seen.spaces.items()):
        missing = holes(ranges)
        kind, _, name = space.partition("/")
        if not missing or kind == "batch":
            continue
        if kind == "hub":
            lost.append(f"hub stream {name}: sequences {text(missing)} were gone before they were ingested")
            continue
        finding = f"source {name}: sequences {text(missing)} never came"
        if discarded.get(sources.get(space, ("", "")), 0) >= size(missing):
            explained.append(f"{finding}; its agent says what it discarded")
        else:
            lost.append(finding)
    return lost, explained


if __name__ == "__main__":
    sys.exit(main())
