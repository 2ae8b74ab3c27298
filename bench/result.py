"""The result of a benchmark: rows of figures with their alternatives and goals, as JSON under build/bench/.

Every goal is a ratio to an alternative or a yardstick of the same run, since a figure alone depends on the
machine and on what else it does. So sides are measured in turns (`interleaved`): that meets all alike.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.measured import Measured, machine, versions

BUILT = Path("build/bench")
"""Where results are written."""

Figure = float | Sequence[float]
"""One value, or one of each round in their order."""


@dataclass(frozen=True, slots=True)
class Against:
    """The alternative or yardstick measured in the same run."""

    what: str
    value: Figure


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. Raises `ValueError` for a goal without an alternative."""

    what: str
    value: Figure
    unit: str
    goal: float | None = None
    """How many times the alternative the figure has to be: at least, or at most where `least`."""
    against: Against | None = None
    least: bool = False
    """Less is better."""
    must: float | None = None
    """A count that is the same on every machine, as 0 readings lost."""

    def __post_init__(self) -> None:
        if self.goal is not None and self.against is None:
            raise ValueError(f"{self.what}: a goal is a ratio; give the alternative, or use `must`")

    @property
    def median(self) -> float:
        """Over all rounds."""
        return _median(self.value)

    def times(self) -> list[float]:
        """The figure by its alternative, round by round where both were measured in the same rounds; empty
        without an alternative or where it is 0."""
        if self.against is None:
            return []
        ours, theirs = _rounds(self.value), _rounds(self.against.value)
        if len(ours) != len(theirs):
            ours, theirs = [median(ours)], [median(theirs)]
        return [one / other for one, other in zip(ours, theirs, strict=True)] if all(theirs) else []

    def as_json(self) -> dict[str, Any]:
        """The row as it stands in the file. `ratio` is above one where the figure is better than its
        alternative, whichever way is better; `times` is not turned round."""
        times = self.times()
        middle = median(times) if times else None
        ratio = middle if middle is None or not self.least else (1 / middle if middle else None)
        found = {
            "what": self.what,
            **_as_json(self.value),
            "unit": self.unit,
            "least": self.least,
            "goal": self.goal,
            "must": self.must,
            "met": self._met(middle),
            "against": None
            if self.against is None
            else {"what": self.against.what, **_as_json(self.against.value)},
            "times": None if middle is None else _rounded(middle),
            "ratio": None if ratio is None else _rounded(ratio),
        }
        if len(times) > 1:
            found["times_rounds"] = [_rounded(one) for one in times]
        return found

    def _met(self, times: float | None) -> bool | None:
        if self.must is not None:
            return self.median == self.must
        if self.goal is None or times is None:
            return None
        return times <= self.goal if self.least else times >= self.goal


@dataclass(frozen=True, slots=True)
class Failed:
    what: str
    why: str


@dataclass(slots=True)
class Result:
    """All rows of one benchmark, and how much of it was asked for, as rounds or sizes."""

    benchmark: str
    rows: list[Row] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    failed: list[Failed] = field(default_factory=list)

    @contextmanager
    def part(self, what: str) -> Iterator[None]:
        """Rows that may fail: the error is shown and noted, and the benchmark goes on."""
        try:
            yield
        except Exception as error:  # whatever ends one part, the others are still to be measured
            traceback.print_exc()
            self.failed.append(Failed(what, reason(error)))

    def write(self, directory: Path, measured: Measured) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.benchmark}.json"
        content: dict[str, Any] = {
            "benchmark": self.benchmark,
            "machine": machine(),
            "versions": versions(),
            "measured": measured.as_json(),
            "options": self.options,
            "rows": [row.as_json() for row in self.rows],
            "failed": [{"what": part.what, "why": part.why} for part in self.failed],
        }
        path.write_text(json.dumps(content, indent=2) + "\n")
        return path


class UnfinishedError(Exception):
    """A benchmark ended before its last row; `result` has those that it had measured."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"{result.benchmark} ended after {len(result.rows)} rows: {result.failed[-1].why}")
        self.result = result


@contextmanager
def measuring(benchmark: str, options: dict[str, str] | None = None) -> Iterator[Result]:
    """A result whose rows are added as they are measured, so that none is lost with a later one. Raises
    `UnfinishedError` for whatever ends it early."""
    result = Result(benchmark, options=options or {})
    try:
        yield result
    except Exception as error:
        result.failed.append(Failed("all that was still to come", reason(error)))
        raise UnfinishedError(result) from error


def reason(error: Exception) -> str:
    """An error in one line; of several at once the first."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _rounds(value: Figure) -> list[float]:
    return list(value) if isinstance(value, Sequence) else [value]


def _median(value: Figure) -> float:
    return median(_rounds(value))


def _as_json(value: Figure) -> dict[str, Any]:
    """The median, and each round where there is more than one."""
    rounds = _rounds(value)
    found: dict[str, Any] = {"value": _rounded(median(rounds))}
    return found if len(rounds) == 1 else found | {"rounds": [_rounded(one) for one in rounds]}


def _rounded(value: float) -> float:
    return round(value, 3) if abs(value) < 1000 else round(value)


ROUNDS = 5


def rounds(usual: int = ROUNDS) -> int:
    """How many rounds to play: `ROUNDS` of the environment, else as many as usual."""
    return int(os.environ.get("ROUNDS", usual))


def interleaved(
    result: Result, sides: Mapping[str, Callable[[], float]], count: int | None = None
) -> dict[str, list[float]]:
    """The values of each side in the order of the rounds. A side that fails is noted in the result and left
    out, of what it returns too."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds() if count is None else count):
        for name in [*values]:
            with result.part(name):
                values[name].append(sides[name]())
                continue
            del values[name]
    return values
