"""Decodes a payload: JSON, JSON with tokens such as `nan`, CBOR, or bare text. No I/O."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import msgspec

_BOM: Final = b"\xef\xbb\xbf"
_MENDED: Final = 64 * 1024
"""Characters of a payload searched for tokens such as `nan` that JSON lacks."""
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+\\?"?|[^\s,:\[\]{}"]+', re.DOTALL)
_JSON_TOKEN: Final = re.compile(
    r'".*+|-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?|true|false|null', re.DOTALL
)
_NO_NUMBER: Final = re.compile(r"[+-]?nan(?:\([^)]*\))?\Z", re.IGNORECASE)
_INFINITE: Final = re.compile(r"[+-]?inf(?:inity)?\Z", re.IGNORECASE)
_LONG: Final = 300
"""Digits of a whole number that are converted; more are beyond the doubles."""
_decode = msgspec.json.Decoder().decode


class PayloadError(ValueError):
    """A payload can't be decoded; the text has the reason."""


class NotJson(str):
    """A token of an object or array that is no JSON."""

    __slots__ = ()


def is_cbor(payload: bytes) -> bool:
    """Tell whether a payload begins as an array or map of CBOR, as no text in UTF-8 begins."""
    return 0x80 <= payload[0] < 0xC0 if payload else False


def decode(payload: bytes, *, is_senml: bool = False) -> tuple[Any, bool]:
    """Return the value, and whether it was strict JSON or CBOR. Else it may hold infinite numbers, `NotJson`
    tokens and lone surrogates for bytes that are not UTF-8. Of names that JSON repeats the last counts.
    `is_senml` tells that whole numbers as keys of CBOR are labels of SenML.

    Raises `PayloadError`.
    """
    if is_cbor(payload):
        # Imported here, so that only an agent that gets CBOR has the library in its memory.
        from agent.mapping.cbor import SENML_LABELS, CborError, decode_cbor

        try:
            return decode_cbor(payload, SENML_LABELS if is_senml else {}), True
        except CborError as error:
            raise PayloadError(str(error)) from None
    try:
        return _decode(payload), True
    except RecursionError:
        raise PayloadError("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error)
    text = payload.removeprefix(_BOM).decode(errors="surrogateescape").strip()
    if not text.startswith(("{", "[")):
        return _bare(text), False
    mended = _TOKEN.sub(_mend, text) if len(text) <= _MENDED else text
    try:
        return _lenient(mended), False
    except RecursionError:
        raise PayloadError("nested too deeply") from None
    except ValueError:
        raise PayloadError(f"not JSON: {reason:.200}") from None


def _bare(text: str) -> Any:
    """Return the number or quoted text of a bare payload, else its text."""
    if _NO_NUMBER.match(text):
        return math.nan
    try:
        return _lenient(text)
    except ValueError:
        return text


def _lenient(text: str) -> Any:
    return json.loads(text, parse_int=_whole, strict=False, object_hook=_unmarked)


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONG else math.inf


_MARK: Final = "\udfff"
"""Begins the stand-in of a token; no payload decodes to it, as bytes become U+DC80 to U+DCFF."""


def _mend(match: re.Match[str]) -> str:
    token = match[0]
    if _JSON_TOKEN.fullmatch(token):
        return token
    if _NO_NUMBER.match(token):
        return "NaN"
    if _INFINITE.match(token):
        return "Infinity"
    return json.dumps(_MARK + token)


def _unmarked(members: dict[str, Any]) -> dict[str, Any]:
    for name, value in members.items():
        if type(value) is str and value.startswith(_MARK):
            members[name] = NotJson(value[1:])
    return members
