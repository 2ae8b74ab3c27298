"""The table of benchmarks in docs/proof.md, and the missed goals with their causes. Pure: every figure is a
kept figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from bench.goals import cause
from bench.kept import Kept, Line, figure
from bench.lines import OURS, SIDES, YARDSTICK
from bench.page import ALIKE, goals_of, listed, missed_goals, table


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody wants to know, and the row that answers it; patterns as in a shell."""

    asks: str
    benchmark: str
    what: str
    beside: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A question with its row, and whether that was measured on a quiet machine."""

    question: Question
    line: Line
    quiet: bool

    @property
    def beside(self) -> str:
        """The alternative, without what its name counts in parentheses."""
        return self.line.beside.partition(" (")[0]

    def verdict(self) -> str:
        """How much better or worse, in words."""
        ratio = self.line.ratio
        if not ratio:
            return ""
        if max(ratio, 1 / ratio) < ALIKE:
            return "about the same"
        times = figure(float(f"{max(ratio, 1 / ratio):.2g}"))
        return f"{times} times better" if ratio > 1 else f"**{times} times worse**"

    def cells(self) -> tuple[str, ...]:
        """The question, both figures, which is better, and the benchmark."""
        line, name = self.line, self.question.benchmark
        said = ", ".join(word for word in (self.verdict(), "" if self.quiet else "under load") if word)
        ours = f"{line.value_text()} {line.unit}"
        return self.question.asks, ours, f"{self.beside}: {figure(line.other or 0)}", said, linked(name)


def linked(benchmark: str) -> str:
    """A benchmark with a link to its kept result."""
    return f"[{benchmark}](../bench/results/{benchmark}.json)"


QUESTIONS: Final = (
    Question(
        "How many readings a second does an edge machine store and bring to the hub?",
        "peers",
        "load, answered and at the hub, by the clock",
        "rsyslog, synced queue, 500 readings a message",
    ),
    Question(
        "How many acknowledged readings are lost when the edge is killed while the link is cut?",
        "peers",
        "edge SIGKILL while the link is cut, * acknowledged: lost",
        "rsyslog, synced queue*",
    ),
    Question(
        "How long does a lone device wait until its reading is on disk?",
        "small",
        "one reading a request, 1 connection: p50",
        "nats-py, a synced publish",
    ),
    Question(
        "How soon is a reading at the hub, over a line without delay?",
        "latency",
        "1000 readings/s, 10 a request: in the hub's stream, p50",
        "nats-py and raw JetStream, a message a reading",
    ),
    Question(
        "How many bytes does a reading take on the line?",
        "wire",
        "* host metrics with three tags, 500 a request",
        "raw JetStream, a message a reading, link compressed*",
    ),
    Question(
        "What does an idle line carry in a day?",
        "wire",
        "idle link, one class, at rest (rest_after = 1m)",
        "raw JetStream, one durable source",
    ),
    Question(
        "And with the profile for a line that is paid for?",
        "wire",
        "idle link, three classes, profile thin",
        "raw JetStream, one durable source",
    ),
    Question(
        "How long after a link was cut for 15 s has the hub all of it?",
        "relink",
        "link cut 15 s: caught up after packets pass again, p50",
        "raw durable, left alone",
    ),
    Question(
        "How much memory does the agent hold at rest?",
        "footprint",
        "idle, host metrics each second: RSS",
        "collectd",
    ),
    Question(
        "How many messages a second come into Spark?",
        "spark-read",
        "messages into Spark, warm",
        "nats-py's pull consumer in the same data source*",
    ),
)


def answers(results: Mapping[str, Kept]) -> Iterator[Answer]:
    for question in QUESTIONS:
        kept = results.get(question.benchmark)
        for line in kept.lines if kept else ():
            if fnmatchcase(line.what, question.what) and fnmatchcase(line.beside, question.beside):
                yield Answer(question, line, kept is not None and kept.quiet)
                break


def proof(results: Mapping[str, Kept]) -> str:
    """The table, and how many goals were missed where."""
    counts = list(goals_of(results))
    missed = [f"- {linked(name)}: {bad} of {goals}\n" for name, goals, bad in counts if bad]
    told = f"{sum(bad for *_, bad in counts)} of {sum(goals for _, goals, _ in counts)} goals are missed"
    rows = table(("", "Petiole", "beside it", "", "from"), (one.cells() for one in answers(results)))
    return f"{rows}\n{told}" + (":\n\n" + "".join(missed) if missed else ".\n")


def over_lines(kept: Kept | None) -> str:
    """The table of the benchmark `lines`: goodput as a share of the yardstick's, and the bytes of Petiole's
    that crossed, as a multiple of the payload that the hub holds. Empty without a result."""
    cells: dict[str, dict[str, str]] = {}
    for line in kept.lines if kept else ():
        cell, _, name = line.what.partition(": ")
        found = cells.setdefault(cell, {})
        if name == YARDSTICK:
            found[name] = f"{line.value_text()} kB/s"
        elif line.beside == YARDSTICK:
            found[name] = line.times_text()
        elif name.endswith(", crossed"):
            found[name] = line.times_text() if (line.other or 0) >= 0.1 else "nothing arrived"
    names = (YARDSTICK, *SIDES, *(f"{name}, crossed" for name in OURS))
    rows = ((cell, *(found.get(name, "not run") for name in names)) for cell, found in cells.items())
    return table(("line", *names), rows) if cells else ""


def missed(results: Mapping[str, Kept]) -> str:
    """The goals that were missed and why."""
    lines = [line for kept in results.values() for line in kept.lines]
    return f"## Goals missed\n\n{listed(missed_goals(lines, cause))}\n"
