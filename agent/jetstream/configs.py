"""Comparing and merging configurations as plain mappings, for a server adds to them and leaves out what is
empty. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def covers(have: Mapping[str, Any], want: Mapping[str, Any]) -> bool:
    """Whether `have` holds all that `want` sets. The server leaves out fields that are zero or empty, and
    adds entries of its own to mappings such as `metadata`; lists must be equal."""
    return all(_same(have.get(key), value) for key, value in want.items())


def merged(have: Mapping[str, Any], want: Mapping[str, Any]) -> dict[str, Any]:
    """`have` with all that `want` sets; mappings within are merged, lists replaced."""
    result = dict(have)
    for key, value in want.items():
        old = have.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def _same(have: Any, want: Any) -> bool:
    if isinstance(want, Mapping) and isinstance(have, Mapping):
        return covers(have, want)
    return bool(have == want) or (not have and not want)
