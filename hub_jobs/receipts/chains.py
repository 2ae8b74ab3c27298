"""Follows the leaves' signed chains: what each leaf signed, compared with the batches of bronze. Pure.

A contradiction means that table and signature can't both be true. What is unproven is named, too.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from agent.contract import ContractError, Ledger, parse_ledger
from agent.contract.receipt import (
    RECORD_TYPE,
    Chain,
    ReceiptKey,
    RecordId,
    chain_start,
    link_batch,
    record_digest,
    signed_in,
)

Class = tuple[str, str]
"""Domain and class."""
Verify = Callable[[bytes, bytes, bytes], bool]
"""Tells whether key, message and signature fit."""
Batches = Mapping[str, Mapping[int, tuple[bytes, int]]]
"""Digest and count of each batch by run and number."""

KEPT_RUNS: Final = 8
"""Runs of a class whose newest record is remembered."""
_LISTED: Final = 20


class Finding(NamedTuple):
    """A sentence on a class; `contradicts` if table and signature can't both be true."""

    contradicts: bool
    text: str


class Mark(NamedTuple):
    """The newest known record of a signing run."""

    run: str
    number: int
    digest: str
    upto: int
    head: str
    last: int | None = None
    """Highest number of a closed run."""


@dataclass(frozen=True, slots=True)
class Record:
    """A ledger record whose signature holds."""

    ledger: Ledger
    chain: Chain
    digest: str


@dataclass(slots=True)
class Followed:
    """Marks of a class after some records, and what was found on the way."""

    marks: list[Mark] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def say(self, contradicts: bool, text: str) -> None:
        self.findings.append(Finding(contradicts, text))


def signed_record(
    payload: bytes, header: str | None, arrived: int, keys: Sequence[ReceiptKey], verify: Verify
) -> Record | Finding:
    """Check a record's signature. `arrived` is in ns since 1970; `keys` are its leaf's."""
    try:
        ledger = parse_ledger(payload)
    except ContractError as error:
        return Finding(False, f"a ledger record can't be used: {error}")
    what = f"a ledger record of run {ledger.run}"
    if header is None or ledger.chain is None:
        return Finding(False, f"{what} is not signed")
    try:
        found = signed_in(base64.b64decode(header, validate=True), RECORD_TYPE, payload)
    except (ContractError, binascii.Error, ValueError):
        return Finding(True, f"{what} has a signature that can't be read")
    if not verify(found.key, found.message, found.signature):
        return Finding(True, f"{what} is not as its key signed it")
    key = next((known for known in keys if known.key == found.key), None)
    if key is None:
        return Finding(True, f"{what} is signed by a key that is not the leaf's: {found.key.hex()[:16]}…")
    if key.until is not None and arrived >= key.until:
        return Finding(True, f"{what} is signed by a key that was revoked before: {found.key.hex()[:16]}…")
    return Record(ledger, ledger.chain, record_digest(payload))


def follow(
    cls: Class, marks: Iterable[Mark], records: Iterable[Record], batches: Batches, newest: str
) -> Followed:
    """Follow the records of a class, in order of arrival, from the known marks.

    `batches` are those of bronze since then. A record of the `newest` run may be yet to come.
    """
    state = _State(cls, {mark.run: mark for mark in marks}, batches)
    for record in records:
        state.add(record)
    state.end(newest)
    return Followed(list(state.marks.values())[-KEPT_RUNS:], state.found.findings)


class _State:
    def __init__(self, cls: Class, marks: dict[str, Mark], batches: Batches) -> None:
        self._cls, self._batches = cls, batches
        self.marks, self.found = marks, Followed()
        self._seen = {(mark.run, mark.number): mark for mark in marks.values()}
        self._followers: Counter[tuple[str, int]] = Counter()
        self._bounds: dict[str, int] = {}
        self._refused: dict[str, Sequence[Sequence[Any]]] = {}

    def add(self, record: Record) -> None:
        chain = record.chain
        place, what = (chain.run, chain.number), f"record {chain.number} of run {chain.run}"
        if (known := self._seen.get(place)) is not None:
            if known.digest != record.digest:
                self.found.say(True, f"{what} exists twice with different contents: the chain was forked")
            return
        newest = self.marks.get(chain.run)
        if newest is not None and chain.number < newest.number:
            self.found.say(False, f"{what} arrived after record {newest.number}")
            return
        last, of_chain = None, record.ledger.run == chain.run
        if of_chain:
            self._refused[chain.run] = record.ledger.refused
            last = record.ledger.n if record.ledger.final else None
            if (previous := record.ledger.previous) is not None:
                self._bounds[previous.run] = max(previous.n, self._bounds.get(previous.run, 0))
        self._prior(record, what)
        self._segment(chain, what)
        mark = Mark(chain.run, chain.number, record.digest, chain.upto, chain.head, last)
        self.marks.pop(chain.run, None)  # the last to arrive is the last to be forgotten
        self._seen[place] = self.marks[chain.run] = mark

    def _prior(self, record: Record, what: str) -> None:
        """Compare the record that this one follows."""
        chain, prior = record.chain, record.chain.prior
        begin = 0, chain_start(*self._cls, chain.run).hex()
        if (prior is None or prior.run != chain.run) and (chain.start, chain.before) != begin:
            self.found.say(True, f"{what} does not begin its chain")
        if prior is None:
            if self.marks.keys() - {chain.run}:
                self.found.say(False, f"{what} begins anew: the leaf had lost its state")
            return
        known = self._seen.get((prior.run, prior.number))
        if known is None:
            self._unknown(record, what, prior)
        elif known.digest != prior.digest:
            self.found.say(True, f"{what} follows another record {prior.number} of run {prior.run}")
        elif prior.run == chain.run:
            if (known.upto, known.head) != (chain.start, chain.before):
                self.found.say(True, f"{what} does not continue where record {prior.number} ended")
        elif chain.number == 1:
            self._followers[prior.run, prior.number] += 1
            if self._followers[prior.run, prior.number] > 1:
                self.found.say(
                    False,
                    f"two runs follow record {prior.number} of run {prior.run}: the leaf's state was "
                    "restored, or two machines sign with its key",
                )

    def _unknown(self, record: Record, what: str, prior: RecordId) -> None:
        """Name a prior record that bronze lacks, if it should have it."""
        missing, newest = f"record {prior.number} of run {prior.run}", self.marks.get(prior.run)
        if not self.marks:
            self.found.say(False, f"{what} is the first in bronze, and {missing} before it is not there")
        elif newest is None and len(self.marks) >= KEPT_RUNS:
            self.found.say(False, f"{missing} before {what} is older than the runs that are remembered")
        elif newest is None or prior.number > newest.number:
            lost = bool(record.ledger.lost)
            why = ", and the leaf names a store that was lost" if lost else ": it was withheld"
            self.found.say(not lost, f"{missing} is missing before {what}{why}")

    def _segment(self, chain: Chain, what: str) -> None:
        """Compare the batches that a record signs."""
        held, refused = self._batches.get(chain.run, {}), self._refused.get(chain.run, ())
        numbers = sorted(n for n in held if chain.start < n <= chain.upto)
        stored = [n for n in numbers if not _within(n, refused)]
        for linked in (numbers, stored):
            head = bytes.fromhex(chain.before)
            for n in linked:
                head = link_batch(head, n, *held[n])
            if head.hex() == chain.head:
                return
        named = f"batches {chain.start + 1} to {chain.upto}"
        if missing := _missing(chain, numbers, refused):
            self.found.say(False, f"{what}: {named} can't be compared, for {_numbers(missing)} not in bronze")
        else:
            self.found.say(True, f"{what}: {named} in bronze are not as the leaf signed them")

    def end(self, newest: str) -> None:
        """Name the batches beyond all records, except those that the newest run has yet to sign."""
        for run, held in sorted(self._batches.items()):
            mark, bound = self.marks.get(run), self._bounds.get(run)
            beyond = sorted(n for n in held if n > (0 if mark is None else mark.upto))
            if mark is not None and mark.last is not None:
                last = mark.last
                if invented := [n for n in beyond if n > last]:
                    self.found.say(
                        True, f"run {run} was closed with batch {last}, and {_numbers(invented)} in bronze"
                    )
            elif beyond and run != newest:
                known = "" if bound is None else f"; its leaf knew {bound} batches of it"
                self.found.say(False, f"run {run}: {_numbers(beyond)} in no signed record{known}")


def _within(n: int, ranges: Iterable[Sequence[Any]]) -> bool:
    return any(first <= n <= last for first, last, *_ in ranges)


def _missing(chain: Chain, numbers: Sequence[int], refused: Sequence[Sequence[Any]]) -> list[int]:
    """Return the first numbers of a record that are neither held nor refused."""
    spans = sorted([*((n, n) for n in numbers), *((first, last) for first, last, *_ in refused)])
    found, at = list[int](), chain.start + 1
    for first, last in [*spans, (chain.upto + 1, chain.upto + 1)]:
        found += range(at, min(first, at + _LISTED + 1, chain.upto + 1))
        at = max(at, last + 1)
        if len(found) > _LISTED:
            break
    return found


def _numbers(numbers: Sequence[int]) -> str:
    """Return `batch 3 is` or `batches 3, 4, … are`."""
    if len(numbers) == 1:
        return f"batch {numbers[0]} is"
    shown = ", ".join(map(str, numbers[:_LISTED]))
    return f"batches {shown}{', …' if len(numbers) > _LISTED else ''} are"
