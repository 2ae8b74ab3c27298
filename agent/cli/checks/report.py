"""Findings as text of 80 columns, and as JSON. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from agent.cli.checks.finding import Finding, Level, outcome

WIDTH: Final = 80
_GROUP: Final = 14
_LEVEL: Final = 8
_ORDER: Final = tuple(Level)

Paint = Callable[[Level, str], str]


def lines(findings: Sequence[Finding], paint: Paint = lambda _, text: text) -> Iterator[str]:
    """What is well first and failures last, next to the sum, where a terminal shows them. `paint` colours the
    word of a level."""
    for one in sorted(findings, key=lambda one: _ORDER.index(one.level)):
        yield from _lines_of(one, paint)
    yield _sum(findings)


def _lines_of(one: Finding, paint: Paint) -> Iterator[str]:
    indent = " " * (_GROUP + _LEVEL)
    first, *more = _wrapped(one.sentence) or [""]
    yield f"{one.group:<{_GROUP}}{paint(one.level, f'{one.level:<{_LEVEL}}')}{first}"
    yield from (indent + line for line in more)
    if one.remedy:
        head, *rest = _wrapped(one.remedy, 2)
        yield f"{indent}> {head}"
        yield from (f"{indent}  {line}" for line in rest)


def _wrapped(text: str, less: int = 0) -> list[str]:
    """Lines of a text from elsewhere, too: what would move the cursor is shown and not sent. A subject that
    is to be copied is not broken."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    width = WIDTH - _GROUP - _LEVEL - less
    return textwrap.wrap(shown, width, break_long_words=False, break_on_hyphens=False)


def _sum(findings: Sequence[Finding]) -> str:
    counts = Counter(one.level for one in findings)
    words = [_counted(counts[level], level) for level in reversed(_ORDER) if counts[level]]
    return ", ".join(words) or "nothing was looked at"


def _counted(count: int, level: Level) -> str:
    return f"{count} {level}" + ("s" if count != 1 and level is not Level.OK else "")


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings in the order in which they were looked at, and the exit code."""
    rows = [{key: value for key, value in asdict(one).items() if key != "exit"} for one in findings]
    return {"exit": int(outcome(findings)), "findings": rows}
