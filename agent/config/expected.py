"""Describes allowed values by field type, and formats keys and values. Pure."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from msgspec import Meta, Struct
from msgspec.structs import fields

from agent.base.files import without_password
from agent.config.values import Linger, RestAfter, Seconds, Size, SyncInterval
from agent.mapping.schema import Map

_LONGEST: Final = 60
_NUMBERS: Final = re.compile(r"\[[0-9]+\]")


def unreadable_keys(kind: type[Struct], path: str = "") -> list[str]:
    """Return keys of a Struct with types that a file can't contain."""
    keys = []
    for field in fields(kind):
        key = key_below(path, field.encode_name)
        row = field.type if is_struct(field.type) else row_of(field.type)
        try:
            keys += unreadable_keys(row, key) if row is not None else []
            expected(str if row is not None else field.type)
        except (KeyError, TypeError):
            keys.append(key)
    return keys


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def row_of(kind: Any) -> type[Struct] | None:
    """Return a list's Struct, or None."""
    arguments = get_args(kind)
    return arguments[0] if get_origin(kind) is list and is_struct(arguments[0]) else None


def remedy_of(kind: Any, key: str) -> str:
    if row_of(kind) is not None:
        return f"write each as [[{header_of(key)}]] with its keys below"
    example = next((meta.examples[0] for meta in metadata(kind) if meta.examples), None)
    return f"give {expected(kind)}" + (f", such as {json.dumps(example)}" if example is not None else "")


def metadata(kind: Any) -> list[Meta]:
    return [meta for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, Meta)]


def also_meant(kind: Any) -> Iterator[str]:
    """Yield common wrong names of a key."""
    for meta in metadata(kind):
        yield from (meta.extra or {}).get("also", ())


def header_of(key: str) -> str:
    """Return a key as TOML table header."""
    return _NUMBERS.sub("", key)


def expected(kind: Any) -> str:
    """Describe the allowed values."""
    if isinstance(kind, UnionType) or get_origin(kind) is Union:
        return expected(next(arg for arg in get_args(kind) if arg is not NoneType))
    if get_origin(kind) is Literal:
        return one_of(get_args(kind))
    if hasattr(kind, "__metadata__"):
        return expected(get_args(kind)[0]) + _bounds(kind.__metadata__)
    if get_origin(kind) is dict and get_args(kind)[1] is Any:
        return "a table"
    if get_origin(kind) is dict:
        return f"a table, each value {expected(get_args(kind)[1])}"
    if get_origin(kind) is list:
        return f"a list, each {expected(get_args(kind)[0])}"
    return _WORDS[kind]


_WORDS: Final[Mapping[Any, str]] = {
    str: "text in quotes",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a path in quotes",
    datetime: "a time such as 2026-11-21T06:00:00Z, without quotes",
    Seconds: 'a duration above 0, such as "100ms", "20s" or "2m"',
    RestAfter: 'a duration of at least 10 s, such as "20m", or "0s" for never',
    Linger: 'a duration of at most 5 s, such as "100ms", or "0s"',
    SyncInterval: 'a duration of 100 ms to a minute, such as "1s", or "always"',
    Size: 'a size such as "500kB", "16MiB" or "1GiB"',
    Map: "a name in quotes",
}


def _bounds(metadata: Iterable[Any]) -> str:
    words = []
    for meta in metadata:
        if isinstance(meta, Meta):
            words += [f"at least {meta.ge}"] if meta.ge is not None else []
            words += [f"at most {meta.le}"] if meta.le is not None else []
    return f" of {' and '.join(words)}" if words else ""


def one_of(names: Iterable[Any]) -> str:
    return "one of " + ", ".join(json.dumps(str(name)) for name in names)


def nearest(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"take one of {', '.join(sorted(names))}"


def key_below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def shown_value(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except TypeError:
        text = str(value)
    text = without_password(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
