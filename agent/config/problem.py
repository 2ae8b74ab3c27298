"""Problems of a configuration, the error that holds them, and the checks that several tables share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agent import contract
from agent.base.supervisor import ConditionError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in the configuration."""

    key: str
    """Where it stands, such as `leaf[2].domain`."""
    stood: str
    """What stands there and why it is wrong."""
    remedy: str

    def __str__(self) -> str:
        return f"{self.key}: {self.stood}; {self.remedy}"


class ConfigError(ConditionError):
    """The configuration is wrong: `problems` are sentences, `found` the same by key as far as they come from
    a file, and `inputs` the options of the inputs that could be read."""

    def __init__(
        self, problems: list[str], found: Sequence[Problem] = (), inputs: Sequence[Any] = ()
    ) -> None:
        super().__init__("\n".join(problems))
        self.problems, self.found, self.inputs = problems, found, inputs

    @classmethod
    def of(cls, found: Sequence[Problem], inputs: Sequence[Any] = ()) -> ConfigError:
        """The error of these problems of a file."""
        return cls([str(problem) for problem in found], found, inputs)


def numbered(rows: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """The tables of a list with their numbers from 1, but for those that could not be read (None)."""
    return ((number, row) for number, row in enumerate(rows, 1) if row is not None)


def contract_problem(key: str, rule: Callable[[str], Any], value: str, remedy: str) -> Iterator[Problem]:
    """The problem of a value that breaks a rule of the contract, if it does."""
    try:
        rule(value)
    except contract.ContractError as error:
        yield Problem(key, str(error), remedy)


def duplicate(key: str, name: str, seen: set[str]) -> Iterator[Problem]:
    """The problem of a name that is among those `seen`; adds it."""
    if name in seen:
        yield Problem(key, f'"{name}" is there twice', "let each have a name of its own")
    seen.add(name)


def reserved_domain(key: str, domain: str, remedy: str) -> Problem:
    """The problem of a domain that is the hub's or a part of petiole's."""
    whose = "the hub's own" if domain == contract.HUB_DOMAIN else "the name of a part of petiole itself"
    return Problem(key, f'"{domain}" is {whose}', remedy)
