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
from typing import TYPE_CHECKING, Final

from agent.contract import Exit, Ledger, Previous, parse_ledger
from hub_jobs import incarnations, page, report, tally
from hub_jobs.exits import ended, say
from hub_jobs.tables import ensure_table, frame, open_table, seen
from hub_jobs.tally import LISTED, Class, Frames, Run, Said
from hub_jobs.transforms import accounts, balance, discards
from hub_jobs.transforms.accounts import Account, Arrived
from hub_jobs.transforms.ranges import Range, holes, text, union, without
from hub_jobs.transforms.spaces import batch_space, source_space

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME: Final = "audit"


def main(argv: Sequence[str] | None = None) -> Exit:
    """Run the job and return its exit code."""
    parser = argparse.ArgumentParser(prog="audit.py", description="Compare the ledgers with the tables.")
    parser.add_argument("--lake", required=True, type=Path, help="the directory of the tables")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the accounts as JSON too")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with a picture of the hours")
    options = parser.parse_args(argv)
    return ended(_NAME, lambda: run(options.lake.absolute(), options.json, options.html))


def run(lake: Path, json_file: Path | None = None, html_file: Path | None = None) -> Exit:
    """Audit a lake, print its accounts, and write them to the tables `audit` and `audit_hours` and to the
    files."""
    at = datetime.now(UTC)
    if open_table(lake, "bronze") is None:
        say(_NAME, f"there is no table {lake / 'bronze'}: give --lake the directory that ingest writes to")
        return Exit.USAGE
    from hub_jobs.session import session

    found = _audit(session(_NAME), lake, at)
    report.store(lake, found)
    if json_file is not None:
        json_file.write_text(report.as_json(found))
    if html_file is not None:
        html_file.write_text(page.as_html(found))
    print(report.as_text(found))
    return Exit.LOSS if found.lost else Exit.WELL


def _audit(spark: SparkSession, lake: Path, at: datetime) -> report.Report:
    frames = _open(spark, lake)
    said = _said(frames.bronze)
    arrived, direct, by_hour = tally.balanced(frames, said)
    for key in said.ledgers.keys() | said.remembered.keys():
        arrived.setdefault(key, Arrived())
    rows = [
        accounts.of_run(
            *key, said.ledgers.get(key), said.remembered.get(key), _placed(frames, said, key, held)
        )
        for key, held in sorted(arrived.items())
    ]
    lost, explained = _gaps(frames, said)
    accounted = rows + _devices(frames, said, direct)
    return report.Report(at, accounted, lost, explained + said.unreadable, by_hour)


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
    offsets = {one.history: one.done or 0 for one in incarnations.refined(known, readings)}
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
    unusable = records.where("fault is not null").orderBy("stream", "seq").limit(LISTED)
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
