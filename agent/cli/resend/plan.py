"""Decides which batches are sent again, from the leaf's stream, its ledger and the hub's answer. Pure."""

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
"""Batches that one run of the command sends at most."""
MAX_RUNS: Final = 100
_NOT_AGAIN: Final = frozenset((H_POSITION, H_REQUESTS))


@dataclass(frozen=True, slots=True)
class Copy:
    """A batch in the leaf's stream."""

    n: int
    first: int
    """The sequence at which the stream first held it."""
    seq: int
    """The sequence of its newest copy."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The hub's answer about the numbers of one run."""

    lacking: Ranges = ()
    unknown: Ranges = ()
    edge: Edge | None = None
    """Where the purged part ends."""
    cursor: int = 0
    """The highest leaf sequence at the hub."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of the numbers of one run that were asked for."""

    run: str
    send: tuple[Copy, ...] = ()
    under_way: Ranges = ()
    """Not at the hub yet."""
    unknown: Ranges = ()
    """It cannot be known whether the hub lacks them."""
    refused: Ranges = ()
    """Never stored; their senders know."""
    gone: Ranges = ()
    """Stored, and in no message any more."""
    unrecorded: Ranges = ()
    """In no message, and no record says that they were stored."""
    more: bool = False
    """Whether not all of them fit into one plan."""


class Runs:
    """The numbers that a stream holds, by run; the newest `MAX_RUNS` are kept."""

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
    """Where a stream holds the numbers of one run: those `wanted`, and of those `perhaps` lacking only what
    was first stored behind the sequence `edge`."""

    def __init__(self, run: str, wanted: Ranges, perhaps: Ranges = (), edge: int = 0) -> None:
        self._run, self._edge = run, edge
        self._wanted, self._perhaps = RangeSet(wanted), RangeSet(perhaps)
        self.found: dict[int, Copy] = {}
        self.more = False

    def take(self, message: StoredHeaders) -> None:
        """One batch of the stream, in order."""
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
    """The identity of a stored batch, None for a message that has none."""
    try:
        return parse_message_id(message.headers.get(H_MESSAGE_ID, ""))
    except ContractError:
        return None


def _first_place(message: StoredHeaders) -> int:
    text = message.headers.get(H_RESENT, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else message.seq


def plan_range(run: str, wanted: Ranges, copies: Copies, highest: int, ledger: Ledger | None) -> Plan:
    """All batches of a range, in the order in which they were stored first; `highest` is the highest number
    that is known to have been stored."""
    return _plan(run, copies.found.values(), wanted, copies, highest, ledger)


def plan_missing(run: str, verified: Verified, copies: Copies, highest: int, ledger: Ledger | None) -> Plan:
    """The batches that the hub lacks and that are not in transit. The leaf knows more than the hub of what
    was perhaps purged: what it stored behind the edge was not (see `copies_missing`)."""
    copies_found = copies.found.values()
    came = [copy for copy in copies_found if copy.seq <= verified.cursor]
    plan = _plan(run, came, verified.lacking, copies, highest, ledger)
    under_way = ranges_of(copy.n for copy in copies_found if copy.seq > verified.cursor)
    return replace(plan, under_way=under_way, unknown=_outside(verified.unknown, ranges_of(copies.found)))


def copies_missing(run: str, verified: Verified) -> Copies:
    """The copies that `plan_missing` needs to find."""
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
    """The ranges that cover exactly these numbers."""
    return tuple(union((number, number) for number in numbers))


def _outside(wanted: Ranges, held: Ranges) -> Ranges:
    return tuple(without(wanted, held))


def _inside(wanted: Ranges, held: Ranges) -> Ranges:
    return _outside(wanted, _outside(wanted, held))


def resent_headers(headers: Mapping[str, str], first: int) -> dict[str, str]:
    """The headers under which a batch goes out again. Its position and requests stay behind: at the end of
    the stream they would move its input back and make old requests new."""
    kept = {name: value for name, value in headers.items() if name not in _NOT_AGAIN}
    return {**kept, H_RESENT: str(first)}
