"""The problems of inputs, and of other parts that listen, before they run: mistakes in their options, which
only a person can correct, apart from what this machine lacks now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from agent.leaf.intake import CheckedInput


class HasObstacles(Protocol):
    """A part that can say what keeps it from running."""

    def obstacles(self) -> list[str]:
        """A sentence each."""


def mistakes(inputs: Iterable[CheckedInput]) -> list[str]:
    """The mistakes in the options of inputs, a sentence each."""
    return [text for input_ in inputs for text in _ask(input_, input_.check)]


def obstacles(parts: Iterable[HasObstacles]) -> list[str]:
    """What keeps parts from running on this machine now, a sentence each."""
    return [text for part in parts for text in _ask(part, part.obstacles)]


def problems(inputs: Sequence[CheckedInput]) -> list[str]:
    """Both."""
    return [*mistakes(inputs), *obstacles(inputs)]


def _ask(part: object, look: Callable[[], list[str]]) -> list[str]:
    try:
        return look()
    except Exception as error:  # a problem that its author did not think of is one all the same
        name = getattr(part, "name", type(part).__name__)
        return [f"{name}: cannot be checked ({type(error).__name__}: {error}); look at its options"]
