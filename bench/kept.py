"""The results that docs/benchmarks.md is made from: bench/results/NAME.json, one a benchmark, in the form
that `Result.write` gives them, kept in the repository. Reading only; what a row means is `bench.result`'s."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = Path(__file__).parent / "results"
_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a result."""

    benchmark: str
    what: str
    value: float
    unit: str
    goal: float | None
    met: bool | None
    beside: str
    other: float | None
    ratio: float | None

    def beside_text(self) -> str:
        """The alternative with its figure, empty without one."""
        return "" if self.other is None else f"{self.beside}: {figure(self.other)}"


@dataclass(frozen=True, slots=True)
class Kept:
    """One result."""

    benchmark: str
    machine: dict[str, Any]
    versions: dict[str, str]
    measured: dict[str, Any]
    options: dict[str, str]
    lines: tuple[Line, ...]


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
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no result of a benchmark: {error!r}; run it again") from error


def read_all(directory: Path = DIRECTORY) -> dict[str, Kept]:
    """The kept results by benchmark."""
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
        row["met"],
        "" if against is None else against["what"],
        None if against is None else against["value"],
        row["ratio"],
    )
