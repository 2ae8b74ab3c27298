"""Defines a reading (one NDJSON line), the reference for fast decoders, and clock corrections.

Times by the agent machine's clock end in `MACHINE_OFFSET`; only these are corrected. Large values are arrays
of numbers `[1.5, 2]` and bytes `{"base64": "AAEC"}` (RFC 4648, section 4, padded). Arrays are flat, not
empty, and become doubles.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from agent.contract.checks import (
    MAX_INT,
    ContractError,
    check_domain,
    count_of,
    encoded,
    field_of,
    fields_as_row,
    matching,
    open_record,
    refuse_constant,
)

__all__ = [
    "BASE64",
    "EPOCH_LIMIT",
    "MACHINE_OFFSET",
    "MAX_ARRAY",
    "MAX_BYTES",
    "MAX_EXACT",
    "MAX_LARGE_LINE",
    "MAX_NAME",
    "MAX_TAGS",
    "MAX_TEXT",
    "Correction",
    "Reading",
    "Value",
    "machine_time",
    "parse_correction",
    "parse_reading",
]

MAX_NAME: Final = 255
MAX_TEXT: Final = 32 * 1024
MAX_TAGS: Final = 64
EPOCH_LIMIT: Final = 253_402_300_799
"""Last second of year 9999; larger `ts` are mostly milliseconds."""
MAX_ARRAY: Final = 131_072
"""Numbers per array: 1 MiB of doubles."""
MAX_BYTES: Final = 1024 * 1024
"""Decoded bytes per value."""
MAX_EXACT: Final = 2**53
"""Largest integer in an array that a double surely holds; arrays have no text for digits."""
MAX_LARGE_LINE: Final = 8 * 1024 * 1024
"""Bytes of a line with array or bytes, without newline; bounds decoders before they count."""
BASE64: Final = "base64"
"""The only member of a bytes value."""

_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.([0-9]+))?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):?[0-5][0-9])\Z"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_END_OF_TIME = "9999-12-31"

Value = float | int | str | bool | tuple[float, ...] | bytes


def check_large_line(size: int) -> None:
    """Raise `ContractError` for a too long line with array or bytes."""
    if size > MAX_LARGE_LINE:
        raise ContractError(f"a line with an array or bytes has at most {MAX_LARGE_LINE} bytes, got {size}")


def parse_array(numbers: Sequence[object]) -> tuple[float, ...]:
    """Return an array's numbers; raises `ContractError`."""
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
    """Return an object's bytes. Of repeated members the last counts, all must be valid. Raises
    `ContractError`.
    """
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


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading. `ts` is RFC 3339 with offset or epoch seconds, None for arrival; `device` None is the
    domain.
    """

    metric: str
    value: Value
    ts: str | float | int | None = None
    device: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the JSON line without newline."""
        given = {"ts": self.ts, "device": self.device, "metric": self.metric, "value": self.value}
        row: dict[str, object] = {name: value for name, value in given.items() if value is not None}
        if isinstance(self.value, bytes):
            row["value"] = {BASE64: base64.b64encode(self.value).decode()}
        if self.tags:
            row["tags"] = dict(self.tags)
        return json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


class _Members(list[tuple[str, object]]):
    """A JSON object with repeated names."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Members, parse_constant=refuse_constant)


def parse_reading(line: bytes | str) -> Reading:
    """Parse a JSON line; raises `ContractError`. Fast decoders must accept the same lines.

    UTF-8 without byte order mark; of repeated names the last counts and all must be valid; `device`, `metric`
    and tag names have no control characters (U+0000 to U+001F, U+007F).
    """
    try:
        row = _DECODER.decode(line if isinstance(line, str) else line.decode())
    except json.JSONDecodeError as error:
        raise ContractError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ContractError("nested too deeply") from None
    except ValueError as error:
        raise ContractError(f"not JSON: {error}") from None
    if not isinstance(row, _Members):
        raise ContractError(f"a reading is an object, got {_shown(row)}")
    found: dict[str, Any] = {}
    for name, value in row:
        check = _CHECKS.get(name)
        if check is None:
            raise ContractError(f"unknown field {name!r:.80}; a reading has {', '.join(_CHECKS)}")
        found[name] = check(value)
    missing = {"metric", "value"} - found.keys()
    if missing:
        raise ContractError(f"{min(missing)} is missing")
    if any(name == "value" and isinstance(value, list) for name, value in row):
        check_large_line(len(line))
    return Reading(**found)


def _shown(value: object) -> str:
    return f"{dict(value) if isinstance(value, _Members) else value!r:.80}"


def _text(value: object, what: str, least: int, most: int) -> str:
    if not isinstance(value, str) or not least <= len(value) <= most:
        bounds = f"of {least} to {most}" if least else f"of up to {most}"
        raise ContractError(f"{what} must be text {bounds} characters, got {_shown(value)}")
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise ContractError(f"{what} holds half of a surrogate pair, which is not text")
    return value


def _name(value: object, what: str) -> str:
    name = _text(value, what, 1, MAX_NAME)
    if (found := _CONTROL.search(name)) is not None:
        raise ContractError(f"{what} holds a control character (U+{ord(found[0]):04X}); leave it out")
    return name


def _value(value: object) -> Value:
    if isinstance(value, list):
        return parse_bytes(value) if isinstance(value, _Members) else parse_array(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, "value", 0, MAX_TEXT)
    if isinstance(value, int) and -MAX_INT - 1 <= value <= MAX_INT:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ContractError(
        "value must be a finite number (a whole one of at most 64 bits), text, a bool, an array of numbers "
        f'or {{"base64": "…"}}, got {_shown(value)}'
    )


def _timestamp(value: object) -> str | float | int:
    if isinstance(value, str) and is_time(value):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= EPOCH_LIMIT:
        return value
    raise ContractError(
        f"ts must be RFC 3339 with an offset or epoch seconds (not milliseconds), got {_shown(value)}"
    )


def is_time(text: str) -> bool:
    """Tell whether it is an RFC 3339 time within years 1 to 9999 after rounding to microseconds, without leap
    second (:60).
    """
    found = _RFC3339.match(text)
    if found is None:
        return False
    year, month, day, fraction = found.groups()
    try:
        date(int(year), int(month), int(day))
    except ValueError:
        return False
    last = text.startswith(_END_OF_TIME) and text[11:19] == "23:59:59"
    return not (last and fraction is not None and f"{fraction:0<7}"[:7] >= "9999995")


def _tags(value: object) -> dict[str, str]:
    if not isinstance(value, _Members):
        raise ContractError(f"tags must be an object, got {_shown(value)}")
    tags = {_name(key, "a tag's name"): _text(text, "a tag", 0, MAX_TEXT) for key, text in value}
    if len(tags) > MAX_TAGS:
        raise ContractError(f"tags must have at most {MAX_TAGS} entries, got {len(tags)}")
    return tags


_CHECKS: Final[Mapping[str, Callable[[object], object]]] = {
    "ts": _timestamp,
    "device": lambda value: _name(value, "device"),
    "metric": lambda value: _name(value, "metric"),
    "value": _value,
    "tags": _tags,
}


MACHINE_OFFSET: Final = "-00:00"
"""Equals Z (RFC 3339), but clock libraries do not write it."""

_BOOT = re.compile(r"[0-9A-Za-z_-]{1,64}\Z")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def machine_time(ns: int) -> str:
    """Format ns since 1970 as `ts` of this machine's clock."""
    moment = _EPOCH + timedelta(microseconds=ns // 1000)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}{MACHINE_OFFSET}"


@dataclass(frozen=True, slots=True)
class Correction:
    """In boot `boot`, from monotonic `since` to `until`, `domain`'s wall clock was monotonic plus `offset`;
    the truth was `by` more. All in ns of `CLOCK_BOOTTIME`.
    """

    domain: str
    boot: str
    since: int
    until: int
    offset: int
    by: int

    def encode(self) -> bytes:
        return encoded(fields_as_row(self))


def parse_correction(data: bytes | str) -> Correction:
    """Parse a correction; raises `ContractError`."""
    what = "correction"
    row = open_record(data, what)
    since, until = count_of(row, "since", what), count_of(row, "until", what)
    if since >= until:
        raise ContractError(f"{what}: {since} to {until} is not an interval")
    offset, by = (field_of(row, name, int, what) for name in ("offset", "by"))
    if max(abs(offset), abs(by)) > MAX_INT:
        raise ContractError(f"{what}: {offset} and {by} must fit into 64 bits")
    boot = matching(_BOOT, row.get("boot"), "boot", "1 to 64 letters, digits, '_' or '-'")
    return Correction(check_domain(row.get("domain")), boot, since, until, offset, by)
