"""Reads the fields of JSON records: each error names the record, the field and its value."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from agent.contract.checks import MAX_INT, ContractError
from agent.contract.names import VERSION

T = TypeVar("T")


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def open_record(data: bytes | str, what: str) -> dict[str, Any]:
    try:
        row = json.loads(data, parse_constant=_refuse_constant)
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
