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
from typing import Final

from agent.contract import Exit
from hub_jobs import counting, incarnations, page, report, tally
from hub_jobs.counting import Tables
from hub_jobs.exits import ended, say
from hub_jobs.tables import ensure_table, open_table, seen
from hub_jobs.tables.places import Place, parse_place
from hub_jobs.tally import Class, Said
from hub_jobs.transforms import accounts, discards
from hub_jobs.transforms.accounts import Account, Arrived
from hub_jobs.transforms.ledgers import Run, remembered
from hub_jobs.transforms.ranges import Range, holes, text, union, without
from hub_jobs.transforms.spaces import Seen, batch_space, source_space

_NAME: Final = "audit"


def main(argv: Sequence[str] | None = None) -> Exit:
    """Run the job and return its exit code."""
    parser = argparse.ArgumentParser(prog="audit.py", description="Compare the ledgers with the tables.")
    parser.add_argument("--lake", required=True, type=parse_place, help="the directory of the tables")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the accounts as JSON too")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with a picture of the hours")
    options = parser.parse_args(argv)
    return ended(_NAME, lambda: run(options.lake, options.json, options.html))


def run(lake: Place, json_file: Path | None = None, html_file: Path | None = None) -> Exit:
    """Audit a lake, print its accounts, and write them to the tables `audit` and `audit_hours` and to the
    files."""
    at = datetime.now(UTC)
    if open_table(lake, "bronze") is None:
        say(_NAME, f"there is no table {lake / 'bronze'}: give --lake the directory that ingest writes to")
        return Exit.USAGE
    found = _audit(lake, at)
    report.store(lake, found)
    if json_file is not None:
        json_file.write_text(report.as_json(found))
    if html_file is not None:
        html_file.write_text(page.as_html(found))
    print(report.as_text(found))
    return Exit.LOSS if found.lost else Exit.WELL


def _audit(lake: Place, at: datetime) -> report.Report:
    # The oldest snapshot first: a refine that commits meanwhile then adds nothing to readings that bronze
    # lacks.
    readings, quarantine = ensure_table(lake, "readings"), ensure_table(lake, "quarantine")
    bronze = ensure_table(lake, "bronze")
    known = incarnations.all_of(bronze)
    offsets = {one.history: readings.offset(one.refined) or 0 for one in known}
    tables = Tables(bronze, readings, quarantine, offsets)
    held = seen.load(lake, bronze, known)
    said = _said(tables)
    found = tally.tallied(tables, said, held)
    for key in said.ledgers.keys() | said.remembered.keys():
        found.runs.setdefault(key, Arrived())
    rows = [
        accounts.of_run(
            *key,
            said.ledgers.get(key),
            said.remembered.get(key),
            _placed(tables, said, held, key, one),
        )
        for key, one in sorted(found.runs.items())
    ]
    lost, explained = _gaps(held, said)
    accounted = rows + _devices(tables, said, held, found.classes)
    return report.Report(at, accounted, lost, explained + said.unreadable + found.unnamed, found.hours)


def _said(tables: Tables) -> Said:
    spoken = counting.spoken(tables)
    ledgers = spoken.ledgers()
    return Said(
        ledgers,
        remembered(ledgers.values()),
        spoken.gone(),
        spoken.origins,
        [str(one) for one in spoken.first_unusable()],
    )


def _placed(tables: Tables, said: Said, held: Seen, key: Run, arrived: Arrived) -> Arrived:
    """What arrived of a run with the numbers of its batches, and how much of it was called discarded."""
    numbers = held.ranges(batch_space(*key))
    ledger = said.ledgers.get(key)
    named: list[Range] = [(first, last) for first, last, _, _ in ledger.discarded] if ledger else []
    came = discards.both(named, numbers)
    kept = counting.kept_readings(tables, key, came) if came else 0
    return replace(arrived, batches=numbers, kept=kept)


def _devices(tables: Tables, said: Said, held: Seen, arrived: dict[Class, Arrived]) -> list[Account]:
    """The accounts of messages that are of no run, with those of them that leaves discarded."""
    named: dict[Class, list[discards.Named]] = {}
    kept: dict[Class, int] = {}
    for (domain, cls, created), ranges in said.gone.items():
        direct = [one for one in ranges if one[2]]
        named.setdefault((domain, cls), []).extend(direct)
        for (stream, identity), origins in said.origins.items():
            if not direct or (domain, cls, created) not in origins:
                continue
            came = discards.both(
                [(first, last) for first, last, _, _ in direct], held.ranges(source_space(stream, identity))
            )
            if came:
                kept.setdefault((domain, cls), 0)
                kept[domain, cls] += counting.kept_messages(tables, stream, identity, came)
    for place in named:
        if named[place]:
            arrived.setdefault(place, Arrived())
    return [
        accounts.of_direct(*place, replace(one, kept=kept.get(place, 0)), named.get(place, ()))
        for place, one in sorted(arrived.items(), key=lambda item: tuple(map(str, item[0])))
    ]


def _gaps(held: Seen, said: Said) -> tuple[list[str], list[str]]:
    """Sequences that never came, without and with a reason."""
    lost = []
    explained = []
    named: dict[str, list[Range]] = {}
    for (stream, identity), origins in said.origins.items():
        gone = (said.gone.get(origin, []) for origin in origins)
        named[source_space(stream, identity)] = union(
            (first, last) for ranges in gone for first, last, _, _ in ranges
        )
    for space, ranges in sorted(held.spaces.items()):
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
