"""Opens the tables for `petiole where`, with one domain's bronze contents and waiting hub messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.contract import WaitingLedger, WaitingMessage
from hub_jobs.audit.bronze_contents import BronzeContents, SeenCache, open_cache
from hub_jobs.audit.rows.pieces import ScanPart
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.tables import stream_history
from hub_jobs.tables.delta import Table, TableError, open_table
from hub_jobs.tables.places import Place
from hub_jobs.tables.spaces import SeenNumbers, lacking
from hub_jobs.tables.stream_history import StreamHistory


@dataclass(frozen=True, slots=True)
class Lake:
    """The tables at one moment, and every hub stream history in bronze."""

    path: Place
    bronze: Table
    readings: Table | None
    quarantine: Table | None
    known: list[StreamHistory]
    cache: SeenCache = field(default_factory=SeenCache)

    def ingested(self, stream: str, created: str) -> int:
        """Return the last ingested sequence of a stream created then."""
        mine = [history for history in self.known if history.stream == stream]
        mine = [history for history in mine if history.created.partition("~")[0] == created]
        return max(mine, key=lambda history: (len(history.created), history.created)).done or 0 if mine else 0

    def tables(self, part: ScanPart) -> AuditTables:
        """Return the tables with the part to count."""
        done, begun = (
            stream_history.offsets(self.known, table) for table in (self.readings, self.quarantine)
        )
        return AuditTables(self.bronze, self.readings, self.quarantine, done, begun, part)


def open_lake(path: Place) -> Lake:
    """Open the tables of a lake. Raises `TableError`."""
    # The oldest snapshot first: what ingest and refine commit meanwhile then adds nothing that bronze lacks.
    cache = open_cache(path)
    readings, quarantine = open_table(path, "readings"), open_table(path, "quarantine")
    bronze = open_table(path, "bronze")
    if bronze is None:
        raise TableError(f"there is no table {path / 'bronze'}: name the directory that ingest writes to")
    return Lake(path, bronze, readings, quarantine, stream_history.all_of(bronze), cache)


def held_of(domain: str, here: SeenNumbers, cached: SeenNumbers, everything: SeenNumbers) -> BronzeContents:
    """Return a domain's bronze contents: batches by its rows (`here`), sequences of all domains by the cache.

    A message whose source was unknown belongs to no domain.
    """
    others = {name: ranges for name, ranges in everything.spaces.items() if not _is_batch(name)}
    own = {name: ranges for name, ranges in here.spaces.items() if _is_batch(name)}
    known = {name: ranges for name, ranges in cached.spaces.items() if name.startswith(f"batch/{domain}/")}
    return BronzeContents(SeenNumbers(own | others), lacking(SeenNumbers(known), here))


def _is_batch(space: str) -> bool:
    return space.startswith("batch/")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A domain's messages at the hub that are not in bronze, and its newest ledger records there."""

    messages: list[WaitingMessage] = field(default_factory=list)
    ledgers: list[WaitingLedger] = field(default_factory=list)
