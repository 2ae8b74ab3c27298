"""Checks one machine for `petiole check`, each with a sentence and a remedy.

Pure modules judge observations from `handshake`, `local_probe`, `leafnode_probe` and `machine`, each within a
bounded time and without changes (docs/check.md). Results are data, text of 80 columns, or JSON.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from typing import Any, Final

from agent.base.logs import shown
from agent.contract import Exit


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


class Cause(Enum):
    """A failure that explains others."""

    AGENT = auto()
    """No agent answers."""
    SERVER = auto()
    """The local server can't be asked."""
    HUB = auto()
    """The hub is unreachable or refuses this leaf."""
    REGISTRAR = auto()
    PERMISSIONS = auto()
    DISK = auto()
    CERTIFICATE = auto()
    """The hub's certificate is not valid now."""
    CLOCK = auto()
    """The clock is not set."""
    USER = auto()
    """This command may not read the agent's files."""


@dataclass(frozen=True, slots=True)
class Finding:
    group: str
    level: Level
    sentence: str
    remedy: str = ""
    """Empty if all is well."""
    exit: Exit = Exit.WELL
    """The failure's exit code."""
    cause: Cause | None = None
    """What this failure causes."""
    follows: frozenset[Cause] = frozenset()
    """Causes that explain it, so that it is omitted."""

    def after(self, *causes: Cause) -> Finding:
        """Return it with explaining causes."""
        return replace(self, follows=self.follows | set(causes))

    def causing(self, cause: Cause) -> Finding:
        """Return it as a cause of others."""
        return replace(self, cause=cause)


class Group(str):
    """Makes the findings of one group."""

    __slots__ = ()

    def ok(self, sentence: str) -> Finding:
        """Return a success."""
        return Finding(self, Level.OK, sentence)

    def warning(self, sentence: str, remedy: str) -> Finding:
        """Return a possible or unchecked failure."""
        return Finding(self, Level.WARNING, sentence, remedy)

    def failure(self, sentence: str, remedy: str, exit: Exit = Exit.FAILED) -> Finding:  # noqa: A002
        """Return a present or imminent failure."""
        return Finding(self, Level.FAILURE, sentence, remedy, exit)


def without_consequences(findings: Iterable[Finding]) -> list[Finding]:
    """Remove findings explained by another failure."""
    findings = list(findings)
    causes = {finding.cause for finding in findings if finding.level is Level.FAILURE}
    return [
        finding for finding in findings if finding.level is Level.OK or causes.isdisjoint(finding.follows)
    ]


_GRAVITY: Final = (Exit.USAGE, Exit.LOSS, Exit.CONFLICT, Exit.UNREACHABLE, Exit.FAILED)
"""Exit codes by priority."""


def outcome(findings: Iterable[Finding]) -> Exit:
    """Return the exit code of the worst finding."""
    codes = {finding.exit for finding in findings if finding.level is Level.FAILURE}
    return next((code for code in _GRAVITY if code in codes), Exit.WELL)


def findings_as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings and the exit code."""
    shown = ("group", "level", "sentence", "remedy")
    rows = [{key: getattr(finding, key) for key in shown} for finding in findings]
    return {"exit": int(outcome(findings)), "findings": rows}


WIDTH: Final = 80
_GROUP_WIDTH: Final = 14
_LEVEL_WIDTH: Final = 8
_ORDER: Final = tuple(Level)

Paint = Callable[[Level, str], str]
"""Colours a level's word."""


def lines(findings: Sequence[Finding], paint: Paint = lambda _, text: text) -> Iterator[str]:
    """Yield successes first and failures last, near the summary."""
    for finding in sorted(findings, key=lambda finding: _ORDER.index(finding.level)):
        yield from _finding_lines(finding, paint)
    yield _sum(findings)


def _finding_lines(finding: Finding, paint: Paint) -> Iterator[str]:
    level = paint(finding.level, f"{finding.level:<{_LEVEL_WIDTH}}")
    indent = " " * (_GROUP_WIDTH + _LEVEL_WIDTH)
    first, *more = _wrapped(finding.sentence) or [""]
    yield f"{finding.group:<{_GROUP_WIDTH}}{level}{first}"
    yield from (indent + line for line in more)
    if finding.remedy:
        head, *rest = _wrapped(finding.remedy, 2)
        yield f"{indent}> {head}"
        yield from (f"{indent}  {line}" for line in rest)


def _wrapped(text: str, less: int = 0) -> list[str]:
    """Wrap text, escape control characters, and keep subjects whole for copying."""
    width = WIDTH - _GROUP_WIDTH - _LEVEL_WIDTH - less
    return textwrap.wrap(shown(text), width, break_long_words=False, break_on_hyphens=False)


def _sum(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.level for finding in findings)
    words = [_counted(counts[level], level) for level in reversed(_ORDER) if counts[level]]
    return ", ".join(words) or "nothing was looked at"


def _counted(count: int, level: Level) -> str:
    return f"{count} {level}" + ("s" if count != 1 and level is not Level.OK else "")
