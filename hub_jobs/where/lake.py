"""The tables as `petiole where` opens them, what bronze holds of one domain, and what waits at the hub and is
not in bronze yet."""

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
    """The tables, opened at one moment, and every history of a stream of the hub that bronze holds."""

    path: Place
    bronze: Table
    readings: Table | None
    quarantine: Table | None
    known: list[StreamHistory]
    cache: SeenCache = field(default_factory=SeenCache)

    def ingested(self, stream: str, created: str) -> int:
        """Up to which sequence bronze holds a stream that was made then, in its newest history."""
        mine = [history for history in self.known if history.stream == stream]
        mine = [history for history in mine if history.created.partition("~")[0] == created]
        return max(mine, key=lambda history: (len(history.created), history.created)).done or 0 if mine else 0

    def tables(self, part: ScanPart) -> AuditTables:
        """What of them is to be counted."""
        done, begun = (
            stream_history.offsets(self.known, table) for table in (self.readings, self.quarantine)
        )
        return AuditTables(self.bronze, self.readings, self.quarantine, done, begun, part)


def open_lake(path: Place) -> Lake:
    """The tables of a lake. Raises `TableError`."""
    # The oldest snapshot first: what ingest and refine commit meanwhile then adds nothing that bronze lacks.
    cache = open_cache(path)
    readings, quarantine = open_table(path, "readings"), open_table(path, "quarantine")
    bronze = open_table(path, "bronze")
    if bronze is None:
        raise TableError(f"there is no table {path / 'bronze'}: name the directory that ingest writes to")
    return Lake(path, bronze, readings, quarantine, stream_history.all_of(bronze), cache)


def held_of(domain: str, here: SeenNumbers, cached: SeenNumbers, everything: SeenNumbers) -> BronzeContents:
    """What bronze holds of a domain, and held as far as the cache tells: its batches by the rows of the
    domain, which are `here`. Sequences of sources and of the hub's streams are those of all domains, as the
    cache knows them: a message whose source was not known then is of none."""
    others = {name: ranges for name, ranges in everything.spaces.items() if not _is_batch(name)}
    own = {name: ranges for name, ranges in here.spaces.items() if _is_batch(name)}
    known = {name: ranges for name, ranges in cached.spaces.items() if name.startswith(f"batch/{domain}/")}
    return BronzeContents(SeenNumbers(own | others), lacking(SeenNumbers(known), here))


def _is_batch(space: str) -> bool:
    return space.startswith("batch/")


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the hub's streams hold of a domain behind what bronze has, and the newest ledger records there."""

    messages: list[WaitingMessage] = field(default_factory=list)
    ledgers: list[WaitingLedger] = field(default_factory=list)
