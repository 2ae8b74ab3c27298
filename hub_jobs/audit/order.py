"""What the tables say of each other's state: rows that nobody committed, and tables that are older than they
were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hub_jobs.audit.held import BronzeContents, Cached
from hub_jobs.tables import Table
from hub_jobs.tables.dedup_keys import hub_space
from hub_jobs.tables.ranges import History, runs_of, size, text, without
from hub_jobs.tables.scan import batches
from hub_jobs.tables.stream_history import StreamHistory, offsets


def invented(
    bronze: Table, held: BronzeContents, known: Sequence[StreamHistory], rows: Mapping[History, int]
) -> Iterator[str]:
    """Sentences about rows of bronze that ingest did not commit, or that stand there more than once. `rows`
    are how many there are of each history."""
    for one in known:
        name, here = "/".join(one.history), held.here.ranges(hub_space(*one.history))
        if beyond := without(here, [(1, one.done or 0)]):
            yield f"bronze holds sequences {text(beyond)} of {name}, which no ingest has committed"
        if more := rows[one.history] - size(here):
            yield (
                f"bronze holds sequences {text(_twice(bronze, one))} of {name} more than once: "
                f"{more} rows too many"
            )


def _twice(bronze: Table, one: StreamHistory) -> list[tuple[int, int]]:
    where = one.rows(0, np.iinfo(np.int64).max)
    seqs = np.concatenate([rows["seq"].to_numpy() for rows in batches(bronze, ["seq"], where)])
    distinct, counts = np.unique(seqs, return_counts=True)
    return runs_of(distinct[counts > 1])


def untrue(
    held: BronzeContents, cache: Cached, readings: Table | None, known: Sequence[StreamHistory]
) -> Iterator[str]:
    """Sentences about what is not as it was and no loss: the next refine makes it good, or could."""
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
