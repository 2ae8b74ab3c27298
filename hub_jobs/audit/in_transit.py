"""Finds messages still in transit to bronze, by the leaves' last announcements.

`ask_hub` queries the hub without changing it; `in_transit_of` is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from agent.contract import ContractError, cell_api
from agent.contract.checks import fields_as_row
from agent.contract.ranges import Range, size, text, union, without
from hub_jobs.audit.ledgers import Origin
from hub_jobs.source.protocol import Denied, SourceApiError, UnknownIdentity, Unreachable
from hub_jobs.source.server import Server, unknown_key
from hub_jobs.tables.hub_lake import known_lake, newest_record
from hub_jobs.tables.spaces import SeenNumbers, source_space

if TYPE_CHECKING:
    from agent.contract import ClassState, FleetRecord, HubLake, Previous
    from hub_jobs.source.connection import Connection
    from hub_jobs.source.streams import HubStream

_NO_STREAM: Final = 404


@dataclass(slots=True)
class HubClient:
    """The hub's streams and lake, and the newest record of each leaf. `faults` are sentences about failed
    queries.
    """

    streams: dict[str, HubStream] = field(default_factory=dict)
    leaves: dict[str, FleetRecord] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    lake: HubLake | None = None


@dataclass(frozen=True, slots=True)
class InTransit:
    """Announced messages of a class that bronze does not hold."""

    domain: str
    cls: str
    announced_at: datetime
    ranges: Sequence[Range]
    """Leaf stream sequences after the last in bronze."""
    at_hub: int
    """Of these, messages at the hub, not yet ingested."""
    at_leaf: int
    """Of these, messages only at the leaf."""
    stayed: Sequence[Range] = ()
    """Earlier sequences that never arrived and are still at the leaf."""
    ledger: Previous | None = None
    """The leaf's announcement of its run."""
    removed: bool = False
    """Whether the leaf dropped the class, so that no link delivers the rest."""

    @property
    def messages(self) -> int:
        return self.at_hub + self.at_leaf

    def sentences(self) -> list[str]:
        """Return the report sentences."""
        name, when = f"{self.domain}, class {self.cls}", f"{self.announced_at:%Y-%m-%d %H:%M:%S} UTC"
        found = []
        if self.messages and self.removed:
            found.append(
                f"{name}: the leaf does not announce this class any more, and nothing brings what it "
                f"announced last and bronze lacks: {self.messages} messages (sequences {text(self.ranges)} "
                "of the leaf's stream); declare the class there again until all of it is at the hub"
            )
        elif self.messages:
            found.append(
                f"{name}: on their way at {when}: {self.at_leaf} messages that only the leaf has, and "
                f"{self.at_hub} at the hub that no ingest has taken (sequences {text(self.ranges)} of the "
                "leaf's stream)"
            )
        if self.stayed:
            found.append(
                f"{name}: the leaf still has sequences {text(self.stayed)}, which never came and which no "
                "link will bring by itself; `petiole resend` there brings back batches"
            )
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the report's JSON form."""
        row = fields_as_row(self)
        ledger = None
        if self.ledger is not None:
            ledger = {"run": self.ledger.run, **fields_as_row(self.ledger.readings)}
        named = {"class": row.pop("cls"), "announced_at": self.announced_at.isoformat(), "ledger": ledger}
        return {**row, **named, "messages": self.messages}


def ask_hub(server: Server, streams: Iterable[str], domains: Iterable[str] = ()) -> HubClient:
    """Query the hub for streams, their leaves, and the leaves of more `domains`.

    A leaf at rest, over its byte limit or revoked is no source of a stream. Missing streams are left out.
    Raises as `Connection`.
    """
    from hub_jobs.source.connection import Connection
    from hub_jobs.source.streams import stream_info

    hub, by_cell = HubClient(), dict[str, list[str]]()
    for name in streams:
        by_cell.setdefault(cell_api(name), []).append(name)
    for api, names in by_cell.items():
        try:
            asking = Connection(replace(server, api_prefix=api))
        except UnknownIdentity as error:
            raise unknown_key(server) from error
        with asking as conn:
            for name in names:
                try:
                    hub.streams[name] = stream_info(conn, name)
                except SourceApiError as error:
                    if error.code != _NO_STREAM:
                        raise
    asked = {domain for info in hub.streams.values() for domain in info.source_index.values()}
    try:
        # A connection of its own: what is refused ends it.
        with Connection(server) as conn:
            hub.lake = known_lake(conn)
            for domain in sorted(asked.union(domains)):
                _look_up(conn, domain, hub)
    except Denied:
        hub.faults.append(
            "this key may not read what the leaves announced, so what is on the way is not known: "
            "start the hub's server with the configuration of this version, and give the key of the jobs"
        )
    except Unreachable as error:
        hub.faults.append(f"the hub has its streams, and no records of the leaves, or not all: {error}")
    return hub


def _look_up(conn: Connection, domain: str, hub: HubClient) -> None:
    data = newest_record(conn, domain)
    if not data:
        return
    from agent.contract import parse_fleet_record

    try:
        hub.leaves[domain] = parse_fleet_record(data)
    except ContractError as error:
        hub.faults.append(f"the hub's record of {domain} can't be used: {error}")


def in_transit_of(
    leaves: Mapping[str, FleetRecord], seen: SeenNumbers, origins: Mapping[tuple[str, str], set[Origin]]
) -> list[InTransit]:
    """Return the messages in transit of every announced class. `origins` maps sources to their
    leaf streams.
    """
    spaces: dict[Origin, list[str]] = {}
    for source, known in origins.items():
        for origin in known:
            spaces.setdefault(origin, []).append(source_space(*source))

    def held(origin: Origin) -> list[Range]:
        return union(*map(seen.ranges, spaces.get(origin, ())))

    return [
        _of_class(record, cls, state, held((record.domain, cls, state.created)))
        for _, record in sorted(leaves.items())
        for cls, state in sorted(record.classes.items())
    ]


def _of_class(record: FleetRecord, cls: str, state: ClassState, held: list[Range]) -> InTransit:
    there = [(max(state.first, 1), state.last)] if state.last >= max(state.first, 1) else []
    lacking = without(there, held)
    end = held[-1][1] if held else 0
    tail = without(lacking, [(1, end)]) if end else lacking
    at_leaf = size(without(tail, [(1, record.held.get(cls, 0))]))
    return InTransit(
        record.domain,
        cls,
        datetime.fromisoformat(record.announced_at).astimezone(UTC),
        tail,
        size(tail) - at_leaf,
        at_leaf,
        without(lacking, tail),
        state.ledger,
        cls not in record.held,
    )
