"""What is still on its way to bronze, by what leaves announced last. `ask_hub` has it of the hub and changes
nothing there; `in_transit_of` compares it with bronze and is pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from agent.contract import ContractError
from agent.contract.checks import fields_as_row
from agent.contract.ranges import Range, size, text, union, without
from hub_jobs.audit.ledgers import Origin
from hub_jobs.source.protocol import ApiError, Denied, UnknownIdentity, Unreachable
from hub_jobs.source.server import Server, unknown_key
from hub_jobs.tables.hub_lake import known_lake, newest_record
from hub_jobs.tables.spaces import SeenNumbers, source_space

if TYPE_CHECKING:
    from agent.contract import ClassState, FleetRecord, HubLake, Previous
    from hub_jobs.source.connection import Connection
    from hub_jobs.source.streams import StreamInfo

_NO_STREAM: Final = 404


@dataclass(slots=True)
class HubClient:
    """What the hub said: its streams, its lake, and of every leaf that was asked about its newest record.
    `faults` are sentences about what it did not say."""

    streams: dict[str, StreamInfo] = field(default_factory=dict)
    leaves: dict[str, FleetRecord] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    lake: HubLake | None = None


@dataclass(frozen=True, slots=True)
class InTransit:
    """What a leaf announced of a class and bronze does not hold."""

    domain: str
    cls: str
    announced_at: datetime
    ranges: Sequence[Range]
    """Sequences of the leaf's stream behind the last one that bronze holds."""
    at_hub: int
    """Messages of these that the hub has and ingest has not taken."""
    at_leaf: int
    """The others, which only the leaf has."""
    stayed: Sequence[Range] = ()
    """Sequences before them that never came and that the leaf still has."""
    ledger: Previous | None = None
    """What the leaf announced of its run."""
    removed: bool = False
    """Whether the leaf announces the class no more, so that no link brings what only the leaf has."""

    @property
    def messages(self) -> int:
        """How many messages there are."""
        return self.at_hub + self.at_leaf

    def sentences(self) -> list[str]:
        """What there is to say of it."""
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
        """The same as it stands in a report."""
        row = fields_as_row(self)
        ledger = None
        if self.ledger is not None:
            ledger = {"run": self.ledger.run, **fields_as_row(self.ledger.readings)}
        named = {"class": row.pop("cls"), "announced_at": self.announced_at.isoformat(), "ledger": ledger}
        return {**row, **named, "messages": self.messages}


def ask_hub(server: Server, streams: Iterable[str], domains: Iterable[str] = ()) -> HubClient:
    """What the hub says of these streams and of the leaves in them, and of the leaves of more `domains`: one
    that rests, is over its bytes or revoked is no source of a stream. A stream that is not there is left out.
    Raises as `Connection`."""
    from hub_jobs.source.connection import Connection
    from hub_jobs.source.streams import stream_info

    hub = HubClient()
    try:
        asking = Connection(server)
    except UnknownIdentity as error:
        raise unknown_key(server) from error
    with asking as conn:
        for name in streams:
            try:
                hub.streams[name] = stream_info(conn, name)
            except ApiError as error:
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
    """Of every class that a leaf announced. `origins` say from which stream of its leaf each source took."""
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
