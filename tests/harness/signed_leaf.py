"""A leaf that signs: its batches and ledger records as bronze has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import nkeys

from agent.contract import Ledger, Previous, Readings, RecordId, StreamState, new_run
from agent.contract.receipt import ReceiptKey, payload_digest, raw_key
from agent.leaf.ledger.chain import BatchChain
from agent.leaf.ledger.signer import RecordSigner, SignedRecord
from hub_jobs.receipts.chains import Class, Finding, Followed, Mark, Record, follow, signed_record
from hub_jobs.receipts.keys import verify

DOMAIN: Final = "edge-1"
CLS: Final[Class] = (DOMAIN, "normal")


def key_pair(number: int) -> Any:
    """A user's pair of keys, the same each time."""
    return nkeys.from_seed(nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER))


def public(pair: Any) -> str:
    return bytes(pair.public_key).decode()


LEAF_KEY: Final = key_pair(1)
KEYS: Final = [ReceiptKey(raw_key(public(LEAF_KEY)))]


@dataclass
class Run:
    """One run of the leaf: batches by number, and records."""

    prior: RecordId | None = None
    run: str = field(default_factory=new_run)
    pair: Any = LEAF_KEY
    previous: Previous | None = None

    def __post_init__(self) -> None:
        self.chain = BatchChain(*CLS, self.run)
        self.signer = RecordSigner(DOMAIN, self.run, public(self.pair), self.pair.sign)
        self.batches: dict[int, tuple[bytes, int]] = {}
        self.payloads: dict[int, bytes] = {}
        self.refused: list[tuple[int, int, str]] = []
        self.records: list[SignedRecord] = []
        self.n = 0

    def store(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.n += 1
            count = payload.count(b"\n")
            self.batches[self.n], self.payloads[self.n] = (payload_digest(payload), count), payload
            self.chain.add(self.n, *self.batches[self.n])

    def refuse(self) -> None:
        self.n += 1
        self.refused.append((self.n, self.n, "full"))
        self.chain.skip(self.n)

    def record(self, *, final: bool = False, known: bool = True, **more: Any) -> SignedRecord:
        """Store a record; the leaf hears of it if `known`."""
        stored = sum(count for _, count in self.batches.values())
        ledger = Ledger(
            *CLS,
            self.run,
            self.n,
            ((1, self.n),) if self.n else (),
            Readings(accepted=stored, stored=stored),
            StreamState("made", 1, 1),
            tuple(self.refused),
            previous=self.previous,
            final=final,
        )
        signed = self.signer.sign(CLS[1], replace(ledger, **more), self.chain, self.prior)
        self.records.append(signed)
        if known:
            self.signer.stored(CLS[1], signed)
            self.prior = signed.id
        return signed


def checked(record: SignedRecord, keys: Iterable[ReceiptKey] = KEYS, arrived: int = 0) -> Record | Finding:
    return signed_record(record.data, record.signature, arrived, list(keys), verify)


def followed(
    *runs: Run, marks: Iterable[Mark] = (), records: Iterable[SignedRecord] | None = None
) -> Followed:
    """What follows of the batches and records of these runs."""
    given = [record for run in runs for record in run.records] if records is None else records
    usable = [record for record in map(checked, given) if isinstance(record, Record)]
    return follow(CLS, marks, usable, {run.run: run.batches for run in runs if run.batches}, runs[-1].run)
