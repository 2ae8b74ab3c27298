"""What receipts sign has one form, and nothing else is taken for it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from hashlib import sha256

import nkeys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import ContractError
from agent.contract.cbor import decode_cbor, encode_cbor
from agent.contract.receipt import (
    RECORD_TYPE,
    ROOT_TYPE,
    inclusion_path,
    parse_receipt_key,
    raw_key,
    root_of_path,
    sign,
    signed_in,
    tree_levels,
    tree_root,
)

LEAVES = st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.binary() | st.text()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 99), inner)
)
PAIR = nkeys.from_seed(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER))
PUBLIC = bytes(PAIR.public_key).decode()


@given(VALUES)
def test_a_value_is_read_back(value: object) -> None:
    assert decode_cbor(encode_cbor(value)) == value


@given(st.binary(max_size=64))
def test_strange_bytes_are_refused_or_have_this_one_form(data: bytes) -> None:
    try:
        value = decode_cbor(data)
    except ContractError:
        return
    assert encode_cbor(value) == data


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("1817", id="a number in a longer form"),
        pytest.param("9f01ff", id="a list without length"),
        pytest.param("f93c00", id="a floating-point number"),
        pytest.param("c11a514b67b0", id="a tag"),
        pytest.param("a2616201616101", id="keys out of order"),
        pytest.param("a2616101616102", id="a key twice"),
        pytest.param("9bffffffffffffffff", id="more items than bytes"),
        pytest.param("81" * 40 + "01", id="many levels"),
        pytest.param("62c328", id="a text that is not UTF-8"),
        pytest.param("0000", id="two values"),
        pytest.param("", id="nothing"),
    ],
)
def test_another_form_is_refused(data: str) -> None:
    with pytest.raises(ContractError):
        decode_cbor(bytes.fromhex(data))


def of_definition(leaves: list[bytes]) -> bytes:
    """The root as RFC 9162 defines it."""
    if len(leaves) < 2:
        return leaves[0] if leaves else sha256().digest()
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return sha256(b"\1" + of_definition(leaves[:half]) + of_definition(leaves[half:])).digest()


@pytest.mark.parametrize("size", [*range(18), 64, 65])
def test_each_leaf_is_proven_at_its_own_place_only(size: int) -> None:
    leaves = [os.urandom(32) for _ in range(size)]
    levels, root = tree_levels(leaves), of_definition(leaves)
    assert tree_root(leaves) == root
    for place, leaf in enumerate(leaves):
        path = inclusion_path(levels, place)
        assert root_of_path(leaf, place, size, path) == root
        assert root_of_path(leaf, place + 1, size, path) != root
        assert root_of_path(os.urandom(32), place, size, path) != root
        assert root_of_path(leaf, place, size, [*path, leaf]) is None


def test_a_signature_holds_for_its_payload_type_and_key() -> None:
    envelope = sign(raw_key(PUBLIC), PAIR.sign, RECORD_TYPE, b"said", detached=True)
    found = signed_in(envelope, RECORD_TYPE, b"said")
    assert found.key == raw_key(PUBLIC)
    assert PAIR.verify(found.message, found.signature)
    with pytest.raises(nkeys.NkeysError):
        PAIR.verify(signed_in(envelope, RECORD_TYPE, b"else").message, found.signature)
    with pytest.raises(ContractError, match="not a COSE_Sign1"):
        signed_in(envelope, ROOT_TYPE, b"said")
    with pytest.raises(ContractError, match="payload is not where"):
        signed_in(envelope, RECORD_TYPE)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reading_of_a_signature(data: bytes) -> None:
    with pytest.raises(ContractError):
        signed_in(data, RECORD_TYPE, b"said")


def test_a_revoked_key_names_the_moment() -> None:
    assert parse_receipt_key(PUBLIC).until is None
    revoked = parse_receipt_key(f"{PUBLIC} until 2026-11-29T12:00:00Z")
    assert revoked.until == int(datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()) * 10**9


@pytest.mark.parametrize(
    "text",
    ["", "U", PUBLIC[:-1] + "A", "S" + PUBLIC[1:], f"{PUBLIC} until noon", f"{PUBLIC} until 2026-11-29"],
)
def test_a_key_with_a_mistake_is_refused(text: str) -> None:
    with pytest.raises(ContractError):
        parse_receipt_key(text)
