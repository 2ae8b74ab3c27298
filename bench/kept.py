"""The results that the pages of benchmarks are made from: bench/results/NAME.json, one a benchmark, in
the form that `Result.write` gives them, kept in the repository. Reading only; what a row means is
`bench.result`'s."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.result import Failed

DIRECTORY: Final = Path(__file__).parent / "results"
QUIET_LOAD: Final = 1.5
"""Processes of others that may run or wait, so that a machine still counts as quiet."""
QUIET_STOLEN: Final = 0.05
_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Line:
    benchmark: str
    what: str
    value: float
    unit: str
    goal: float | None
    must: float | None
    met: bool | None
    least: bool
    beside: str
    other: float | None
    times: float | None
    """The value by the other's, as the goal is meant."""
    ratio: float | None
    """The same turned so that above one is better."""
    spread: tuple[float, float] | None
    """The least and the greatest value of all rounds, where there was more than one."""
    times_spread: tuple[float, float] | None

    def goal_text(self) -> str:
        """The goal in words, empty without one."""
        if self.must is not None:
            return figure(self.must)
        if self.goal is None:
            return ""
        return f"{'at most' if self.least else 'at least'} {figure(self.goal)} times"

    def value_text(self) -> str:
        return figure(self.value) + _span(self.spread)

    def times_text(self) -> str:
        """How many times the alternative, with its spread."""
        return "" if self.times is None else figure(self.times) + _span(self.times_spread)

    def beside_text(self) -> str:
        """The alternative with its figure, empty without one."""
        return "" if self.other is None else f"{self.beside}: {figure(self.other)}"


@dataclass(frozen=True, slots=True)
class Kept:
    benchmark: str
    machine: dict[str, Any]
    versions: dict[str, str]
    measured: dict[str, Any]
    options: dict[str, str]
    lines: tuple[Line, ...]
    failed: tuple[Failed, ...]

    @property
    def quiet(self) -> bool:
        """Little else ran, before and after, and the host took little."""
        loads = self.measured["load_before"], self.measured["load_after"]
        return max(loads) <= QUIET_LOAD and float(self.measured["stolen"]) <= QUIET_STOLEN


def read(path: Path) -> Kept:
    """One kept result. Raises `ValueError` where the file is none."""
    try:
        found = json.loads(path.read_text())
        return Kept(
            found["benchmark"],
            found["machine"],
            found["versions"],
            found["measured"],
            found["options"],
            tuple(_line(found["benchmark"], row) for row in found["rows"]),
            tuple(Failed(part["what"], part["why"]) for part in found.get("failed", [])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no result of a benchmark: {error!r}; run it again") from error


def read_all(directory: Path = DIRECTORY) -> dict[str, Kept]:
    return {path.stem: read(path) for path in sorted(directory.glob("*.json"))}


def figure(value: float) -> str:
    """A number as people read it: four digits that count, thousands apart."""
    if value == 0:
        return "0"
    places = _DIGITS - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    return f"{rounded:,.0f}" if places <= 0 else f"{rounded:,.{places}f}".rstrip("0").rstrip(".")


def _line(benchmark: str, row: dict[str, Any]) -> Line:
    against = row["against"]
    return Line(
        benchmark,
        row["what"],
        row["value"],
        row["unit"],
        row["goal"],
        row["must"],
        row["met"],
        row["least"],
        "" if against is None else against["what"],
        None if against is None else against["value"],
        row["times"],
        row["ratio"],
        _extremes(row.get("rounds")),
        _extremes(row.get("times_rounds")),
    )


def _extremes(rounds: Sequence[float] | None) -> tuple[float, float] | None:
    return None if rounds is None else (min(rounds), max(rounds))


def _span(spread: tuple[float, float] | None) -> str:
    return "" if spread is None else f" ({figure(spread[0])}–{figure(spread[1])})"
