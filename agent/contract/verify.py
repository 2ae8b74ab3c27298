"""What programs other than the registrar ask the hub or read there: the record of a leaf in the bucket of the
fleet; the messages of a domain that the tables do not have yet; and verification, that is which batches of a
run the hub holds, which it lacks, and which are unknown.

An aggregate is kept short: what is in the table is purged. A batch that is not there may have been purged, so
it counts as lacking only if that is impossible; for all others the answer is `unknown`. The hub reads the
aggregate for a few seconds at a time, and the next request carries what was found so far.
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
"""Ranges that an answer names; if there are more it covers fewer numbers."""
MAX_WINDOW: Final = 1_024
"""Batches that a leaf may have in flight. When a batch is stored at the leaf, fewer than these can have a
lower number and come later, so that a later one shows which numbers came before it."""


@dataclass(frozen=True, slots=True)
class Edge:
    """The oldest batches of a leaf that an aggregate still holds: `run` and leaf sequence `seq` of the very
    first, and the highest number `n` among the first `batches` of that run (at most `MAX_WINDOW`)."""

    run: str
    seq: int
    n: int
    batches: int

    def purged(self, run: str) -> int:
        """Up to which number of a run batches may have been purged."""
        if run == self.run and self.batches >= MAX_WINDOW:
            return self.n
        return 0 if run > self.run else MAX_INT


@dataclass(frozen=True, slots=True)
class VerifiedRun:
    """What was found of one run in an aggregate."""

    held: Ranges = ()
    cut: bool = False
    """Whether older messages were purged."""
    edge: Edge | None = None
    """Where the purge ended, None if no batch of the leaf was found yet."""
    next: int = 0
    """The sequence below which the aggregate was read."""

    def purged(self, run: str) -> int:
        """Up to which number of a run batches may have been purged."""
        if not self.cut:
            return 0
        return MAX_INT if self.edge is None else self.edge.purged(run)


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Which batches of a run the hub is to find."""

    cls: str
    run: str
    first: int = 1
    last: int | None = None
    """None for the highest that it holds."""
    found: VerifiedRun = VerifiedRun()
    """That of the answer before, if that one was not complete."""

    def encode(self) -> bytes:
        row = asdict(self)
        return encoded({"class": row.pop("cls"), **row})


@dataclass(frozen=True, slots=True)
class VerifyAnswer:
    """What the hub found in its stream."""

    stream: str = ""
    created: str = ""
    end: int = 0
    """The last sequence of the stream."""
    cursor: int = 0
    """The highest leaf sequence that came over the present link, 0 if unknown."""
    last: int | None = None
    """Up to which number the answer goes, 0 if the hub holds none and none was asked for."""
    found: VerifiedRun = VerifiedRun()
    complete: bool = False
    """If false, ask again with this `found` and `last`."""
    lacking: Ranges = ()
    """Only in a complete answer."""
    unknown: Ranges = ()
    """Only in a complete answer."""
    refused: str | None = None
    """A sentence why there is no answer."""

    def encode(self) -> bytes:
        return encoded(asdict(self))


def parse_verify_request(data: bytes | str) -> VerifyRequest:
    """Read a request; raises `ContractError`."""
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
    """Read an answer; raises `ContractError`."""
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
    """Ranges in order, none of which touches the next."""
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
    """A leaf as it announced itself at `announced_at` (RFC 3339, the hub's clock): the `classes` as it said
    they were, and for each the highest sequence of its stream that the hub held, 0 where it holds none. A
    class that is not among `held` is announced no more, and the hub lacks messages of it."""

    domain: str
    announced_at: str
    classes: Mapping[str, ClassState]
    held: Mapping[str, int]


def parse_fleet_record(data: bytes | str) -> FleetRecord:
    """Read the record of a leaf; raises `ContractError`."""
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
    """A message of a domain at the hub that the tables do not have yet."""

    cls: str
    run: str | None
    """The run of a batch; None for a message that a device published itself."""
    n: int | None
    """The number of a batch, or None."""
    readings: int
    dead: bool
    moment: int
    """When it was sealed or, if that clock was not synchronised, arrived, in microseconds since 1970."""


class WaitingLedger(NamedTuple):
    """The newest ledger record of a class in a stream of the hub."""

    cls: str
    stream: str
    seq: int
    payload: bytes
