"""What arrived, counted: bronze against readings and quarantine, by run, by class for messages of no run, and
by hour. It brings what Spark counts to the driver, bounded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.contract import Ledger, Previous
from hub_jobs.transforms import balance, discards, hours
from hub_jobs.transforms.accounts import Arrived, never_came_of
from hub_jobs.transforms.hours import Hour
from hub_jobs.transforms.ranges import runs_of, text, without
from hub_jobs.transforms.spaces import Seen, batch_space

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

LISTED: Final = 1_000
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


def balanced(frames: Frames, said: Said) -> tuple[dict[Run, Arrived], dict[Class, Arrived], list[Hour]]:
    """What arrived of every run, of messages that are of none, and all of it by hour."""
    refined = balance.refined(frames.offsets)
    tables = (frames.readings, frames.quarantine)
    stamped = hours.stamped(frames.bronze)
    held = balance.batches(stamped, *tables, refined).persist()
    broken = balance.incomplete(held, *tables).persist()
    findings: dict[Run, list[str]] = {}
    for row in broken.orderBy(balance.BATCH).limit(LISTED).collect():
        findings.setdefault((row.domain, row["class"], row.run), []).append(_broken_text(row))
    runs = {
        (row.domain, row["class"], row.run): _arrived(
            row, findings.get((row.domain, row["class"], row.run), [])
        )
        for row in balance.runs(held, broken).toLocalIterator()
    }
    others = balance.others(stamped, *tables, refined).persist()
    by_hour = hours.collected(hours.of_batches(held, broken), hours.of_others(others))
    by_hour += _lost_by_hour(frames, said, held)
    direct = _direct(others)
    for one in (held, broken, others):
        one.unpersist()
    return runs, direct, hours.merged(by_hour)


def _lost_by_hour(frames: Frames, said: Said, held: DataFrame) -> list[Hour]:
    """The batches that never came, by the hour in which they were sealed as far as can be told."""
    lost = {
        key: never_came_of(
            said.ledgers.get(key), said.remembered.get(key), frames.seen.ranges(batch_space(*key))
        )
        for key in said.ledgers.keys() | said.remembered.keys()
    }
    lost = {key: ranges for key, ranges in sorted(lost.items())[:LISTED] if ranges}
    known: dict[Run, list[tuple[int, datetime]]] = {}
    if lost:
        for row in hours.moments(held, lost).toLocalIterator():
            run = (row.domain, row["class"], row.run)
            known.setdefault(run, []).append((row.n, row.moment.astimezone(UTC)))
    return [
        Hour(key[0], key[1], moment, lost=last - first + 1)
        for key, ranges in lost.items()
        for first, last in ranges[:LISTED]
        if (moment := hours.about(known.get(key, []), first)) is not None
    ]


def _direct(others: DataFrame) -> dict[Class, Arrived]:
    findings: dict[tuple[str | None, str | None], list[str]] = {}
    for row in others.where("difference <> 0").orderBy("source_stream", "source_seq").limit(LISTED).collect():
        verb = "is missing from readings" if row.difference > 0 else "is in readings more than once"
        findings.setdefault((row.domain, row["class"]), []).append(
            f"{row.domain}: message {row.source_seq} of {row.source_stream} ({row.source_identity}) {verb}"
        )
    found: dict[Class, Arrived] = {
        (row.domain, row["class"]): _arrived(row, findings.get((row.domain, row["class"]), []))
        for row in balance.direct(others).collect()
    }
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
