"""What leaves say they discarded, from their ledger records. Pure.

A leaf names what went before it knew that the hub had it, so it may name what arrived all the same: what the
tables hold is taken off by whoever asks here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from agent.contract import Ledger, Readings
from hub_jobs.tables.ranges import Range, union, without

Named = tuple[int, int, int, str]
"""First and last sequence, how many direct messages stood there, and the reason."""

Origin = tuple[str, str, str]
"""Domain, class, and when the leaf's stream was made."""


def merged(newest: Ledger, naming: Ledger) -> Ledger:
    """What two records of one run say together: the newest one, and the one that names the most as
    discarded, which a later run may have written in its name."""
    most = {
        name: max(getattr(newest.readings, name), getattr(naming.readings, name))
        for name in Readings.__slots__
    }
    return replace(
        newest,
        n=max(newest.n, naming.n),
        stored=tuple(union(newest.stored, naming.stored)),
        readings=Readings(**most),
        discarded=naming.discarded,
        previous=newest.previous or naming.previous,
        final=newest.final or naming.final,
    )


def outermost(ranges: Iterable[Named]) -> list[Named]:
    """The sequences of a stream that were discarded, from all that is said of it. What is named only grows:
    of two ranges the one that holds the other says it."""
    kept: list[Named] = []
    for one in sorted(ranges, key=lambda each: (each[0], -each[1], -each[2])):
        if not kept or one[1] > kept[-1][1]:
            kept.append(one)
    return kept


def both(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """What is in both."""
    mine = union(ranges)
    return without(mine, without(mine, union(others)))
