"""A configuration of nats-server as text: tables, lists and quoted values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

INCLUDE: Final = "include"
"""The key of a table that stands for another file, which nats-server looks for beside the one that names
it."""

VARIABLE: Final = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*\Z")


class RenderError(ValueError):
    """A value cannot stand in a configuration; the text says which one and why."""


class Variable(str):
    """A value that nats-server takes from its environment, such as `$STORE_KEY`; it stands without quotes."""

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
            items = "".join(inner + _value(one, inner) + "\n" for one in value)
            return f"[\n{items}{indent}]"
        case _:
            return quoted(str(value))


def merged(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """A rendered table with what is added to it, in which `agent.config.server_overlay` finds no problem."""
    found = dict(body)
    for key, value in extra.items():
        there = found.get(key)
        if isinstance(value, Mapping):
            found[key] = merged(there if isinstance(there, Mapping) else {}, value)
        else:
            found[key] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [merged({}, one) if isinstance(one, Mapping) else _plain(one) for one in value]
    return Variable(value) if isinstance(value, str) and VARIABLE.match(value) else value
