"""`petiole check`: looks at one machine's configuration, server, link and clock. Each check gives a sentence,
and a remedy unless all is well.

One module judges each group of checks; it is pure and makes findings of what was seen. `handshake`,
`local_probe`, `leafnode_probe` and `machine` do the looking, each within a bounded time. Nothing is changed:
no file is made, no message stored or delivered, no stream or consumer touched (docs/check.md says how).
This file has what was found: as data, as text of 80 columns, and as JSON.
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
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


class Cause(Enum):
    """A failure that explains others."""

    AGENT = auto()
    """No agent answers."""
    SERVER = auto()
    """The machine's own server cannot be asked."""
    HUB = auto()
    """The hub cannot be reached, or does not let this leaf in."""
    REGISTRAR = auto()
    PERMISSIONS = auto()
    DISK = auto()
    CERTIFICATE = auto()
    """The certificate that the hub shows is not valid now."""
    CLOCK = auto()
    """The clock is not set."""
    USER = auto()
    """This command may not read what the agent may."""


@dataclass(frozen=True, slots=True)
class Finding:
    group: str
    level: Level
    sentence: str
    remedy: str = ""
    """What to do; empty only where all is well."""
    exit: Exit = Exit.WELL
    """The exit code that a failure calls for."""
    cause: Cause | None = None
    """What this failure causes elsewhere."""
    follows: frozenset[Cause] = frozenset()
    """The causes that explain it: beside one of them it is left out."""

    def after(self, *causes: Cause) -> Finding:
        """The same, left out beside a failure that is one of these causes."""
        return replace(self, follows=self.follows | set(causes))

    def causing(self, cause: Cause) -> Finding:
        """The same, which explains others."""
        return replace(self, cause=cause)


class Group(str):
    """A group of checks, which makes their findings."""

    __slots__ = ()

    def ok(self, sentence: str) -> Finding:
        """It is well."""
        return Finding(self, Level.OK, sentence)

    def warning(self, sentence: str, remedy: str) -> Finding:
        """It may become a failure, or could not be checked."""
        return Finding(self, Level.WARNING, sentence, remedy)

    def failure(self, sentence: str, remedy: str, exit: Exit = Exit.FAILED) -> Finding:  # noqa: A002
        """It does not work, or not for long."""
        return Finding(self, Level.FAILURE, sentence, remedy, exit)


def without_consequences(findings: Iterable[Finding]) -> list[Finding]:
    """The findings without those that another failure explains: one cause, one finding."""
    findings = list(findings)
    causes = {finding.cause for finding in findings if finding.level is Level.FAILURE}
    return [
        finding for finding in findings if finding.level is Level.OK or causes.isdisjoint(finding.follows)
    ]


_GRAVITY: Final = (Exit.USAGE, Exit.LOSS, Exit.CONFLICT, Exit.UNREACHABLE, Exit.FAILED)
"""Of several exit codes the first one here wins: it has to be put right first."""


def outcome(findings: Iterable[Finding]) -> Exit:
    """The exit code of the worst finding; warnings alone are well."""
    codes = {finding.exit for finding in findings if finding.level is Level.FAILURE}
    return next((code for code in _GRAVITY if code in codes), Exit.WELL)


def findings_as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings in the order of the checks, and the exit code."""
    shown = ("group", "level", "sentence", "remedy")
    rows = [{key: getattr(finding, key) for key in shown} for finding in findings]
    return {"exit": int(outcome(findings)), "findings": rows}


WIDTH: Final = 80
_GROUP_WIDTH: Final = 14
_LEVEL_WIDTH: Final = 8
_ORDER: Final = tuple(Level)

Paint = Callable[[Level, str], str]
"""Colours the word of a level."""


def lines(findings: Sequence[Finding], paint: Paint = lambda _, text: text) -> Iterator[str]:
    """What is well first and failures last, next to the sum, where a terminal shows them."""
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
    """The lines of a text. Characters that would move the cursor are escaped, since a text may come from a
    server. A subject is not broken, so that it can be copied."""
    width = WIDTH - _GROUP_WIDTH - _LEVEL_WIDTH - less
    return textwrap.wrap(shown(text), width, break_long_words=False, break_on_hyphens=False)


def _sum(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.level for finding in findings)
    words = [_counted(counts[level], level) for level in reversed(_ORDER) if counts[level]]
    return ", ".join(words) or "nothing was looked at"


def _counted(count: int, level: Level) -> str:
    return f"{count} {level}" + ("s" if count != 1 and level is not Level.OK else "")
