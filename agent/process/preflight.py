"""What is wrong with inputs, and with other parts that listen, before they run: what their options say, which
only a person can change, apart from what this machine lacks now."""

from __future__ import annotations

from collections.abc import Iterable


def mistakes(parts: Iterable[object]) -> list[str]:
    """What of their options can't be used, one sentence a problem."""
    return _said(parts, "check")


def obstacles(parts: Iterable[object]) -> list[str]:
    """What stands in their way on this machine now, one sentence a problem."""
    return _said(parts, "obstacles")


def problems(parts: Iterable[object]) -> list[str]:
    """Both."""
    there = list(parts)
    return [*mistakes(there), *obstacles(there)]


def _said(parts: Iterable[object], method: str) -> list[str]:
    found: list[str] = []
    for part in parts:
        ask = getattr(part, method, None)
        if ask is None:
            continue
        try:
            found += ask()
        except Exception as error:  # a problem that its author did not think of is one all the same
            name = getattr(part, "name", type(part).__name__)
            found.append(f"{name}: cannot be checked ({type(error).__name__}: {error}); look at its options")
    return found
