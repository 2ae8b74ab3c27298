"""Compares the rows of bronze with the cache `seen` and with the offsets.

The rows are the truth. Numbers only in the cache were deleted from bronze, or another program wrote them.
Ingest committed no rows above its offset. `readings` behind the cache is an older copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from agent.contract.ranges import size, text, without
from hub_jobs.audit.ledgers import Run
from hub_jobs.audit.rows.scan import Unreadable, put_aside
from hub_jobs.tables import seen
from hub_jobs.tables.delta import Table, open_table
from hub_jobs.tables.parquet_reading import UnreadableError
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import History, runs_of
from hub_jobs.tables.scan import batches
from hub_jobs.tables.spaces import SeenNumbers, hub_space, joined, lacking
from hub_jobs.tables.stream_history import StreamHistory, offsets


@dataclass(frozen=True, slots=True)
class SeenCache:
    """The cache at one moment; empty when it is missing or unreadable."""

    seen: SeenNumbers = field(default_factory=SeenNumbers)
    table: Table | None = None
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def domains(self) -> set[str]:
        """The domains with batches in bronze."""
        return {domain for domain, _, _ in _runs(self.seen)}

    def upto(self, known: Sequence[StreamHistory]) -> dict[History, int]:
        """Return the sequence of each history up to which the cache is complete."""
        return offsets(known, self.table)


@dataclass(frozen=True)
class BronzeContents:
    """Present and former contents of bronze."""

    here: SeenNumbers
    """Present rows."""
    gone: SeenNumbers = field(default_factory=SeenNumbers)
    """In the cache but not in bronze any more."""
    forgotten: SeenNumbers = field(default_factory=SeenNumbers)
    """Missing in the cache: repeats would count as new."""

    @cached_property
    def ever(self) -> SeenNumbers:
        """Present and former contents."""
        return joined(self.here, self.gone)

    def gone_runs(self) -> set[Run]:
        """Runs with batches that are gone."""
        return _runs(self.gone)


def _runs(numbers: SeenNumbers) -> set[Run]:
    names = [space.split("/") for space in numbers.spaces if space.startswith("batch/")]
    return {(domain, cls, run) for _, domain, cls, run in names}


def open_cache(lake: Place) -> SeenCache:
    """Read the cache, empty when missing. Call before opening bronze, which then includes it. Raises
    `TableError`.
    """
    table = open_table(lake, "seen")
    if table is None:
        return SeenCache()
    try:
        known = seen.read(table)
    except UnreadableError as error:
        return SeenCache(unreadable=(put_aside(table, error),))
    return SeenCache(known, table)


def against_cache(cache: SeenCache, before: SeenNumbers, after: SeenNumbers) -> BronzeContents:
    """Compare bronze with the cache: `before` must be in the cache, `after` need not be yet."""
    here = joined(before, after)
    if cache.table is None:
        return BronzeContents(here)
    return BronzeContents(here, lacking(cache.seen, here), lacking(before, cache.seen))


def uncommitted_sentences(
    bronze: Table, held: BronzeContents, known: Sequence[StreamHistory], rows: Mapping[History, int]
) -> Iterator[str]:
    """Report rows of bronze that ingest did not commit or that are doubled. `rows` counts rows
    per history.
    """
    for history in known:
        name, here = "/".join(history.history), held.here.ranges(hub_space(*history.history))
        if beyond := without(here, [(1, history.done or 0)]):
            yield f"bronze holds sequences {text(beyond)} of {name}, which no ingest has committed"
        if more := rows[history.history] - size(here):
            yield (
                f"bronze holds sequences {text(_twice(bronze, history))} of {name} more than once: "
                f"{more} rows too many"
            )


def _twice(bronze: Table, history: StreamHistory) -> list[tuple[int, int]]:
    where = history.rows(0, np.iinfo(np.int64).max)
    seqs = np.concatenate([rows["seq"].to_numpy() for rows in batches(bronze, ["seq"], where)])
    distinct, counts = np.unique(seqs, return_counts=True)
    return runs_of(distinct[counts > 1])


def stale_sentences(
    held: BronzeContents, cache: SeenCache, readings: Table | None, known: Sequence[StreamHistory]
) -> Iterator[str]:
    """Report outdated state that is no loss and that the next refine may repair."""
    for file in cache.unreadable:
        yield f"{file}. The next refine that finds new messages makes the table `seen` again from bronze"
    for space, ranges in sorted(held.forgotten.spaces.items()):
        yield (
            f"the cache `seen` does not know {text(ranges)} of {space}, which bronze holds: "
            "a repeat would be taken for new. Delete the table `seen`: the next refine makes it again from "
            "bronze"
        )
    before, now = cache.upto(known), offsets(known, readings)
    for history, end in before.items():
        if now[history] < end:
            yield (
                f"readings is older than it was: {'/'.join(history)} is refined up to {now[history]}, "
                f"and had been up to {end}. The next refine makes again what it lacks, from payloads that "
                "bronze has"
            )
