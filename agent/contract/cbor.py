"""Encodes and decodes deterministic CBOR (RFC 8949, section 4.2.1): the subset that receipts use.

The subset has integers of 64 bits, byte strings, texts, arrays, maps, booleans and null. Everything else is
refused, also a longer form of the same value, so that equal values have equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from agent.contract.checks import ContractError

__all__ = ["decode_cbor", "encode_cbor"]

_DEEPEST: Final = 16
_SIMPLE: Final[Mapping[int, Any]] = {20: False, 21: True, 22: None}
_SIZES: Final = {24: 1, 25: 2, 26: 4, 27: 8}


def _head(major: int, value: int) -> bytes:
    if value < 24:
        return bytes([major << 5 | value])
    for info, size in _SIZES.items():
        if value < 1 << 8 * size:
            return bytes([major << 5 | info]) + value.to_bytes(size, "big")
    raise ContractError(f"CBOR: {value} has more than 64 bits")


def encode_cbor(value: Any) -> bytes:
    """Encode a value. Raises `ContractError` for a value outside the subset."""
    match value:
        case bool() | None:
            return bytes([0xE0 | {False: 20, True: 21, None: 22}[value]])
        case int():
            return _head(0, value) if value >= 0 else _head(1, -1 - value)
        case bytes():
            return _head(2, len(value)) + value
        case str():
            text = value.encode()
            return _head(3, len(text)) + text
        case Mapping():
            pairs = sorted((encode_cbor(key), encode_cbor(item)) for key, item in value.items())
            return _head(5, len(pairs)) + b"".join(key + item for key, item in pairs)
        case Sequence():
            return _head(4, len(value)) + b"".join(map(encode_cbor, value))
    raise ContractError(f"CBOR: {type(value).__name__} is not encoded here")


def decode_cbor(data: bytes) -> Any:
    """Decode one value that fills `data`. Raises `ContractError`."""
    value, end = _decode(data, 0, _DEEPEST)
    if end != len(data):
        raise ContractError(f"CBOR: {len(data) - end} bytes follow the value")
    return value


def _decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if at >= len(data):
        raise ContractError("CBOR: the data ends within a value")
    major, info, start = data[at] >> 5, data[at] & 31, at
    at += 1
    if major == 7 and info in _SIMPLE:
        return _SIMPLE[info], at
    if major > 5 or info > 27:
        raise ContractError(f"CBOR: byte {data[start]:#04x} at {start} begins no value of receipts")
    number = info
    if size := _SIZES.get(info):
        number, at = int.from_bytes(data[at : at + size], "big"), at + size
    if at > len(data) or _head(major, number) != data[start:at]:
        raise ContractError(f"CBOR: the number at {start} is cut or not in its shortest form")
    if major < 2:
        return (number if major == 0 else -1 - number), at
    if number > len(data) - at:
        raise ContractError(f"CBOR: the value at {start} is longer than the data")
    if major < 4:
        piece = data[at : at + number]
        try:
            return (piece if major == 2 else piece.decode()), at + number
        except UnicodeDecodeError:
            raise ContractError(f"CBOR: the text at {start} is not UTF-8") from None
    if not depth:
        raise ContractError(f"CBOR: more than {_DEEPEST} levels")
    return _items(data, at, depth - 1, number) if major == 4 else _pairs(data, at, depth - 1, number)


def _items(data: bytes, at: int, depth: int, number: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(number):
        item, at = _decode(data, at, depth)
        found.append(item)
    return found, at


def _pairs(data: bytes, at: int, depth: int, number: int) -> tuple[dict[Any, Any], int]:
    found: dict[Any, Any] = {}
    before = b""
    for _ in range(number):
        start = at
        key, at = _decode(data, at, depth)
        if not isinstance(key, int | str | bytes) or data[start:at] <= before:
            raise ContractError(f"CBOR: the key at {start} is no text or number, or is out of order")
        before = data[start:at]
        found[key], at = _decode(data, at, depth)
    return found, at
