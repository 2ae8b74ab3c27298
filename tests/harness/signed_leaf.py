"""A leaf that signs: its batches and ledger records as bronze has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import nkeys

from agent.contract import (
    H_RECEIPT,
    Exit,
    Ledger,
    Previous,
    Readings,
    RecordId,
    StreamState,
    batch_subject,
    ledger_subject,
    new_run,
)
from agent.contract.receipt import ReceiptKey, payload_digest, raw_key
from agent.leaf.ledger.chain import BatchChain
from agent.leaf.ledger.signer import RecordSigner, SignedRecord
from hub_jobs.receipts.chains import Class, Finding, Followed, Mark, Record, follow, signed_record
from hub_jobs.receipts.keys import verify
from hub_jobs.times import HOUR
from tests.spark.lakes import add_bronze, audited
from tests.unit.hub_jobs.refined import refine_all
from tests.unit.hub_jobs.rows import ARRIVED_US, batch_headers, direct_row, row

DOMAIN: Final = "edge-1"
BEGIN: Final = ARRIVED_US // HOUR * HOUR
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


def bronze_rows(run: Run, hours: Mapping[int, float], records: Mapping[int, float]) -> list[dict[str, Any]]:
    """A run's batches and records as bronze has them, each at its hour after `ARRIVED_US`."""
    found = []
    for n, hour in hours.items():
        payload, count = run.payloads[n], run.batches[n][1]
        headers = batch_headers(n, count, run=run.run, compressed=False)
        identity = {"run": run.run, "n": n, "count": count, "source_seq": None}
        subject = batch_subject(DOMAIN, CLS[1], "http")
        found.append((hour, row(payload, subject, headers, **identity)))
    for at, hour in records.items():
        record = run.records[at]
        headers = {"Nats-Msg-Id": f"{run.run}-normal-ledger-{at + 1}", H_RECEIPT: record.signature}
        found.append((hour, row(record.data, ledger_subject(*CLS), headers, source_seq=None)))
    return [each | {"arrived": BEGIN + int(hour * HOUR)} for hour, each in found]


def lines(*values: float) -> bytes:
    """A batch of readings that are all different."""
    return b"".join(
        b'{"ts":%d,"device":"pump-%d","metric":"pressure","value":%r,"tags":{"at":"%d"}}\n'
        % (1_795_000_000 + int(value), value % 3, value, value)
        for value in values
    )


class SignedLake:
    """A lake of `edge-1`, whose two runs are spread over hours, and of a leaf that has sent hours later."""

    def __init__(self, directory: Path) -> None:
        self.lake = directory / "lake"
        self.key = directory / "receipt.nk"
        self.leaves = directory / "hub.toml"
        if not self.key.exists():
            self.key.write_bytes(nkeys.encode_seed(bytes([9]) * 32, nkeys.PREFIX_BYTE_USER))
            self.leaves.write_text(f'[[leaf]]\ndomain = "{DOMAIN}"\nreceipt = ["{public(LEAF_KEY)}"]\n')

    def fill(self) -> tuple[Run, Run]:
        """Make the lake: hours 0 to 2 can be settled."""
        first = Run()
        first.record()
        first.store(lines(1, 2, 3), lines(4, 5))
        first.record()
        first.store(lines(6.5))
        first.record(final=True)
        second = Run(first.prior)
        second.record()
        second.store(lines(7), lines(8, 9))
        second.record()
        given = [
            *bronze_rows(first, {1: 0.1, 2: 0.2, 3: 1.05}, {0: 0.05, 1: 0.3, 2: 1.1}),
            *bronze_rows(second, {1: 2.05, 2: 2.1}, {0: 2.0, 1: 2.2}),
        ]
        given = sorted(given, key=lambda each: each["arrived"])
        add_bronze(self.lake, [each | {"source_seq": at} for at, each in enumerate(given, 1)])
        self.later(6, 1)
        return first, second

    def later(self, hour: float, seq: int) -> None:
        """Another leaf sends, so that earlier hours can be settled."""
        other = {"stream": "TELEMETRY_1", "domain": "edge-9", "source_stream": "TEL_edge-9_normal"}
        at = {"arrived": BEGIN + int(hour * HOUR), "source_seq": seq}
        subject = {"subject": "tel.edge-9.normal.pump.pressure"}
        add_bronze(self.lake, [direct_row(b"1") | other | at | subject])
        refine_all(self.lake)

    def audit(self, *options: str) -> tuple[Exit, str, dict[str, Any]]:
        """Exit code, sentences on receipts, and report of an audit that signs."""
        signing = ("--receipt-key", str(self.key), "--leaves", str(self.leaves))
        code, report = audited(self.lake, *signing, *options)
        said = [sentence for sentence in report["findings"] if sentence.startswith("receipts, ")]
        return code, "\n".join(said), report
