"""Defines the closed list of leaf states with their meaning.

A leaf announces states that its hub can't see (`LeafState.announced`); the hub adds its own and shows the
gravest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Any, Final, Self

from agent.contract.checks import ContractError, Exit

__all__ = ["LeafState", "Severity", "exit_of", "gravest", "parse_states", "state_of"]


class Severity(Enum):
    """What a state requires of people."""

    BAD = "bad"
    """Action."""
    WAITS = "waits"
    """Knowledge."""
    GOOD = "good"


class LeafState(StrEnum):
    """The states, gravest first; values are the words in tables, metrics and records."""

    meaning: str
    """The sentence with `{}` for the subject."""
    severity: Severity
    exit: Exit
    """Exit code of commands."""
    announced: bool
    """Whether the leaf announces it."""

    def __new__(
        cls, word: str, meaning: str, severity: Severity, exit_: Exit, announced: bool = False
    ) -> Self:
        state = str.__new__(cls, word)
        state._value_ = word
        state.meaning, state.severity, state.exit, state.announced = meaning, severity, exit_, announced
        return state

    LOSING = "losing", "readings were lost within the last hour: {}", Severity.BAD, Exit.LOSS, True
    TROUBLE = "trouble", "{}", Severity.BAD, Exit.LOSS
    REFUSED = "refused", "{}", Severity.BAD, Exit.LOSS
    SILENT = (
        "silent",
        "its server is linked, and its agent was last heard {} ago; see its log",
        Severity.BAD,
        Exit.LOSS,
    )
    STOPPED = "stopped", "linked, but {}", Severity.BAD, Exit.LOSS
    HELD = "held", "readings are held back: {}", Severity.BAD, Exit.LOSS, True
    INPUT_DOWN = (
        "input_down",
        "{}: down; `petiole check` and the agent's log there say why",
        Severity.WAITS,
        Exit.FAILED,
        True,
    )
    NOT_ARRIVING = (
        "not_arriving",
        "bytes cross and no message arrives: {}",
        Severity.WAITS,
        Exit.FAILED,
        True,
    )
    CLOCK_WRONG = (
        "clock_wrong",
        "the leaf's clock is {} the hub's: set the wrong one right",
        Severity.WAITS,
        Exit.FAILED,
        True,
    )
    AWAY = "away", "{}", Severity.WAITS, Exit.WELL
    CAPPED = "capped", "{}", Severity.WAITS, Exit.WELL
    PAUSED = "paused", "a command paused the link of {}", Severity.WAITS, Exit.WELL, True
    NEVER = "never", "never seen", Severity.WAITS, Exit.WELL
    FLOWING = "flowing", "flowing", Severity.GOOD, Exit.WELL

    def sentence(self, about: str = "") -> str:
        """Return the state in words."""
        return self.meaning.format(about) if "{}" in self.meaning else self.meaning


_GRAVITY: Final = {state: place for place, state in enumerate(LeafState)}
_BY_WORD: Final = {state.value: state for state in LeafState}
_LONGEST: Final = 500
"""Longest subject of a state."""


def state_of(word: str) -> LeafState:
    """Return a word's state; unknown ones need a person."""
    return _BY_WORD.get(word, LeafState.TROUBLE)


def gravest(states: Iterable[LeafState]) -> LeafState:
    """Return the gravest state; `flows` for none."""
    return min(states, key=_GRAVITY.__getitem__, default=LeafState.FLOWING)


def exit_of(states: Iterable[LeafState]) -> Exit:
    """Return the gravest state's exit code."""
    return gravest(states).exit


def parse_states(value: Any) -> Mapping[str, str]:
    """Parse announced states, gravest first; unknown words are ignored. Raises `ContractError`."""
    if not isinstance(value, dict) or not all(isinstance(about, str) for about in value.values()):
        raise ContractError(f"announce: states are {value!r:.80}, texts by state were expected")
    return {
        state.value: "".join(char if char.isprintable() else "?" for char in value[state][:_LONGEST])
        for state in LeafState
        if state.announced and state in value
    }
