"""docs/benchmarks.md, the page before all rows: ten questions with an answer each, the goals that were
missed and why, and those that no kept result judges. Pure: every figure is one of the kept results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from bench.goals import cause, not_judged
from bench.kept import Kept, Line, figure
from bench.page import ALIKE, ALL, listed, missed_goals

_HEAD: Final = f"""\
# Benchmarks

Ten questions, each answered beside one alternative of the same run; then every goal that was missed and why,
and those that no kept result judges. A figure depends on the machine and on what else it does: *under load*
means that other work ran beside it. How it was measured, every other row, and what is worse or no better
elsewhere: [all rows]({ALL}). How time and memory of the hub's jobs grow is drawn by itself: [how the jobs
scale](scale.md).
"""


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody wants to know, and the row that answers it; patterns as in a shell."""

    name: str
    """Its picture is images/bench-<name>.svg."""
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

    def text(self) -> str:
        line, name = self.line, self.question.benchmark
        said = [f"{line.value_text()} {line.unit}", f"{self.beside}: {figure(line.other or 0)}"]
        said += [word for word in (self.verdict(), "" if self.quiet else "under load") if word]
        return f"**{self.question.asks}** {'; '.join(said)} ([{name}]({ALL}#{name}))"


QUESTIONS: Final = (
    Question(
        "stored",
        "How many readings a second does an edge machine store and bring to the hub?",
        "peers",
        "load, answered and at the hub, by the clock",
        "rsyslog, synced queue, 500 readings a message",
    ),
    Question(
        "lost",
        "How many acknowledged readings are lost when the edge is killed while the link is cut?",
        "peers",
        "edge SIGKILL while the link is cut, * acknowledged: lost",
        "rsyslog, synced queue*",
    ),
    Question(
        "answer",
        "How long does a lone device wait until its reading is on disk?",
        "small",
        "one reading a request, 1 connection: p50",
        "nats-py, a synced publish",
    ),
    Question(
        "at-hub",
        "How soon is a reading at the hub, over a line without delay?",
        "latency",
        "1000 readings/s, 10 a request: in the hub's stream, p50",
        "nats-py and raw JetStream, a message a reading",
    ),
    Question(
        "bytes",
        "How many bytes does a reading take on the line?",
        "wire",
        "* host metrics with three tags, 500 a request",
        "raw JetStream, a message a reading, link compressed*",
    ),
    Question(
        "idle",
        "What does an idle line carry in a day?",
        "wire",
        "idle link, one class, at rest (rest_after = 1m)",
        "raw JetStream, one durable source",
    ),
    Question(
        "idle-thin",
        "And with the profile for a line that is paid for?",
        "wire",
        "idle link, three classes, profile thin",
        "raw JetStream, one durable source",
    ),
    Question(
        "cut",
        "How long after a link was cut for 15 s has the hub all of it?",
        "relink",
        "link cut 15 s: caught up after packets pass again, p50",
        "raw durable, left alone",
    ),
    Question(
        "memory",
        "How much memory does the agent hold at rest?",
        "footprint",
        "idle, host metrics each second: RSS",
        "collectd",
    ),
    Question(
        "spark-messages",
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


def summary(results: Mapping[str, Kept], found: Iterable[Answer]) -> str:
    found = list(found)
    missed = [line for kept in results.values() for line in kept.lines]
    pictures = [f"![{one.question.asks}](images/bench-{one.question.name}.svg)" for one in found]
    parts = [
        _HEAD,
        "## In ten lines\n",
        listed(one.text() for one in found) + "\n",
        "## Goals missed\n",
        listed(missed_goals(missed, cause)) + "\n",
        "## Goals not judged\n",
        listed(not_judged(results)) + "\n",
        "## In pictures\n",
        "Both bars of a picture share one scale, which begins at 0.\n",
        "\n\n".join(pictures) + "\n",
    ]
    return "\n".join(parts)
