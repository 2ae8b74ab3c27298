"""Defines refusals, exit codes, and checks of names and record fields.

Checks return the value or raise `ContractError` with record, field and value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final, TypeVar

__all__ = [
    "MAX_INT",
    "VERSION",
    "ContractError",
    "Exit",
    "check_class",
    "check_domain",
    "check_epoch",
    "check_input",
    "check_request_key",
    "check_run",
    "check_tenant",
    "check_user",
]

VERSION: Final = 1
"""Version `v` of records."""
MAX_INT: Final = 2**63 - 1

_DOMAIN = re.compile(r"(?!(?:ACK|API|EVENT|FC|SNAPSHOT)\Z)[A-Za-z0-9_-]{1,32}\Z")
"""Second token of `$JS.<domain>.API`, without names reserved by nats-server (`isReservedDomainName` in
server/jetstream.go, from 2.15.3).
"""
_CLASS = re.compile(r"[a-z0-9]{1,16}\Z")
_INPUT = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}\Z")
_MACHINE = re.compile(r"[a-z0-9-]{1,64}\Z")
_USER = re.compile(r"[a-z0-9-]{1,32}\Z")
_EPOCH = re.compile(r"[0-9a-z]{13}\Z")
_RUN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,18})\Z")
_CREATED = re.compile(r"[0-9TZ:.+-]{20,40}\Z")
_KEY = re.compile(r"[!-~]{1,128}\Z")


class ContractError(ValueError):
    """Foreign data breaks the contract; the text has fault and place."""


def matching(pattern: re.Pattern[str], value: object, what: str, rule: str) -> str:
    if not isinstance(value, str) or pattern.match(value) is None:
        raise ContractError(f"{what} {value!r:.80} is not {rule}")
    return value


def check_domain(value: object) -> str:
    return matching(
        _DOMAIN,
        value,
        "domain",
        "1 to 32 letters, digits, '_' or '-' (a dot is not allowed)"
        ", other than ACK, API, EVENT, FC and SNAPSHOT",
    )


def check_class(value: object) -> str:
    return matching(_CLASS, value, "class", "1 to 16 lower-case letters or digits")


def check_input(value: object) -> str:
    """Return a valid input name, one subject token."""
    return matching(_INPUT, value, "input", "1 to 32 lower-case letters, digits, '_' or '-'")


def check_tenant(value: object) -> str:
    return matching(_DOMAIN, value, "tenant", "1 to 32 letters, digits, '_' or '-'")


def check_user(value: object) -> str:
    """Return a valid user name, usable in accounts and variables."""
    return matching(_USER, value, "user", "1 to 32 lower-case letters, digits or '-'")


def check_machine(value: object) -> str:
    return matching(_MACHINE, value, "machine", "1 to 64 lower-case letters, digits or '-'")


def check_epoch(value: object) -> str:
    return matching(_EPOCH, value, "epoch", "13 characters 0-9 a-z")


def check_created(value: object) -> str:
    """Return a valid creation time as written by a server."""
    return matching(_CREATED, value, "time of creation", "a time as RFC 3339 has it")


def check_run(value: object) -> str:
    return matching(_RUN, value, "run", "a UUIDv7 in lower case")


def check_request_key(value: object) -> str:
    return matching(_KEY, value, "Idempotency-Key", "1 to 128 visible ASCII characters without a space")


def whole_number(text: object, what: str) -> int:
    value = int(matching(_NUMBER, text, what, "a whole number"))
    if value > MAX_INT:
        raise ContractError(f"{what} {text!r} is above {MAX_INT}")
    return value


class Exit(IntEnum):
    """The exit codes."""

    WELL = 0
    FAILED = 1
    USAGE = 2
    LOSS = 3
    CONFLICT = 4
    UNREACHABLE = 5
    CONTRADICTED = 6


T = TypeVar("T")


def refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def open_record(data: bytes | str, what: str) -> dict[str, Any]:
    try:
        row = json.loads(data, parse_constant=refuse_constant)
    except RecursionError:
        raise ContractError(f"{what}: nested too deeply") from None
    except ValueError as error:
        raise ContractError(f"{what}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ContractError(f"{what}: an object was expected, not {type(row).__name__}")
    version = row.get("v")
    if isinstance(version, bool) or not isinstance(version, int) or version != VERSION:
        raise ContractError(f"{what}: version {version!r:.80} is not known here; this side speaks {VERSION}")
    return row


def encoded(row: Mapping[str, Any], default: Callable[[Any], Any] | None = None) -> bytes:
    """Encode a record; `default` converts unknown values."""
    return json.dumps({"v": VERSION, **row}, separators=(",", ":"), default=default).encode()


def fields_as_row(record: Any) -> dict[str, Any]:
    """Return fields by name; `dataclasses.asdict` would copy values."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def field_of(row: Mapping[str, Any], name: str, kind: type[T] | tuple[type, ...], what: str) -> Any:
    value = row.get(name)
    if (isinstance(value, bool) and kind is not bool) or not isinstance(value, kind):
        raise ContractError(f"{what}: {name} is {value!r:.80}, which is not of its type")
    return value


def count_of(row: Mapping[str, Any], name: str, what: str) -> int:
    value = field_of(row, name, int, what)
    if not 0 <= value <= MAX_INT:
        raise ContractError(f"{what}: {name} is {value}, a count was expected")
    return int(value)


def flag_of(row: Mapping[str, Any], name: str, what: str) -> bool:
    return bool(field_of(row, name, bool, what))


def object_of(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ContractError(f"{what} is {value!r:.80}, an object was expected")
    return value


def nullable(row: Mapping[str, Any], name: str, kind: type[T], what: str) -> T | None:
    """Return a field of this kind, None if null or missing."""
    return None if row.get(name) is None else field_of(row, name, kind, what)


def optional(row: Mapping[str, Any], name: str, read: Callable[[Any], T]) -> T | None:
    return None if row.get(name) is None else read(row[name])


def ranges_of(
    row: Mapping[str, Any], name: str, kinds: tuple[type, ...], what: str
) -> tuple[tuple[Any, ...], ...]:
    rows = field_of(row, name, list, what)
    for item in rows:
        fits = isinstance(item, list) and len(item) == len(kinds)
        if not fits or any(
            not isinstance(v, k) or isinstance(v, bool) for v, k in zip(item, kinds, strict=True)
        ):
            raise ContractError(
                f"{what}: {name} holds {item!r:.80}, which is not {len(kinds)} values of their types"
            )
        if not 1 <= item[0] <= item[1] <= MAX_INT:
            raise ContractError(f"{what}: {name} holds the range {item[0]}..{item[1]}")
        if any(isinstance(v, int) and not 0 <= v <= MAX_INT for v in item[2:]):
            raise ContractError(f"{what}: {name} holds {item!r:.80}, which has an impossible count")
    return tuple(tuple(item) for item in rows)
