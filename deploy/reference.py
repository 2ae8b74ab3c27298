"""python -m deploy.reference: docs/configuration.md, from the types by which the configuration is read.

Types, defaults and bounds are those of `agent.config.schema` and of the inputs' options; the sentences are
those of `deploy/reference.toml`, and what a whole table is for is its docstring. It imports the agent and is
imported by nothing in it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Container, Iterator
from datetime import datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from msgspec import NODEFAULT, Meta, Struct
from msgspec.structs import FieldInfo, fields

from agent.config.schema import Config
from agent.config.values import Linger, RestAfter, Seconds, Size, SyncInterval
from agent.leaf.inputs import OPTIONS
from agent.leaf.inputs.shared import InputOptions
from agent.mapping.schema import Map

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "configuration.md"
SENTENCES: Final[dict[str, dict[str, str]]] = tomllib.loads((ROOT / "deploy" / "reference.toml").read_text())
_HEAD: Final = """# Configuration

Every key of the agent's configuration file, made from its types (`make docs WRITE=reference`).
[config.example.toml](../config.example.toml) has all keys.
`petiole check` names all problems of a file at once.

A key without a default has to be given. A duration is written as "100ms", "20s", "2m", "1h" or "1d", above 0
and at most a year; a size as "500kB", "16MiB", "1GiB" or a number of bytes. A path that begins with
`$CREDENTIALS_DIRECTORY/` is a secret that systemd hands over ([install.md](install.md#under-systemd)); a
relative one begins at the [directory of the file](configure.md#which-file).
A table in `[[double brackets]]` may occur several times. `${NAME}` in a text is the environment's variable of
that name, and files in a directory beside this one may add tables
([configure.md](configure.md#several-files)).
"""
_INPUTS: Final = """## Inputs

Each `[[input]]` has a `type`, which decides its other keys. Other types are those of installed packages
([write-an-input.md](write-an-input.md)). Every type has these keys; below are its own, and those with another
default or meaning:
"""
_MORE: Final = {
    "http": "send.md#send-a-reading",
    "mqtt": "inputs/mqtt.md",
    "modbus": "inputs/opcua.md#modbus",
    "opcua": "inputs/opcua.md",
}
_PLAIN: Final = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    Seconds: "duration",
    Linger: "duration",
    RestAfter: "duration",
    SyncInterval: "duration or `always`",
    Size: "size",
    Path: "path",
    datetime: "time",
    Any: "anything",
    Map: "name",
}
_TIMES: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_SIZES: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def page() -> str:
    """The whole document. Raises `KeyError` for a key without a sentence."""
    common = [_row(InputOptions, field).replace("| – |", "| the type |") for field in fields(InputOptions)]
    parts = [_HEAD, *_section(Config, "", "##", "The top of the file", ""), _INPUTS, *_rows(common)]
    for kind, options in sorted(OPTIONS.items()):
        more = _MORE.get(kind, f"inputs.md#{kind}")
        intro = f"[{more.partition('#')[0]}]({more}) describes it."
        known = {row.replace("| the type |", f'| `"{kind}"` |') for row in common}
        parts += _section(options, "[[input]]", "###", f'`type = "{kind}"`', intro, known)
    return "\n".join(parts)


def structs() -> set[type[Struct]]:
    """The types of all tables."""
    found: set[type[Struct]] = set()
    waiting: list[type[Struct]] = [Config, *OPTIONS.values()]
    while waiting:
        one = waiting.pop()
        found.add(one)
        waiting += [inner for field in fields(one) if (inner := _table(field.type)) is not None]
    return found


def is_table(kind: type[Struct], field: FieldInfo) -> bool:
    """Whether a key holds a table, or a list of them, that has a heading of its own."""
    return _table(field.type) is not None or (kind is Config and field.name == "input")


def sentence(kind: type[Struct], key: str) -> str:
    """What this key of this table means. Raises `KeyError`."""
    if (found := _sentence(kind, key)) is None:
        raise KeyError(f"{kind.__name__}.{key} has no sentence in deploy/reference.toml")
    return found


def _sentence(kind: type[Struct], key: str) -> str | None:
    declared = (SENTENCES.get(one.__name__, {}) for one in kind.__mro__)
    return next((one[key] for one in declared if key in one), None)


def _section(
    kind: type[Struct],
    path: str,
    level: str,
    title: str = "",
    intro: str | None = None,
    known: Container[str] = (),
) -> Iterator[str]:
    """The heading, introduction and rows of a table, and of the tables in it, without `known` rows."""
    inner = [one for one in fields(kind) if is_table(kind, one)]
    # Small tables may stand within the line of their key, and have a sentence there too.
    rows = [_row(kind, one) for one in fields(kind) if one not in inner or _sentence(kind, one.encode_name)]
    text = " ".join((kind.__doc__ or "").split()) if intro is None else intro
    yield f"{level} {title or f'`{path}`'}\n"
    if text:
        yield f"{text}\n"
    yield from _rows([row for row in rows if row not in known])
    for one in inner:
        table = _table(one.type)
        if table is not None:
            name = ".".join(filter(None, [path.strip("[]"), one.encode_name]))
            many = get_origin(one.type) is list
            yield from _section(table, f"[[{name}]]" if many else f"[{name}]", level)


def _rows(rows: list[str]) -> Iterator[str]:
    if rows:
        yield "\n".join(["| key | type | default | means |", "|---|---|---|---|", *rows, ""])


def _row(kind: type[Struct], field: FieldInfo) -> str:
    if field.default is NODEFAULT and field.default_factory is NODEFAULT:
        default = "–"
    else:
        made = field.default if field.default_factory is NODEFAULT else field.default_factory()
        default = "none" if made is None else f"`{_value(made)}`"
    what = _type(field.type)
    return f"| `{field.encode_name}` | {what} | {default} | {sentence(kind, field.encode_name)} |"


def _table(kind: Any) -> type[Struct] | None:
    """The Struct that a key holds, or holds a list of."""
    if get_origin(kind) is list:
        kind = get_args(kind)[0]
    return kind if isinstance(kind, type) and issubclass(kind, Struct) else None


def _type(kind: Any) -> str:
    origin, of = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return ", ".join(filter(None, [_type(of[0]), _bounds(of[1])]))
    if origin is Literal:
        *most, last = (f"`{_value(one)}`" for one in of)
        return f"{', '.join(most)} or {last}" if most else last
    if origin in (Union, UnionType):
        return " or ".join(_type(one) for one in of if one is not NoneType)
    if origin is list:
        return "tables" if _table(kind) else f"list of {_type(of[0])}"
    return "table" if origin is dict else _PLAIN[kind]


def _bounds(meta: Meta) -> str:
    if meta.le is None:
        return "" if meta.ge is None else f"at least {meta.ge}"
    return f"{meta.ge} to {meta.le}"


def _value(value: Any) -> str:
    """As it stands in TOML."""
    match value:
        case SyncInterval() if not value:
            return '"always"'
        case Seconds():
            unit = next(((by, name) for by, name in _TIMES if value >= by and value % by == 0), None)
            return f'"{value / unit[0]:g}{unit[1]}"' if unit else f'"{value * 1000:g}ms"'
        case Size():
            by, name = next(((by, name) for by, name in _SIZES if value % by == 0), (1, "B"))
            return f'"{value // by}{name}"'
        case Path():
            return f'"{value}"'
        case list():
            return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value)


if __name__ == "__main__":
    PAGE.write_text(page())
