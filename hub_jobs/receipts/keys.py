"""Reads the keys of receipts: the leaves' public halves and the hub's seed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import nkeys
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from agent.contract import ContractError
from agent.contract.receipt import ReceiptKey, Signer, parse_receipt_key, raw_key

Registry = Mapping[str, Sequence[ReceiptKey]]
"""The keys of each leaf by domain."""


class KeysError(ValueError):
    """A file of keys is unusable; the text has place and remedy."""


class HubKey(NamedTuple):
    """The key that signs roots."""

    raw: bytes
    public: str
    sign: Signer


def verify(key: bytes, message: bytes, signature: bytes) -> bool:
    """Tell whether an Ed25519 signature fits."""
    try:
        VerifyKey(key).verify(message, signature)
    except (BadSignatureError, ValueError):
        return False
    return True


def registry_of(file: Path) -> Registry:
    """Read the [[leaf]] tables of the hub's configuration. Raises `KeysError`."""
    try:
        leaves = tomllib.loads(file.read_text()).get("leaf", [])
        return {
            str(leaf["domain"]): [parse_receipt_key(text) for text in leaf.get("receipt", ())]
            for leaf in leaves
        }
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise KeysError(f"{file} can't be read: {error}; give the hub's configuration") from None
    except (ContractError, AttributeError, KeyError, TypeError) as error:
        raise KeysError(f"{file}: a [[leaf]] table is wrong: {error}; see petiole check") from None


def hub_key(file: Path) -> HubKey:
    """Read the seed that `petiole enrol` made at the hub. Raises `KeysError`."""
    try:
        pair = nkeys.from_seed(file.read_bytes().strip())
        public = bytes(pair.public_key).decode()
        return HubKey(raw_key(public), public, pair.sign)
    except OSError as error:
        raise KeysError(f"{file} can't be read ({error.strerror}); make it with: petiole enrol") from None
    except (nkeys.NkeysError, ValueError):
        raise KeysError(f"{file} holds no seed of a user's NKey; restore that file") from None
