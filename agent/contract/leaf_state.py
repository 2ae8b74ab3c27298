"""How a leaf is, as a closed list: what follows from a state, and what it is called, stands here only.

A leaf announces those states of itself that its hub cannot see (`LeafState.announced`), each with what it is
about; the hub adds those that it sees, and shows the gravest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Any, Final, Self

from agent.contract.checks import ContractError, Exit

__all__ = ["LeafState", "Severity", "exit_of", "gravest", "parse_states", "state_of"]


class Severity(Enum):
    """What a state asks of a person."""

    BAD = "bad"
    """To act."""
    WAITS = "waits"
    """To know of it."""
    GOOD = "good"


class LeafState(StrEnum):
    """The states, the gravest first; the value is the word in tables, metrics and records."""

    meaning: str
    """The sentence; `{}` stands for what differs from case to case."""
    severity: Severity
    exit: Exit
    """That of a command which looks at the leaf."""
    announced: bool
    """Whether the leaf says so itself."""

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
        """The state in words."""
        return self.meaning.format(about) if "{}" in self.meaning else self.meaning


_GRAVITY: Final = {state: place for place, state in enumerate(LeafState)}
_BY_WORD: Final = {state.value: state for state in LeafState}
_LONGEST: Final = 500
"""Characters of what a state is about."""


def state_of(word: str) -> LeafState:
    """The state of a word; one that is not known asks for a person."""
    return _BY_WORD.get(word, LeafState.TROUBLE)


def gravest(states: Iterable[LeafState]) -> LeafState:
    """The gravest of some states; a leaf of which nothing else is known flows."""
    return min(states, key=_GRAVITY.__getitem__, default=LeafState.FLOWING)


def exit_of(states: Iterable[LeafState]) -> Exit:
    """The exit code of a command that looks at leaves in these states: that of the gravest."""
    return gravest(states).exit


def parse_states(value: Any) -> Mapping[str, str]:
    """What a leaf announces of itself, by the words of its states, the gravest first. A word that is not
    known, or not a leaf's to say, is left out: a newer leaf may know more. Raises `ContractError`."""
    if not isinstance(value, dict) or not all(isinstance(about, str) for about in value.values()):
        raise ContractError(f"announce: states are {value!r:.80}, texts by state were expected")
    return {
        state.value: "".join(char if char.isprintable() else "?" for char in value[state][:_LONGEST])
        for state in LeafState
        if state.announced and state in value
    }
