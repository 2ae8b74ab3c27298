"""What arrived, counted: bronze against readings and quarantine, by run, by class for messages of no run, and
by hour. It holds a bounded share of the batches at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from agent.contract import Ledger, Previous
from hub_jobs import counting
from hub_jobs.counting import Tables
from hub_jobs.transforms import balance, discards, hours
from hub_jobs.transforms.accounts import Arrived, never_came_of
from hub_jobs.transforms.balance import Batches, Messages, grouped, summed
from hub_jobs.transforms.hours import Hour
from hub_jobs.transforms.ledgers import Lost, Run, Source
from hub_jobs.transforms.ranges import Numbers, runs_of, text, without
from hub_jobs.transforms.spaces import Seen, batch_space

LISTED: Final = 1_000
"""Batches and direct messages that are named one by one; their sums count all."""

Class = tuple[str | None, str | None]
"""Domain and class, as far as they are known."""


class Said(NamedTuple):
    """What the leaves say: the newest ledger record of every run, what later runs `remembered` of earlier
    ones, the sequences that are `gone` from the streams of leaves, which of those each source took from, what
    stores that were `lost` or put back had held, and the records that can't be used."""

    ledgers: dict[Run, Ledger]
    remembered: dict[Run, Previous]
    gone: dict[discards.Origin, list[discards.Named]]
    origins: dict[Source, set[discards.Origin]]
    lost: Lost
    unreadable: list[str]


class Tally(NamedTuple):
    """What arrived of every run, of messages that are of none, and all of it by hour; `unnamed` are sentences
    about what was not looked at one by one."""

    runs: dict[Run, Arrived]
    classes: dict[Class, Arrived]
    hours: list[Hour]
    unnamed: list[str]


class _Sums:
    """Counts by a key, with the sentences that go with them."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str | None, ...], dict[str, int]] = {}
        self.findings: dict[tuple[str | None, ...], list[str]] = {}

    def add(self, names: list[balance.Names], of: Numbers, **counts: Numbers) -> None:
        (ids,), size, firsts = grouped([of], [np.zeros_like(of)])
        sums = {name: summed(ids, size, values) for name, values in counts.items()}
        for at, first in enumerate(firsts.tolist()):
            known = self.counts.setdefault(names[int(of[first])], {})
            for name, values in sums.items():
                known[name] = known.get(name, 0) + values[at]

    def arrived(self) -> Iterator[tuple[tuple[str | None, ...], Arrived]]:
        for key, counts in self.counts.items():
            yield (
                key,
                Arrived(
                    in_bronze=counts["in_bronze"],
                    pending=counts["pending"],
                    in_readings=counts["in_readings"],
                    quarantined=counts["quarantined"],
                    missing=counts["missing"],
                    doubled=counts["doubled"],
                    dead=counts.get("dead", 0),
                    findings=tuple(self.findings.get(key, ())),
                ),
            )


def tallied(tables: Tables, said: Said, seen: Seen) -> Tally:
    """Count everything that the tables hold."""
    runs, classes, by_hour = _Sums(), _Sums(), list(_lost_by_hour(tables, said, seen))
    left = 0
    for share in tables.shares:
        found = counting.count(tables, share)
        parts = found["bronze"], found["readings"], found["quarantine"]
        batches, messages = balance.batches(*parts), balance.messages(*parts)
        left += _name_broken(tables, batches, runs.findings)
        _name_direct(messages, classes.findings)
        runs.add(batches.runs, batches.run, **batches.counts)
        classes.add(messages.owners, messages.owner, **messages.counts)
        by_hour += hours.of_batches(batches) + hours.of_messages(messages)
    unnamed = []
    if left:
        unnamed.append(
            f"{left} more batches are not complete; of them at least what missing and doubled count is so"
        )
    return Tally(
        {_run(names): one for names, one in runs.arrived()},
        {(domain, cls): one for (domain, cls), one in classes.arrived()},
        hours.merged(by_hour),
        unnamed,
    )


def _name_broken(tables: Tables, found: Batches, findings: dict[tuple[str | None, ...], list[str]]) -> int:
    """Look at the places of batches that are not complete, and name them; how many were too many."""
    broken = np.flatnonzero(found.broken)
    room = max(LISTED - sum(map(len, findings.values())), 0)
    keys: list[counting.Key] = [
        (_run(found.runs[found.run[at]]), int(found.n[at])) for at in broken[:room].tolist()
    ]
    places = counting.places(tables, keys) if keys else {}
    for at, key in zip(broken.tolist(), keys, strict=False):
        held = np.sort(np.array(places[key], dtype=np.int64))
        balance.look_again(found, at, held)
        findings.setdefault(found.runs[found.run[at]], []).append(
            _broken_text(key, int(found.count[at]), held)
        )
    return int(broken.size) - len(keys)


def _run(names: balance.Names) -> Run:
    domain, cls, run = map(str, names)
    return domain, cls, run


def _broken_text(key: counting.Key, count: int, places: Numbers) -> str:
    (domain, cls, run), n = key
    lacking = without([(0, count - 1)], runs_of(places)) if count else []
    repeated = runs_of(places[1:][places[1:] == places[:-1]])
    parts = [f"indexes {text(lacking)} of {count} are missing from readings"] if lacking else []
    if repeated:
        parts.append(f"indexes {text(repeated)} are in readings more than once")
    name = f"{domain}, class {cls}, run {run}, batch {n}"
    return f"{name}: {'; '.join(parts) or 'more readings than it has'}"


def _name_direct(found: Messages, findings: dict[tuple[str | None, ...], list[str]]) -> None:
    wrong = np.flatnonzero(found.difference)
    room = max(LISTED - sum(map(len, findings.values())), 0)
    for at in wrong[:room].tolist():
        verb = "is missing from readings" if found.difference[at] > 0 else "is in readings more than once"
        owner = found.owners[found.owner[at]]
        stream, identity = found.sources[found.source[at]]
        findings.setdefault(owner, []).append(
            f"{owner[0]}: message {found.seq[at]} of {stream} ({identity}) {verb}"
        )


def _lost_by_hour(tables: Tables, said: Said, seen: Seen) -> Iterator[Hour]:
    """The batches that never came, by the hour in which they were sealed as far as can be told."""
    lost = {
        key: never_came_of(said.ledgers.get(key), said.remembered.get(key), seen.ranges(batch_space(*key)))
        for key in said.ledgers.keys() | said.remembered.keys()
    }
    lost = {key: ranges for key, ranges in sorted(lost.items())[:LISTED] if ranges}
    known = counting.moments(tables, list(lost)) if lost else {}
    for (domain, cls, run), ranges in lost.items():
        numbers, moments = known.get((domain, cls, run), ([], []))
        for first, last in ranges[:LISTED]:
            moment = hours.about(numbers, moments, first)
            if moment is not None:
                yield Hour(domain, cls, moment, lost=last - first + 1)
