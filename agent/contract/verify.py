"""Defines queries of other programs: fleet records, messages missing in the tables, and verification of
batches.

Purged batches may be in the table, so a missing one counts as lacking only if it can't be purged, else as
`unknown`. The hub reads for some seconds per request; the next request passes earlier results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

from agent.contract.checks import (
    MAX_INT,
    ContractError,
    check_class,
    check_domain,
    check_run,
    count_of,
    encoded,
    field_of,
    nullable,
    object_of,
    open_record,
    optional,
    ranges_of,
)
from agent.contract.link import ClassState, class_state
from agent.contract.ranges import Ranges

__all__ = [
    "MAX_HELD",
    "MAX_WINDOW",
    "Edge",
    "FleetRecord",
    "VerifiedRun",
    "VerifyAnswer",
    "VerifyRequest",
    "WaitingLedger",
    "WaitingMessage",
    "parse_fleet_record",
    "parse_verify_answer",
    "parse_verify_request",
]

MAX_HELD: Final = 2_000
"""Ranges per answer; more reduce its coverage."""
MAX_WINDOW: Final = 1_024
"""Batches in flight, which bounds how late a lower number may be stored."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A leaf's oldest batches in an aggregate: first `run` and leaf `seq`, highest `n` of its first
    `batches`.
    """

    run: str
    seq: int
    n: int
    batches: int

    def purged(self, run: str) -> int:
        """Return a run's possibly purged numbers."""
        if run == self.run and self.batches >= MAX_WINDOW:
            return self.n
        return 0 if run > self.run else MAX_INT


@dataclass(frozen=True, slots=True)
class VerifiedRun:
    """Findings on one run in an aggregate."""

    held: Ranges = ()
    cut: bool = False
    """Whether older messages were purged."""
    edge: Edge | None = None
    """End of the purge, None if no batch was found yet."""
    next: int = 0
    """Sequence up to which the aggregate was read, exclusive."""

    def purged(self, run: str) -> int:
        """Return a run's possibly purged numbers."""
        if not self.cut:
            return 0
        return MAX_INT if self.edge is None else self.edge.purged(run)


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """The batches to find."""

    cls: str
    run: str
    first: int = 1
    last: int | None = None
    """None for the hub's highest."""
    found: VerifiedRun = VerifiedRun()
    """Findings of an incomplete answer."""

    def encode(self) -> bytes:
        row = asdict(self)
        return encoded({"class": row.pop("cls"), **row})


@dataclass(frozen=True, slots=True)
class VerifyAnswer:
    """The hub's findings."""

    stream: str = ""
    created: str = ""
    end: int = 0
    """The stream's last sequence."""
    cursor: int = 0
    """Highest leaf sequence over the present link, 0 if unknown."""
    last: int | None = None
    """Highest covered number, 0 for none."""
    found: VerifiedRun = VerifiedRun()
    complete: bool = False
    """If false, ask again with `found` and `last`."""
    lacking: Ranges = ()
    """Only if complete."""
    unknown: Ranges = ()
    """Only if complete."""
    refused: str | None = None
    """Why there is no answer."""

    def encode(self) -> bytes:
        return encoded(asdict(self))


def parse_verify_request(data: bytes | str) -> VerifyRequest:
    what = "verify"
    row = open_record(data, what)
    first = count_of(row, "first", what)
    last = optional(row, "last", lambda _: count_of(row, "last", what))
    if first < 1 or (last is not None and last < first):
        raise ContractError(f"verify: the numbers {first} to {last} are not a range of batches")
    return VerifyRequest(
        check_class(row.get("class")),
        check_run(row.get("run")),
        first,
        last,
        _found(field_of(row, "found", dict, what)),
    )


def parse_verify_answer(data: bytes | str) -> VerifyAnswer:
    what = "verified"
    row = open_record(data, what)
    return VerifyAnswer(
        stream=field_of(row, "stream", str, what),
        created=field_of(row, "created", str, what),
        end=count_of(row, "end", what),
        cursor=count_of(row, "cursor", what),
        last=optional(row, "last", lambda _: count_of(row, "last", what)),
        found=_found(field_of(row, "found", dict, what)),
        complete=field_of(row, "complete", bool, what),
        lacking=_numbers(row, "lacking", MAX_HELD + 1),
        unknown=_numbers(row, "unknown", MAX_HELD + 1),
        refused=nullable(row, "refused", str, what),
    )


def _found(row: Mapping[str, Any]) -> VerifiedRun:
    return VerifiedRun(
        held=_numbers(row, "held", MAX_HELD),
        cut=field_of(row, "cut", bool, "found"),
        edge=optional(row, "edge", _edge),
        next=count_of(row, "next", "found"),
    )


def _edge(row: Any) -> Edge:
    edge = object_of(row, "found: edge")
    return Edge(
        check_run(edge.get("run")), *(count_of(edge, name, "edge") for name in ("seq", "n", "batches"))
    )


def _numbers(row: Mapping[str, Any], name: str, most: int) -> Ranges:
    """Return ordered, separated ranges."""
    ranges = ranges_of(row, name, (int, int), "found")
    if len(ranges) > most:
        raise ContractError(f"found: {name} holds {len(ranges)} ranges, at most {most} are read")
    for before, after in pairwise(ranges):
        if after[0] <= before[1] + 1:
            raise ContractError(f"found: {name} holds {before} and {after}, which are not apart in order")
    return tuple((first, last) for first, last in ranges)


_WHAT = "fleet record"


@dataclass(frozen=True, slots=True)
class FleetRecord:
    """A leaf's announcement at `announced_at` (RFC 3339, hub clock), and the hub's highest sequence per class
    (`held`).

    A class missing in `held` is no longer announced, and the hub lacks messages of it.
    """

    domain: str
    announced_at: str
    classes: Mapping[str, ClassState]
    held: Mapping[str, int]


def parse_fleet_record(data: bytes | str) -> FleetRecord:
    """Parse a leaf's record; raises `ContractError`."""
    row = open_record(data, _WHAT)
    said = field_of(row, "said", dict, _WHAT)
    return FleetRecord(
        check_domain(row.get("domain")),
        field_of(row, "announced_at", str, _WHAT),
        {check_class(cls): class_state(value, _WHAT) for cls, value in said.items()},
        {check_class(cls): _held(value) for cls, value in field_of(row, "classes", dict, _WHAT).items()},
    )


def _held(value: Any) -> int:
    held = nullable(object_of(value, f"{_WHAT}: a class"), "held", dict, _WHAT)
    return 0 if held is None else count_of(held, "seq", _WHAT)


class WaitingMessage(NamedTuple):
    """A hub message missing in the tables."""

    cls: str
    run: str | None
    """A batch's run; None for direct messages."""
    n: int | None
    """A batch's number, or None."""
    readings: int
    dead: bool
    moment: int
    """Sealing, or arrival if unsynchronised, in microseconds since 1970."""


class WaitingLedger(NamedTuple):
    """A class's newest ledger record at the hub."""

    cls: str
    stream: str
    seq: int
    payload: bytes
