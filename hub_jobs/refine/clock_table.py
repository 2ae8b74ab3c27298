"""The table `clocks`: what agents said of clocks that were wrong. (see `cache`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import Correction
from hub_jobs.refine.messages import QuarantinedError, correction_in
from hub_jobs.tables import cache
from hub_jobs.tables.delta import Table
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import batches, rows
from hub_jobs.tables.schemas import CLOCKS
from hub_jobs.tables.stream_history import StreamHistory

MOST: Final = 1_000
"""Corrections that are remembered of a domain; the oldest go."""


class Clocks:
    """Corrections by domain, each once, in the order in which they came."""

    def __init__(self) -> None:
        self._known: dict[str, dict[Correction, None]] = {}

    def add(self, one: Correction) -> bool:
        """Take one in; False when it is known."""
        mine = self._known.setdefault(one.domain, {})
        if one in mine:
            return False
        mine[one] = None
        if len(mine) > MOST:
            del mine[next(iter(mine))]
        return True

    def by_domain(self) -> dict[str, list[Correction]]:
        """All of them."""
        return {domain: list(mine) for domain, mine in self._known.items()}


def said(bronze: Table, one: StreamHistory, after: int) -> Iterator[Correction]:
    """The corrections among the rows of an incarnation above `after` and up to its `done`; a bad one is left
    out."""
    where = one.rows(after, one.done or 0)
    found: list[int] = []
    for batch in batches(bronze, ["seq", "subject", "class"], where):
        mine = pc.and_(pc.ends_with(batch["subject"], "._clock"), pc.is_valid(batch["class"]))
        found += batch.filter(mine)["seq"].to_pylist()
    if not found:
        return
    held = rows(bronze, ["seq", "domain", "payload"], [*where, ("seq", "in", found)])
    for row in held.sort_by("seq").to_pylist():
        try:
            yield correction_in(row["payload"], row["domain"])
        except QuarantinedError:
            continue


def load(
    lake: Place, bronze: Table, upto: Sequence[StreamHistory], note: cache.Note = cache.unsaid
) -> Clocks:
    """What was said in all that bronze holds of each incarnation up to its `done`. Raises as `cache.load`."""
    known = Clocks()
    table, held = cache.load(lake, "clocks", upto, note)
    for row in held.to_pylist():
        known.add(Correction(**row))
    for one, after in cache.behind(table, upto):
        for correction in said(bronze, one, after):
            known.add(correction)
    return known


def save(lake: Place, known: Clocks, upto: Sequence[StreamHistory]) -> None:
    """Keep it for the next run."""
    flat = [
        {name: getattr(one, name) for name in CLOCKS.names}
        for mine in known.by_domain().values()
        for one in mine
    ]
    cache.save(lake, "clocks", pa.Table.from_pylist(flat, CLOCKS), upto)


def news(
    bronze: Table, increments: Sequence[tuple[StreamHistory, int, int]], known: Clocks
) -> list[Correction]:
    """The corrections in the rows of incarnations above one sequence and up to another that were not known;
    afterwards they are."""
    return [
        correction
        for one, after, to in increments
        for correction in said(bronze, replace(one, done=to), after)
        if known.add(correction)
    ]
