"""Defines what receipts sign: hash chains over batches, COSE_Sign1 envelopes and Merkle trees.

The forms are COSE_Sign1 (RFC 9052) with Ed25519 (RFC 9864) and the Merkle tree of RFC 9162. Pure: signing and
verifying a signature is the caller's.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b, sha256
from typing import Any, Final, NamedTuple

from agent.contract.cbor import decode_cbor, encode_cbor
from agent.contract.checks import ContractError, check_run, count_of, field_of, object_of, optional

__all__ = [
    "DIGEST_BYTES",
    "H_RECEIPT",
    "RECEIPT_TYPE",
    "RECORD_TYPE",
    "ROOT_TYPE",
    "Chain",
    "ReceiptKey",
    "RecordId",
    "Signed",
    "Signer",
    "chain_start",
    "inclusion_path",
    "link_batch",
    "parse_chain",
    "parse_receipt_key",
    "payload_digest",
    "raw_key",
    "record_digest",
    "root_of_path",
    "sign",
    "signed_in",
    "tree_levels",
    "tree_root",
]

H_RECEIPT: Final = "Petiole-Receipt"
"""Header of a ledger record: base64 of a COSE_Sign1 whose payload is detached, namely the message."""
RECORD_TYPE: Final = "petiole-ledger-1"
ROOT_TYPE: Final = "petiole-root-1"
RECEIPT_TYPE: Final = "petiole-receipt-1"
DIGEST_BYTES: Final = 16
_ED25519: Final = -19
_ALG, _CONTENT_TYPE, _KID = 1, 3, 4
_CHAIN: Final = "petiole-chain-1"

Signer = Callable[[bytes], bytes]
"""Returns the Ed25519 signature of its argument."""


@dataclass(frozen=True, slots=True)
class RecordId:
    """Names a signed ledger record by its signing run, its number there, and SHA-256 of the payload, hex."""

    run: str
    number: int
    digest: str


@dataclass(frozen=True, slots=True)
class Chain:
    """The part of a class's chain that a record signs: its batches after `start` up to `upto`.

    `before` and `head` are the chain's hex heads at both ends. Numbers without a stored batch are left out.
    """

    run: str
    """The signing run, which `head` is of; a record may also repeat the account of an earlier run."""
    number: int
    """Numbers the attempts to store a record of this run and class, from 1."""
    prior: RecordId | None
    """The last record that the leaf knows to be stored, also of an earlier run."""
    start: int
    before: str
    upto: int
    head: str


def parse_chain(value: Any) -> Chain:
    """Parse the object `chain` of a ledger record. Raises `ContractError`."""
    what = "chain"
    row = object_of(value, what)
    chain = Chain(
        check_run(row.get("run")),
        count_of(row, "number", what),
        optional(row, "prior", _record_id),
        count_of(row, "start", what),
        _hash_of(row, "before", what),
        count_of(row, "upto", what),
        _hash_of(row, "head", what),
    )
    if chain.upto < chain.start or chain.number < 1:
        raise ContractError(f"{what}: record {chain.number} has batches {chain.start} to {chain.upto}")
    return chain


def _record_id(value: Any) -> RecordId:
    row = object_of(value, "chain: prior")
    return RecordId(
        check_run(row.get("run")), count_of(row, "number", "prior"), _hash_of(row, "digest", "prior")
    )


def _hash_of(row: dict[str, Any], name: str, what: str) -> str:
    text: str = field_of(row, name, str, what)
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        raise ContractError(f"{what}: {name} {text!r:.80} is not a SHA-256 in hex")
    return text


def payload_digest(payload: bytes) -> bytes:
    """Return BLAKE2b-128 of a message's payload, as in `bronze.digest`."""
    return blake2b(payload, digest_size=DIGEST_BYTES).digest()


def record_digest(payload: bytes) -> str:
    """Return SHA-256 of a ledger record, hex."""
    return sha256(payload).hexdigest()


def chain_start(domain: str, cls: str, run: str) -> bytes:
    """Return the head of a chain without batches."""
    return sha256(encode_cbor([_CHAIN, domain, cls, run])).digest()


def link_batch(head: bytes, n: int, digest: bytes, count: int) -> bytes:
    """Return the head after a stored batch or message of dead letters."""
    return sha256(head + encode_cbor([n, digest, count])).digest()


def raw_key(public: str) -> bytes:
    """Return the 32 bytes of an Ed25519 key from the text of a user's NKey. Raises `ContractError`."""
    try:
        raw = base64.b32decode(public)
    except (binascii.Error, ValueError):
        raw = b""
    # The sum is CRC-16/XMODEM, to which binascii gives another name.
    is_whole = len(raw) == 35 and binascii.crc_hqx(raw[:-2], 0) == int.from_bytes(raw[-2:], "little")
    if not is_whole or not public.startswith("U"):
        raise ContractError(f"key {public!r:.80} is not the public half of an NKey")
    return raw[1:33]


class ReceiptKey(NamedTuple):
    """A leaf's public key of receipts, and when it was revoked (ns since 1970), None while it holds."""

    key: bytes
    until: int | None = None


def parse_receipt_key(text: str) -> ReceiptKey:
    """Parse `U…` or `U… until <RFC 3339>`. Raises `ContractError`."""
    public, _, moment = text.partition(" until ")
    key = raw_key(public)
    if not moment:
        return ReceiptKey(key)
    try:
        until = datetime.fromisoformat(moment)
    except ValueError:
        until = None
    if until is None or until.tzinfo is None:
        raise ContractError(f"key {public}: {moment!r:.80} is no time like 2026-11-29T12:00:00Z")
    return ReceiptKey(key, int(until.timestamp() * 1_000_000) * 1_000)


@dataclass(frozen=True, slots=True)
class Signed:
    """An envelope: who signed (32 bytes of the key), which type, the payload, signed bytes and signature."""

    key: bytes
    type: str
    payload: bytes
    message: bytes
    signature: bytes


def _message(protected: bytes, payload: bytes) -> bytes:
    return encode_cbor(["Signature1", protected, b"", payload])


def sign(key: bytes, signer: Signer, type_: str, payload: bytes, *, detached: bool = False) -> bytes:
    """Return a COSE_Sign1 of the payload, with a `detached` payload as null."""
    protected = encode_cbor({_ALG: _ED25519, _CONTENT_TYPE: type_, _KID: key})
    signature = signer(_message(protected, payload))
    return encode_cbor([protected, {}, None if detached else payload, signature])


def signed_in(envelope: bytes, type_: str, detached: bytes | None = None) -> Signed:
    """Take a COSE_Sign1 of this type apart; `detached` is its payload. Raises `ContractError`.

    The caller verifies `signature` over `message` by `key`, and decides whether to trust the key.
    """
    match decode_cbor(envelope):
        case [bytes() as protected, {**unprotected}, bytes() | None as inner, bytes() as signature]:
            payload = inner if detached is None else detached
            headers = decode_cbor(protected)
            if payload is None or unprotected or (inner is not None and detached is not None):
                raise ContractError("signature: its payload is not where it was expected")
            match headers:
                case {1: -19, 3: str() as found, 4: bytes() as key} if found == type_ and len(headers) == 3:
                    if len(key) == 32 and len(signature) == 64:
                        return Signed(key, found, payload, _message(protected, payload), signature)
    raise ContractError(f"signature: it is not a COSE_Sign1 by Ed25519 of type {type_}")


def tree_levels(leaves: Iterable[bytes]) -> list[list[bytes]]:
    """Return the levels of the Merkle tree over leaf hashes, from the leaves to the root."""
    level = list(leaves)
    levels = [level]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [sha256(b"\x01" + left + right).digest() for left, right in pairs] + level[len(level) & ~1 :]
        levels.append(level)
    return levels


def tree_root(leaves: Iterable[bytes]) -> bytes:
    """Return the root over leaf hashes; SHA-256 of nothing for none (RFC 9162, section 2.1.1)."""
    top = tree_levels(leaves)[-1]
    return top[0] if top else sha256().digest()


def inclusion_path(levels: Sequence[Sequence[bytes]], index: int) -> list[bytes]:
    """Return the hashes beside the way from a leaf to the root, lowest first (RFC 9162, section 2.1.3)."""
    path = []
    for level in levels[:-1]:
        if index ^ 1 < len(level):
            path.append(level[index ^ 1])
        index >>= 1
    return path


def root_of_path(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """Return the root that a path leads to, None for a path of another length."""
    if not 0 <= index < size:
        return None
    last, rest, found = size - 1, list(path), leaf
    while last:
        if index & 1 or index < last:
            if not rest:
                return None
            other = rest.pop(0)
            pair = other + found if index & 1 else found + other
            found = sha256(b"\x01" + pair).digest()
        index, last = index >> 1, last >> 1
    return None if rest else found
