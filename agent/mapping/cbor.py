"""Decodes a payload of CBOR (RFC 8949) to the values that JSON has. No I/O."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO
from typing import Any, Final

import cbor2

__all__ = ["SENML_LABELS", "CborError", "decode_cbor"]

SENML_LABELS: Final[Mapping[int, str]] = dict(
    enumerate(("bs", "bv", "bu", "bt", "bn", "bver", "n", "u", "v", "vs", "vb", "s", "t", "ut", "vd"), -6)
)
"""Names of the labels of SenML (RFC 8428, table 4)."""
_MOST: Final = 64 * 1024
"""Bytes of a payload. Arrays may be keys in cbor2 6.3.0, and a sender can choose arrays of equal hash, for
which decoding takes time with the square of their number."""
_DEEPEST: Final = 32
_EXPONENT: Final = 400
"""Powers of ten beyond which a decimal fraction is no double."""
_DECIMAL_FRACTION: Final = 4


class CborError(ValueError):
    """A payload is no CBOR of plain values; the text has the reason."""


class _Tags(dict[int, Callable[[Any, bool], Any]]):
    """Refuses each tag that has no entry; the library would make objects of some."""

    def __missing__(self, tag: int) -> Callable[[Any, bool], Any]:
        return partial(_refuse, tag)


def decode_cbor(payload: bytes, labels: Mapping[int, str]) -> Any:
    """Return the value of a payload. Byte strings become Base64 for URLs without padding, as RFC 8428 has
    them in JSON. A whole number as key becomes its name in `labels`, else its digits.

    Raises `CborError`.
    """
    if len(payload) > _MOST:
        raise CborError(f"CBOR of {len(payload)} bytes; send at most {_MOST} in a payload")
    stream = BytesIO(payload)
    decoder = cbor2.CBORDecoder(
        stream, semantic_decoders=_TAGS, max_depth=_DEEPEST, allow_indefinite=True, allow_duplicate_keys=False
    )
    try:
        value = decoder.decode()
    except cbor2.CBORError as error:
        reason = error.__cause__ if isinstance(error.__cause__, CborError) else error
        raise CborError(f"not CBOR that is known: {reason!s:.200}") from None
    if stream.tell() != len(payload):
        raise CborError(f"not CBOR that is known: {len(payload) - stream.tell()} bytes follow the value")
    return _plain(value, labels)


def _plain(value: Any, labels: Mapping[int, str]) -> Any:
    if type(value) is dict:
        plain: dict[str, Any] = {}
        for key, one in value.items():
            if type(key) not in (int, str):
                raise CborError("not CBOR that is known: a key is no text or whole number")
            name = labels.get(key, str(key))
            if name in plain:
                raise CborError(f"not CBOR that is known: the key {name!r:.60} stands twice")
            plain[name] = _plain(one, labels)
        return plain
    if type(value) is list:
        return [_plain(one, labels) for one in value]
    if type(value) is bytes:
        return urlsafe_b64encode(value).rstrip(b"=").decode()
    if value is None or type(value) in (bool, float, int, str):
        return value
    if value is cbor2.undefined:
        return None
    raise CborError(f"not CBOR that is known: JSON has no {value!r:.60}")


def _refuse(tag: int, _value: Any, _is_immutable: bool) -> Any:
    raise CborError(f"tag {tag} of CBOR is not decoded; send a plain number, text or byte string")


def _fraction(value: Any, _is_immutable: bool) -> float:
    match value:
        case [int() as exponent, int() as mantissa] if abs(exponent) <= _EXPONENT:
            return float(f"{int(mantissa)}e{int(exponent)}")
    raise CborError(f"a decimal fraction of CBOR is no pair of whole numbers, or beyond 10^{_EXPONENT}")


_TAGS: Final = _Tags({_DECIMAL_FRACTION: _fraction})
