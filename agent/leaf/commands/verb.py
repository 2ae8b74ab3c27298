"""What a verb is, and reading its arguments: each refusal says which argument, what stood there and what to
give instead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class ArgumentError(ValueError):
    """An argument is not one of the verb; nothing was done."""


class CommandError(Exception):
    """The verb could not be carried out; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a verb did. `then` is called once the answer is stored."""

    text: str
    then: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class CommandHandler:
    """`act` carries it out; raises `ArgumentError` or `CommandError`. One that is `harmless` changes nothing,
    so it is run whatever the clock says and although nothing can be written."""

    act: Callable[[Mapping[str, Any]], Awaitable[Reply]]
    harmless: bool = False


def no_arguments(args: Mapping[str, Any]) -> None:
    """Refuse all arguments."""
    if args:
        raise ArgumentError(f"{_names(args)}: this verb takes no arguments; leave them out")


def only(args: Mapping[str, Any], known: str) -> None:
    """Refuse all arguments but one."""
    if unknown := args.keys() - {known}:
        raise ArgumentError(f"{_names(unknown)}: this verb takes only {known!r}; leave the rest out")


def _names(args: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(args)))[:200]
