"""The configuration file, and what of it stands in the way on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from agent.cli.checks.finding import Finding, failure, ok
from agent.config.problem import Problem
from agent.contract import Exit

GROUP: Final = "configuration"


def unusable(problems: Iterable[Problem]) -> list[Finding]:
    """The findings of a file that cannot be used; nothing else can be looked at then."""
    return [failure(GROUP, f"{one.key}: {one.stood}", one.remedy, Exit.USAGE) for one in problems]


def judged(path: Path, mistakes: Iterable[str], obstacles: Iterable[str]) -> list[Finding]:
    """The findings of a file whose values can be read: what parts of the agent say of their options, and what
    they lack on this machine now."""
    wrong = _failures(mistakes, Exit.USAGE)
    return [*(wrong or [ok(GROUP, f"{path} can be used")]), *_failures(obstacles, Exit.FAILED)]


def _failures(sentences: Iterable[str], code: Exit) -> list[Finding]:
    """Findings of `what it is; what to do`."""
    found = []
    for sentence in sentences:
        what, _, remedy = sentence.partition("; ")
        found.append(failure(GROUP, what, remedy or "put that right", code))
    return found
