"""The page of the site on how the jobs scale, and its pictures: for each sweep what it measures, a
picture and a sentence for each measure, and its figures. Pure: every figure is one of the kept results,
and without one the page says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from bench.kept import Kept, figure
from bench.line_charts import lines_over
from bench.page import ALL, described, not_measured, table
from bench.sweeps import Measure, Points, points

PAGE: Final = "scale-all.md"
_HEAD: Final = f"""\
# How the jobs scale

What time and memory the jobs of the hub take, by the backlog, by executors, by leaves and by the age of the
tables, each swept by itself. A time is that of a whole process from its start to its end, with Java where it
has one; memory is the most that the process and all that it starts hold together. All of it shares one
machine with what it reads from ([which]({ALL}#machine-and-versions), [every row]({ALL})). Whether a
goal was missed and why: [goals missed]({ALL}#goals-missed). [Capacity](capacity.md#the-jobs) has the sums.

`make docs` makes this page; `python -m bench 'spark-scale-*'` measures all four, the name of one that one.
"""


@dataclass(frozen=True, slots=True)
class Chart:
    """One measure of a sweep."""

    measure: Measure
    title: str
    grows: tuple[str, str]
    """What a line does, before and after so many times."""
    decades: bool = False
    """Its values go by decades."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A benchmark that is drawn."""

    benchmark: str
    title: str
    along: str
    charts: tuple[Chart, ...]
    decades: bool = True
    """Its steps go by decades."""

    @property
    def name(self) -> str:
        return self.benchmark.removeprefix("spark-scale-")


_TIME: Final = Chart(Measure.TIME, "Time of a run, s", ("takes", "as long"))
_MEMORY: Final = Chart(Measure.MEMORY, "Most memory of a run, MB", ("holds", "as much"))
_RATE: Final = Chart(Measure.RATE, "Readings a second", ("takes in", "as many a second"))
SWEEPS: Final = (
    Sweep(
        "spark-scale-backlog",
        "Backlog",
        "GB of backlog",
        (replace(_TIME, decades=True), _MEMORY),
    ),
    Sweep("spark-scale-executors", "Executors", "executors of one core", (_TIME, _RATE), decades=False),
    Sweep("spark-scale-leaves", "Leaves", "leaves", (_TIME, _MEMORY)),
    Sweep("spark-scale-age", "Age of the tables", "days", (_TIME, _MEMORY)),
)


def documents(results: Mapping[str, Kept]) -> dict[str, str]:
    """The page and its pictures, each by its path below docs/."""
    made: dict[str, str] = {}
    parts = [_HEAD]
    for sweep in SWEEPS:
        kept = results.get(sweep.benchmark)
        parts.append(f"## {sweep.title}\n")
        parts.append(described(sweep.benchmark) + "\n")
        if kept is None:
            parts.append("No result is kept.\n")
            continue
        for chart in sweep.charts:
            if lines := points(kept, chart.measure):
                path = f"images/bench-scale-{sweep.name}-{chart.measure.name.lower()}.svg"
                title = f"{chart.title}, by {sweep.along}"
                decades = sweep.decades, chart.decades
                made[path] = lines_over(title, sweep.along, lines, decades=decades, quiet=kept.quiet)
                parts.append(f"![{title}]({path})\n\n{_says(sweep, chart, lines)}\n")
        parts.append(_figures(kept, sweep) + not_measured(kept))
    return made | {PAGE: "\n".join(parts)}


def _says(sweep: Sweep, chart: Chart, lines: Points) -> str:
    """What a picture says: each job by itself at the first step, at the last where steps go by decades."""
    steps = sorted(_steps(lines))
    first, later = steps[0], steps[-1:] if sweep.decades else steps[1:]
    return " ".join(_from(first, step, sweep, chart, lines) for step in later if step != first)


def _from(first: float, last: float, sweep: Sweep, chart: Chart, lines: Points) -> str:
    before, after = chart.grows
    said = [
        f"`{job}` {before} {figure(float(f'{known[last] / known[first]:.2g}'))} times {after}"
        for job, known in ((job, dict(line)) for job, line in lines.items())
        if known.get(first) and known.get(last)
    ]
    many = f"{figure(last / first)} times as many"
    return f"From {first:,g} to {last:,g} {sweep.along}, {many}: {', '.join(said) or 'no job ran at both'}."


def _figures(kept: Kept, sweep: Sweep) -> str:
    """A line a job and measure, a column a step."""
    steps = sorted({step for chart in sweep.charts for step in _steps(points(kept, chart.measure))})
    rows = list(_lines(kept, sweep, steps))
    return table((sweep.along, *(f"{step:,g}" for step in steps)), rows)


def _lines(kept: Kept, sweep: Sweep, steps: list[float]) -> Iterator[tuple[str, ...]]:
    for chart in sweep.charts:
        for job, line in points(kept, chart.measure).items():
            known = dict(line)
            cells = (figure(known[step]) if step in known else "" for step in steps)
            yield f"`{job}`, {chart.measure.unit}", *cells


def _steps(found: Points) -> set[float]:
    return {step for line in found.values() for step, _ in line}
