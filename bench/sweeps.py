"""A sweep: the same jobs at several steps of one measure, such as gigabytes of backlog. A row is named
*step: job, measure*, a line a step on the page of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import median

from bench.job_process import JobRun
from bench.result import Against, Figure, Row


class Measure(Enum):
    """What is measured of a job, and its unit."""

    TIME = "time", "s"
    MEMORY = "most memory", "MB"
    RATE = "rate", "readings/s"

    def __init__(self, title: str, unit: str) -> None:
        self.title, self.unit = title, unit


@dataclass(frozen=True, slots=True)
class Step:
    """So much of what is swept."""

    value: float
    unit: str

    @property
    def name(self) -> str:
        unit = self.unit.removesuffix("s") if self.value == 1 else self.unit
        return f"{self.value:,g} {unit}"


Runs = dict[str, list[JobRun]]
"""Those of each job at a step."""


@dataclass(frozen=True, slots=True)
class Goals:
    """At most so many times the step that a row is beside."""

    time: float | None = None
    memory: float | None = None


def rows(steps: dict[Step, Runs], goals: Goals, *, each: bool = False) -> Iterator[Row]:
    """Time and memory of each job at each step beside those at the first step, or with `each` at the step
    before."""
    pairs = pairwise(steps) if each else ((next(iter(steps)), step) for step in [*steps][1:])
    beside = {step: other for other, step in pairs}
    measures = (
        (Measure.TIME, goals.time, lambda run: run.seconds),
        (Measure.MEMORY, goals.memory, lambda run: run.megabytes),
    )
    for step, runs in steps.items():
        for job, of_job in runs.items():
            for measure, goal, value in measures:
                other = beside.get(step)
                against = other and steps[other].get(job)
                yield row(
                    (step, job, measure),
                    [*map(value, of_job)],
                    Against(f"at {other.name}", [*map(value, against)]) if other and against else None,
                    goal,
                )


def row(
    named: tuple[Step, str, Measure], value: Figure, against: Against | None, goal: float | None = None
) -> Row:
    """One row of a sweep; its goal counts where it stands beside another step."""
    step, job, measure = named
    what = f"{step.name}: {job}, {measure.title}"
    least = measure is not Measure.RATE
    return Row(what, value, measure.unit, goal if against else None, against, least)


def further(sizes: dict[Step, int], steps: dict[Step, Runs], goal: float) -> Iterator[Row]:
    """What a reading more costs of each job between one step and the next. All pay for the start of their
    processes, so that this tells whether time grows in proportion."""
    before: dict[str, Against] = {}
    for first, last in pairwise(steps):
        span = f"from {first.value:,g} to {last.name}"
        for job in sorted(steps[first].keys() & steps[last].keys()):
            seconds = _seconds(steps[last][job]) - _seconds(steps[first][job])
            cost = seconds * 1e6 / (sizes[last] - sizes[first])
            # On a busy machine few readings may take longer than more of them, and nothing is known then.
            if cost > 0:
                against = before.get(job)
                what = f"{span}: {job}, a further reading"
                yield Row(what, cost, "µs", goal if against else None, against, least=True)
                before[job] = Against(span, cost)


def _seconds(runs: Iterable[JobRun]) -> float:
    return median(run.seconds for run in runs)
