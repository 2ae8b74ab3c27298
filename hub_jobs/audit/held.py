"""What bronze holds by its rows, beside what the cache `seen` says that it held. Of both the rows are the
truth: what the cache alone has was in bronze and is not any more, or somebody wrote into the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hub_jobs.audit.ledgers import Run
from hub_jobs.audit.unreadable import Unreadable, put_aside
from hub_jobs.tables import Table, open_table, seen
from hub_jobs.tables.dedup_keys import SeenNumbers, joined, lacking
from hub_jobs.tables.places import Place, UnreadableError
from hub_jobs.tables.ranges import History
from hub_jobs.tables.stream_history import StreamHistory, offsets


@dataclass(frozen=True, slots=True)
class Cached:
    """The cache as it was at one moment; without a table there is none, or it can't be read."""

    seen: SeenNumbers = field(default_factory=SeenNumbers)
    table: Table | None = None
    unreadable: tuple[Unreadable, ...] = ()

    def upto(self, known: Sequence[StreamHistory]) -> dict[History, int]:
        """Up to which sequence of each history it should know all."""
        return offsets(known, self.table)


@dataclass(frozen=True)
class BronzeContents:
    """What bronze holds `here`; what the cache has and bronze has not, so that it is `gone`; and what the
    cache should have and has not, so that a repeat of it would be taken for new (`forgotten`)."""

    here: SeenNumbers
    gone: SeenNumbers = field(default_factory=SeenNumbers)
    forgotten: SeenNumbers = field(default_factory=SeenNumbers)

    @cached_property
    def ever(self) -> SeenNumbers:
        """All that bronze holds or held."""
        return joined(self.here, self.gone)

    def gone_runs(self) -> set[Run]:
        """The runs of which batches are gone."""
        names = [space.split("/") for space in self.gone.spaces if space.startswith("batch/")]
        return {(domain, cls, run) for _, domain, cls, run in names}


def cached(lake: Place) -> Cached:
    """The cache, empty where there is none. It is to be read before bronze is opened: whatever it has then
    stands in bronze. Raises `TableError`."""
    table = open_table(lake, "seen")
    if table is None:
        return Cached()
    try:
        known = seen.read(table)
    except UnreadableError as error:
        return Cached(unreadable=(put_aside(table, error),))
    return Cached(known, table)


def compared(cache: Cached, before: SeenNumbers, after: SeenNumbers) -> BronzeContents:
    """What bronze holds `before` the end of what the cache should know, and `after` it, beside the cache."""
    here = joined(before, after)
    if cache.table is None:
        return BronzeContents(here)
    return BronzeContents(here, lacking(cache.seen, here), lacking(before, cache.seen))
