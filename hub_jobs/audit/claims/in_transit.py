"""What is still on its way to bronze, by what leaves announced last. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from agent.contract import ClassState, FleetRecord, Previous
from hub_jobs.audit.claims.ledgers import Origin
from hub_jobs.tables.ranges import Range, size, text, union, without
from hub_jobs.tables.seen import SeenNumbers, source_space


@dataclass(frozen=True, slots=True)
class InTransit:
    """Sequences of a leaf's stream behind the last one that bronze holds, as the leaf announced them: so many
    messages `at_hub`, which ingest has not taken, the others `at_leaf` alone. `stayed` are sequences before
    that which never came and which the leaf still has."""

    domain: str
    cls: str
    announced_at: datetime
    ranges: Sequence[Range]
    at_hub: int
    at_leaf: int
    stayed: Sequence[Range] = ()
    ledger: Previous | None = None

    @property
    def messages(self) -> int:
        """How many messages there are."""
        return self.at_hub + self.at_leaf

    def sentences(self) -> list[str]:
        """What there is to say of it."""
        name, when = f"{self.domain}, class {self.cls}", f"{self.announced_at:%Y-%m-%d %H:%M:%S} UTC"
        found = []
        if self.messages:
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
        row = asdict(self)
        for name in ("ranges", "stayed"):
            row[name] = [list(sequences) for sequences in row[name]]
        ledger = None if self.ledger is None else {"run": self.ledger.run, **asdict(self.ledger.readings)}
        named = {"class": row.pop("cls"), "announced_at": self.announced_at.isoformat(), "ledger": ledger}
        return {**row, **named, "messages": self.messages}


def in_transit_of(
    leaves: Mapping[str, FleetRecord], seen: SeenNumbers, origins: Mapping[tuple[str, str], set[Origin]]
) -> list[InTransit]:
    """Of every class that a leaf announced. `origins` say from which stream of its leaf each source took."""
    return [
        _of_class(record, cls, state, _held((record.domain, cls, state.created), seen, origins))
        for _, record in sorted(leaves.items())
        for cls, state in sorted(record.classes.items())
    ]


def _held(origin: Origin, seen: SeenNumbers, origins: Mapping[tuple[str, str], set[Origin]]) -> list[Range]:
    sources = [source for source, known in origins.items() if origin in known]
    return union(*(seen.ranges(source_space(*source)) for source in sources))


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
    )
