"""The syntax of nats-server's configuration: tables, lists and quoted values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

INCLUDE: Final = "include"
"""The key of a table that includes another file, relative to the one that names it."""

VARIABLE: Final = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*\Z")


class RenderError(ValueError):
    """A value cannot stand in a configuration; the text says which one and why."""


class Variable(str):
    """A value that nats-server reads from its environment, such as `$STORE_KEY`; it is not quoted."""

    __slots__ = ()


def quoted(text: str) -> str:
    """The text in quotes. Raises `RenderError`."""
    if not text.isprintable():
        raise RenderError(f"{text!r} holds a character that cannot stand in a configuration")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def block(body: Mapping[str, Any], indent: str = "") -> str:
    """The lines of a table, `INCLUDE` in the form that it needs. Raises `RenderError`."""
    return "".join(
        f"{indent}{INCLUDE} {_value(value, indent)}\n"
        if key == INCLUDE
        else f"{indent}{key}: {_value(value, indent)}\n"
        for key, value in body.items()
    )


def _value(value: Any, indent: str) -> str:
    inner = indent + "  "
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case Variable():
            return str(value)
        case Mapping():
            return f"{{\n{block(value, inner)}{indent}}}"
        case list():
            items = "".join(inner + _value(item, inner) + "\n" for item in value)
            return f"[\n{items}{indent}]"
        case _:
            return quoted(str(value))


def merged(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """A rendered table with a checked overlay (`agent.config.server_overlay`)."""
    table = dict(body)
    for key, value in extra.items():
        rendered = table.get(key)
        if isinstance(value, Mapping):
            table[key] = merged(rendered if isinstance(rendered, Mapping) else {}, value)
        else:
            table[key] = _plain(value)
    return table


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [merged({}, item) if isinstance(item, Mapping) else _plain(item) for item in value]
    return Variable(value) if isinstance(value, str) and VARIABLE.match(value) else value
