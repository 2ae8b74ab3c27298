"""What a fuzzed parser promises, and the parsers that promise it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

Check = Callable[[bytes], None]


class Target(NamedTuple):
    """A parser of outside bytes: `check` raises whatever breaks its promise, `seeds` lead into it."""

    check: Check
    seeds: tuple[bytes, ...]


TARGETS: dict[str, Target] = {}


def target(*seeds: bytes) -> Callable[[Check], Check]:
    """Name a check after its function and enter it."""

    def enter(check: Check) -> Check:
        TARGETS[check.__name__] = Target(check, seeds)
        return check

    return enter


@contextmanager
def only(*errors: type[Exception]) -> Iterator[None]:
    """The errors that a parser is documented to raise; their text can be told to anybody."""
    try:
        yield
    except errors as error:
        str(error).encode()
