"""The larger values of a reading: an array of numbers, `[1.5, 2]`, and bytes, `{"base64": "AAEC"}` (RFC 4648,
section 4, with its padding). An array is flat and not empty; its numbers become doubles. The reference for
the fast decoders of the agent and of the jobs, as `reading` is."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Final

from agent.contract.checks import ContractError

__all__ = ["BASE64", "MAX_ARRAY", "MAX_BYTES", "MAX_EXACT", "MAX_LARGE_LINE"]

MAX_ARRAY: Final = 131_072
"""Numbers in an array: 1 MiB of doubles."""
MAX_BYTES: Final = 1024 * 1024
"""Bytes of a value that is bytes, decoded."""
MAX_EXACT: Final = 2**53
"""The largest whole number in an array: a double holds no larger one for certain, and an array has no text
beside it for the digits."""
MAX_LARGE_LINE: Final = 8 * 1024 * 1024
"""Bytes of a line whose value is an array or bytes, without its newline. It bounds what a decoder builds of a
line before it can count the numbers; no such reading needs as many."""
BASE64: Final = "base64"
"""The only member of a value that is bytes."""


def check_large_line(size: int) -> None:
    """Raises `ContractError` for a line of so many bytes that has an array or bytes."""
    if size > MAX_LARGE_LINE:
        most = f"has at most {MAX_LARGE_LINE} bytes"
        raise ContractError(f"a line with an array or bytes {most}, got {size}")


def parse_array(numbers: Sequence[object]) -> tuple[float, ...]:
    """The numbers of an array; raises `ContractError`."""
    if not 1 <= len(numbers) <= MAX_ARRAY:
        raise ContractError(f"value must be an array of 1 to {MAX_ARRAY} numbers, got {len(numbers)}")
    return tuple(_number(number, at) for at, number in enumerate(numbers))


def _number(number: object, at: int) -> float:
    if isinstance(number, float) and math.isfinite(number):
        return number
    if isinstance(number, int) and not isinstance(number, bool) and abs(number) <= MAX_EXACT:
        return float(number)
    kind = "an array or object" if isinstance(number, list) else f"{number!r:.80}"
    raise ContractError(f"value[{at}] must be a finite number (a whole one of at most 2^53), got {kind}")


def parse_bytes(members: Sequence[tuple[str, object]]) -> bytes:
    """The bytes of an object, whose member may come twice as any may: the last counts, and each must be good.
    Raises `ContractError`."""
    found = None
    for name, text in members:
        if name != BASE64 or not isinstance(text, str):
            raise ContractError(f'value as an object is {{"{BASE64}": "…"}}, got the member {name!r:.80}')
        try:
            found = base64.b64decode(text, validate=True)
        except ValueError as error:
            raise ContractError(f"value is not base64 with its padding: {error}") from None
        if len(found) > MAX_BYTES:
            raise ContractError(f"value has at most {MAX_BYTES} bytes, got {len(found)}")
    if found is None:
        raise ContractError(f'value as an object is {{"{BASE64}": "…"}}, got no member')
    return found
