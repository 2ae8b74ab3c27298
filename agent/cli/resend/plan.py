"""Selects batches to resend from stream, ledger and the hub's answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from agent.contract import (
    H_MESSAGE_ID,
    H_POSITION,
    H_REQUESTS,
    H_RESENT,
    ContractError,
    Edge,
    Ledger,
    MessageId,
    parse_message_id,
)
from agent.contract.ranges import Ranges, RangeSet, union, without
from agent.jetstream.readers import StoredHeaders

MAX_BATCHES: Final = 100_000
"""Most batches per command."""
MAX_RUNS: Final = 100
_NOT_AGAIN: Final = frozenset((H_POSITION, H_REQUESTS))


@dataclass(frozen=True, slots=True)
class Copy:
    """A batch in the leaf's stream."""

    n: int
    first: int
    """Its first sequence."""
    seq: int
    """Its newest copy's sequence."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The hub's answer on one run."""

    lacking: Ranges = ()
    unknown: Ranges = ()
    edge: Edge | None = None
    """End of the purged part."""
    cursor: int = 0
    """Highest leaf sequence at the hub."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Results for the requested numbers of one run."""

    run: str
    send: tuple[Copy, ...] = ()
    under_way: Ranges = ()
    """Not yet at the hub."""
    unknown: Ranges = ()
    """Presence at the hub can't be known."""
    refused: Ranges = ()
    """Never stored; senders know."""
    gone: Ranges = ()
    """Stored, but in no message now."""
    unrecorded: Ranges = ()
    """In no message and no record."""
    more: bool = False
    """Whether some exceed the plan."""


class Runs:
    """Numbers in a stream by run; the newest `MAX_RUNS`."""

    def __init__(self) -> None:
        self.numbers: dict[str, RangeSet] = {}

    def take(self, message: StoredHeaders) -> None:
        ident = batch_id(message)
        if ident is None:
            return
        self.numbers.setdefault(ident.run, RangeSet()).add(ident.n)
        if len(self.numbers) > MAX_RUNS:
            del self.numbers[min(self.numbers)]


class Copies:
    """Places of one run's `wanted` numbers; of `perhaps` missing ones only those stored after `edge`."""

    def __init__(self, run: str, wanted: Ranges, perhaps: Ranges = (), edge: int = 0) -> None:
        self._run, self._edge = run, edge
        self._wanted, self._perhaps = RangeSet(wanted), RangeSet(perhaps)
        self.found: dict[int, Copy] = {}
        self.more = False

    def take(self, message: StoredHeaders) -> None:
        ident = batch_id(message)
        if ident is None or ident.run != self._run:
            return
        earlier = self.found.get(ident.n)
        first = earlier.first if earlier else _first_place(message)
        if ident.n not in self._wanted and not (ident.n in self._perhaps and first > self._edge):
            return
        if earlier is None and len(self.found) >= MAX_BATCHES:
            self.more = True
        else:
            self.found[ident.n] = Copy(ident.n, first, message.seq)


def batch_id(message: StoredHeaders) -> MessageId | None:
    """Return a batch's identity, or None."""
    try:
        return parse_message_id(message.headers.get(H_MESSAGE_ID, ""))
    except ContractError:
        return None


def _first_place(message: StoredHeaders) -> int:
    text = message.headers.get(H_RESENT, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else message.seq


def plan_range(run: str, wanted: Ranges, copies: Copies, highest: int, ledger: Ledger | None) -> Plan:
    """Plan a range in order of first storage; `highest` is the last known stored number."""
    return _plan(run, copies.found.values(), wanted, copies, highest, ledger)


def plan_missing(run: str, verified: Verified, copies: Copies, highest: int, ledger: Ledger | None) -> Plan:
    """Plan batches missing at the hub and not in transit. Those stored after the edge were surely
    not purged.
    """
    copies_found = copies.found.values()
    came = [copy for copy in copies_found if copy.seq <= verified.cursor]
    plan = _plan(run, came, verified.lacking, copies, highest, ledger)
    under_way = ranges_of(copy.n for copy in copies_found if copy.seq > verified.cursor)
    return replace(plan, under_way=under_way, unknown=_outside(verified.unknown, ranges_of(copies.found)))


def copies_missing(run: str, verified: Verified) -> Copies:
    """Return the copies for `plan_missing`."""
    edge = verified.edge
    if edge is None or edge.run != run:
        return Copies(run, verified.lacking)
    return Copies(run, verified.lacking, verified.unknown, edge.seq)


def _plan(
    run: str, send: Iterable[Copy], wanted: Ranges, copies: Copies, highest: int, ledger: Ledger | None
) -> Plan:
    # Of what did not fit into the plan nothing is known.
    absent = () if copies.more else _outside(wanted, ranges_of(copies.found))
    refused = (
        ()
        if ledger is None
        else _inside(absent, tuple(union((low, high) for low, high, _ in ledger.refused)))
    )
    rest = _outside(absent, refused)
    gone = _inside(rest, ((1, highest),) if ledger is None else ledger.stored)
    in_order = tuple(sorted(send, key=lambda copy: copy.first))
    return Plan(run, in_order, refused=refused, gone=gone, unrecorded=_outside(rest, gone), more=copies.more)


def ranges_of(numbers: Iterable[int]) -> Ranges:
    """Return ranges covering exactly these numbers."""
    return tuple(union((number, number) for number in numbers))


def _outside(wanted: Ranges, held: Ranges) -> Ranges:
    return tuple(without(wanted, held))


def _inside(wanted: Ranges, held: Ranges) -> Ranges:
    return _outside(wanted, _outside(wanted, held))


def resent_headers(headers: Mapping[str, str], first: int) -> dict[str, str]:
    """Return headers for resending, without position and requests, which would move the input back."""
    kept = {name: value for name, value in headers.items() if name not in _NOT_AGAIN}
    return {**kept, H_RESENT: str(first)}
