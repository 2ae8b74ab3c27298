"""The ledger: what an agent says it took in and what became of it, per class and run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from agent.contract.checks import ContractError, check_class, check_domain, check_run
from agent.contract.fields import count_of, field_of, open_record, optional, ranges_of
from agent.contract.names import VERSION

Ranges = tuple[tuple[int, int], ...]
LOST_STREAMS: Final = 16


LATE: Final = "after acceptance"
"""Ends the reason of a range that was refused although some of it had been acknowledged as accepted."""


@dataclass(frozen=True, slots=True)
class Readings:
    """Cumulative counts of readings of one class and run. `refused_late` of the `refused` had been
    acknowledged as accepted before: nobody sends them again."""

    accepted: int = 0
    stored: int = 0
    refused: int = 0
    discarded: int = 0
    dead: int = 0
    refused_late: int = 0


def _readings(value: Any, what: str) -> Readings:
    if not isinstance(value, dict):
        raise ContractError(f"{what}: readings is {value!r:.80}, an object was expected")
    given = {"refused_late": 0, **value}  # absent in the records of an agent that had no such level
    return Readings(*(count_of(given, name, what) for name in Readings.__slots__))


@dataclass(frozen=True, slots=True)
class StreamState:
    """A leaf stream's identity (`created`, RFC 3339 as its server wrote it) and its retained sequences."""

    created: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LostStream:
    """A leaf stream that is no more, for its store was lost, or what is no more of one of which an older
    store was restored, which held all up to the sequence `kept`. `created` says which stream, `last` is the
    last sequence that the agent knows it to have held, and `at` when the agent saw that, in nanoseconds since
    1970, 0 where that is not known: by it two restores of one copy are told apart, for both may agree in all
    else. What devices published there themselves is counted nowhere else."""

    created: str
    last: int
    kept: int | None = None
    at: int = 0


@dataclass(frozen=True, slots=True)
class Previous:
    """What the state file knew of the run before: its last stored batch `n`, its cumulative readings, and
    whether it was closed by a final ledger record."""

    run: str
    n: int
    readings: Readings
    closed: bool


def parse_previous(value: Any) -> Previous:
    """Read a `previous` object; raises `ContractError`."""
    if not isinstance(value, dict):
        raise ContractError(f"previous is {value!r:.80}, an object was expected")
    return Previous(
        check_run(value.get("run")),
        count_of(value, "n", "previous"),
        _readings(value.get("readings"), "previous"),
        field_of(value, "closed", bool, "previous"),
    )


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the agent says of one class and run: which batch numbers were stored, refused after they had a
    number, or discarded (with how many readings), and cumulative counts of readings.

    `n` is the highest batch number given out; `previous` is the run before; `final` closes the run.
    `discarded` batches had been stored and count as stored too: they went from the stream before the leaf
    knew that the hub had them, which may be too much, never too little. `gone` are the sequences of the
    stream that went so, each range with how many direct messages stood there. `lost` are the streams, or ends
    of streams, that this one stands in place of, oldest first, `LOST_STREAMS` of them at most.
    """

    domain: str
    cls: str
    run: str
    n: int
    stored: Ranges
    readings: Readings
    stream: StreamState
    refused: tuple[tuple[int, int, str], ...] = ()
    discarded: tuple[tuple[int, int, int, str], ...] = ()
    gone: tuple[tuple[int, int, int, str], ...] = ()
    previous: Previous | None = None
    final: bool = False
    lost: tuple[LostStream, ...] = ()

    def encode(self) -> bytes:
        """The record as it is published."""
        row = asdict(self)
        row["class"] = row.pop("cls")
        return json.dumps({"v": VERSION, **row}, separators=(",", ":")).encode()


def _stream_state(row: dict[str, Any]) -> StreamState:
    created = field_of(row, "created", str, "ledger")
    return StreamState(created, count_of(row, "first", "ledger"), count_of(row, "last", "ledger"))


def _lost_streams(row: dict[str, Any], what: str) -> tuple[LostStream, ...]:
    found = []
    for one in field_of(row, "lost", list, what):
        if not isinstance(one, dict):
            raise ContractError(f"{what}: lost holds {one!r:.80}, an object was expected")
        kept = None if one.get("kept") is None else count_of(one, "kept", what)
        at = count_of(one, "at", what) if "at" in one else 0  # absent in the records of an earlier release
        found.append(LostStream(field_of(one, "created", str, what), count_of(one, "last", what), kept, at))
    return tuple(found)


def parse_ledger(data: bytes | str) -> Ledger:
    """Read a ledger record; raises `ContractError`."""
    what = "ledger"
    row = open_record(data, what)
    stream = _stream_state(field_of(row, "stream", dict, what))
    return Ledger(
        domain=check_domain(row.get("domain")),
        cls=check_class(row.get("class")),
        run=check_run(row.get("run")),
        n=count_of(row, "n", what),
        stored=ranges_of(row, "stored", (int, int), what),
        refused=ranges_of(row, "refused", (int, int, str), what),
        discarded=ranges_of(row, "discarded", (int, int, int, str), what),
        gone=ranges_of(row, "gone", (int, int, int, str), what) if "gone" in row else (),
        readings=_readings(row.get("readings"), what),
        stream=stream,
        previous=optional(row, "previous", parse_previous),
        final=field_of(row, "final", bool, what),
        lost=_lost_streams(row, what) if "lost" in row else (),
    )
