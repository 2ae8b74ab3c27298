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
from hub_jobs.transforms import accounts, balance, discards
from hub_jobs.transforms.accounts import Account, Arrived
from hub_jobs.transforms.ranges import Range, holes, runs_of, text, union, without
from hub_jobs.transforms.spaces import Seen, batch_space, source_space

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_NAME: Final = "audit"
_LISTED: Final = 1_000
"""Batches, places of direct messages, and ledger records that are named one by one; their sums count all."""

Run = tuple[str, str, str]
"""Domain, class and run."""

Class = tuple[str | None, str | None]
"""Domain and class, as far as they are known."""


class Said(NamedTuple):
    """What the leaves say: the newest ledger record of every run, what later runs `remembered` of earlier
    ones, the sequences that are `gone` from the streams of leaves, which of those each source took from, and
    the records that can't be used."""

    ledgers: dict[Run, Ledger]
    remembered: dict[Run, Previous]
    gone: dict[discards.Origin, list[discards.Named]]
    origins: dict[tuple[str, str], set[discards.Origin]]
    unreadable: list[str]


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
    said = _said(frames.bronze)
    arrived, direct = _balance(frames)
    for key in said.ledgers.keys() | said.remembered.keys():
        arrived.setdefault(key, Arrived())
    rows = [
        accounts.of_run(
            *key, said.ledgers.get(key), said.remembered.get(key), _placed(frames, said, key, held)
        )
        for key, held in sorted(arrived.items())
    ]
    lost, explained = _gaps(frames, said)
    return report.Report(at, rows + _devices(frames, said, direct), lost, explained + said.unreadable)


def _placed(frames: Frames, said: Said, key: Run, held: Arrived) -> Arrived:
    """What arrived of a run with the numbers of its batches, and how much of it was called discarded."""
    batches = frames.seen.ranges(batch_space(*key))
    ledger = said.ledgers.get(key)
    named: list[Range] = [(first, last) for first, last, _, _ in ledger.discarded] if ledger else []
    came = discards.both(named, batches)
    kept = 0
    if came:
        rows = balance.counts(frames.bronze, *key, came[0][0], came[-1][1]).toLocalIterator()
        kept = sum(row["count"] for row in rows if not without([(row.n, row.n)], came))
    return replace(held, batches=batches, kept=kept)


def _devices(frames: Frames, said: Said, arrived: dict[Class, Arrived]) -> list[Account]:
    """The accounts of messages that are of no run, with those of them that leaves discarded."""
    named: dict[Class, list[discards.Named]] = {}
    kept: dict[Class, int] = {}
    for (domain, cls, created), ranges in said.gone.items():
        direct = [one for one in ranges if one[2]]
        named.setdefault((domain, cls), []).extend(direct)
        for (stream, identity), origins in said.origins.items():
            if direct and (domain, cls, created) in origins:
                count = _kept(frames, stream, identity, [(first, last) for first, last, _, _ in direct])
                kept[domain, cls] = kept.get((domain, cls), 0) + count
    for place in named:
        if named[place]:
            arrived.setdefault(place, Arrived())
    return [
        accounts.of_direct(*place, replace(held, kept=kept.get(place, 0)), named.get(place, ()))
        for place, held in sorted(arrived.items(), key=lambda item: tuple(map(str, item[0])))
    ]


def _kept(frames: Frames, stream: str, identity: str, named: list[Range]) -> int:
    """How many direct messages of a source arrived of those that were called discarded."""
    came = discards.both(named, frames.seen.ranges(source_space(stream, identity)))
    if not came:
        return 0
    places = balance.direct_places(frames.bronze, stream, identity, came[0][0], came[-1][1])
    return sum(
        1 for row in places.toLocalIterator() if without([(row.source_seq, row.source_seq)], came) == []
    )


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


def _said(bronze: DataFrame) -> Said:
    said: dict[Run, Ledger] = {}
    remembered: dict[Run, Previous] = {}
    records = balance.ledgers(bronze).persist()
    unusable = records.where("fault is not null").orderBy("stream", "seq").limit(_LISTED)
    unreadable = [
        f"{row.domain}, class {row['class']}: the ledger record at hub sequence {row.seq} of {row.stream} "
        f"can't be used: {row.fault}"
        for row in unusable.collect()
    ]
    naming: list[Ledger] = []
    for row in balance.newest(records).toLocalIterator():
        newest = parse_ledger(bytes(row.payload))
        naming += [newest, parse_ledger(bytes(row.naming))]
        ledger = discards.merged(*naming[-2:])
        said[ledger.domain, ledger.cls, ledger.run] = ledger
        if ledger.previous is not None:
            key = (ledger.domain, ledger.cls, ledger.previous.run)
            known = remembered.get(key)
            if known is None or known.n <= ledger.previous.n:
                remembered[key] = ledger.previous
    origins: dict[tuple[str, str], set[discards.Origin]] = {}
    for row in balance.origins(records).collect():
        place = (row.source_stream, row.source_identity)
        origins.setdefault(place, set()).add((row.domain, row["class"], row.created))
    records.unpersist()
    return Said(said, remembered, discards.gone(naming), origins, unreadable)


def _balance(frames: Frames) -> tuple[dict[Run, Arrived], dict[Class, Arrived]]:
    """What arrived of every run, and of messages that are of none."""
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


def _direct(frames: Frames) -> dict[Class, Arrived]:
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
    found: dict[Class, Arrived] = {
        (row.domain, row["class"]): _arrived(row, findings.get((row.domain, row["class"]), []))
        for row in balance.direct(others).collect()
    }
    others.unpersist()
    return found


def _arrived(row: Row, findings: list[str]) -> Arrived:
    names = ("in_bronze", "pending", "in_readings", "quarantined", "missing", "doubled", "dead")
    return Arrived(**{name: row[name] for name in names if name in row}, findings=tuple(findings))


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


def _gaps(frames: Frames, said: Said) -> tuple[list[str], list[str]]:
    """Sequences that never came, without and with a reason."""
    lost = []
    explained = []
    named: dict[str, list[Range]] = {}
    for (stream, identity), origins in said.origins.items():
        gone = (said.gone.get(origin, []) for origin in origins)
        named[source_space(stream, identity)] = union(
            (first, last) for ranges in gone for first, last, _, _ in ranges
        )
    for space, ranges in sorted(frames.seen.spaces.items()):
        missing = holes(ranges)
        kind, _, name = space.partition("/")
        if not missing or kind == "batch":
            continue
        if kind == "hub":
            lost.append(f"hub stream {name}: sequences {text(missing)} were gone before they were ingested")
            continue
        unnamed = without(missing, named.get(space, []))
        if unnamed:
            lost.append(f"source {name}: sequences {text(unnamed)} never came")
        if unnamed != missing:
            discarded = without(missing, unnamed)
            explained.append(f"source {name}: sequences {text(discarded)} were discarded at the edge")
    return lost, explained


if __name__ == "__main__":
    sys.exit(main())
