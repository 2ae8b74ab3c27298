"""Signs ledger records with the leaf's receipt key: one signature a record, over the stored bytes. Pure."""

from __future__ import annotations

import base64
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from agent.contract import Ledger
from agent.contract.receipt import (
    RECORD_TYPE,
    Chain,
    RecordId,
    Signer,
    chain_start,
    raw_key,
    record_digest,
    sign,
)
from agent.leaf.ledger.chain import BatchChain


class SignedRecord(NamedTuple):
    """A record as it is published."""

    data: bytes
    signature: str
    """Content of the header `Petiole-Receipt`."""
    id: RecordId
    chain: Chain


class RecordSigner:
    """Signs the records of one run. Each record names the last record known to be stored.

    An attempt whose outcome is unknown keeps its number, so that no two records of a run share a number.
    """

    def __init__(self, domain: str, run: str, public: str, signer: Signer) -> None:
        self._domain, self._run = domain, run
        self.public = public
        self._key, self._signer = raw_key(public), signer
        self._attempts: Counter[str] = Counter()
        self._signed: dict[str, tuple[int, str]] = {}
        """How far a stored record covers the chain, and the head there, by class."""

    def sign(self, cls: str, record: Ledger, chain: BatchChain, prior: RecordId | None) -> SignedRecord:
        """Return the record with the chain's present end."""
        self._attempts[cls] += 1
        number = self._attempts[cls]
        begin = 0, chain_start(self._domain, cls, self._run).hex()
        start, before = self._signed.get(cls, begin)
        signed = Chain(self._run, number, prior, start, before, chain.upto, chain.head.hex())
        data = replace(record, chain=signed).encode()
        envelope = sign(self._key, self._signer, RECORD_TYPE, data, detached=True)
        ident = RecordId(self._run, number, record_digest(data))
        return SignedRecord(data, base64.b64encode(envelope).decode(), ident, signed)

    def stored(self, cls: str, record: SignedRecord) -> None:
        """Let the next record follow on this one."""
        self._signed[cls] = record.chain.upto, record.chain.head
