"""What the doctor finds, as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agent.contract import Exit


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: of which `group` it is, one `sentence`, and unless it is well one
    `remedy`. `exit` is what a failure makes the command end with."""

    group: str
    level: Level
    sentence: str
    remedy: str = ""
    exit: Exit = Exit.WELL


_GRAVITY: Final = (Exit.USAGE, Exit.LOSS, Exit.CONFLICT, Exit.UNREACHABLE, Exit.FAILED)
"""Which exit code goes first where there are several: what has to be put right first."""


def ok(group: str, sentence: str) -> Finding:
    """It is well."""
    return Finding(group, Level.OK, sentence)


def warning(group: str, sentence: str, remedy: str) -> Finding:
    """It may become a failure, or could not be looked at."""
    return Finding(group, Level.WARNING, sentence, remedy)


def failure(group: str, sentence: str, remedy: str, exit: Exit = Exit.FAILED) -> Finding:  # noqa: A002
    """It does not work, or not for long."""
    return Finding(group, Level.FAILURE, sentence, remedy, exit)


def outcome(findings: Iterable[Finding]) -> Exit:
    """The exit code of the worst finding; warnings alone are well."""
    codes = {one.exit for one in findings if one.level is Level.FAILURE}
    return next((code for code in _GRAVITY if code in codes), Exit.WELL)
