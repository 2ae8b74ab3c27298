"""Implements `petiole top`, which shows a leaf's rates by input and class from `/metrics`.

It runs until Ctrl-C and ends with 0. With --once: 0 shown; 5 no agent.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from agent.base.terminal import (
    BAD,
    DIM,
    GOOD,
    WAITS,
    TerminalLine,
    draw,
    now_text,
    table,
    terminal_width,
    watch,
    wrapped,
)
from agent.cli.configuration import ConfigFile, configuration, end, quiet
from agent.contract import Exit
from agent.hub.fleet_rows import until

if TYPE_CHECKING:
    from prometheus_client import Metric

    from agent.config import Config

_COUNTERS: Final = {
    "petiole_accepted_readings_total": "accepted",
    "petiole_stored_readings_total": "stored",
    "petiole_refused_readings_total": "refused",
    "petiole_invalid_requests_total": "errors",
    "petiole_dropped_messages_total": "errors",
    "petiole_refused_after_acceptance_readings_total": "errors",
}
_GAUGES: Final = ("petiole_backlog_messages", "petiole_seconds_to_loss", "petiole_input_up")
_LABELS: Final = ("input", "class")


class Count(NamedTuple):
    """A counter of an input or class."""

    label: str
    name: str
    what: str


@dataclass(frozen=True, slots=True)
class Scrape:
    """A leaf's metrics; `at` in monotonic seconds."""

    at: float
    counters: Mapping[Count, float]
    gauges: Mapping[Count, float]
    states: Mapping[str, str]
    """Link state by class."""
    inputs: Collection[str]
    """Configured inputs; removed ones keep counters."""


def sample(families: Iterable[Metric], inputs: Collection[str], at: float) -> Scrape:
    """Return the shown metrics of an answer."""
    counters: defaultdict[Count, float] = defaultdict(float)
    gauges: dict[Count, float] = {}
    states: dict[str, str] = {}
    for name, labels, value, *_ in (found for family in families for found in family.samples):
        if name == "petiole_link_state" and value:
            states[labels["class"]] = labels["state"]
        for label in (label for label in _LABELS if label in labels):
            if (what := _COUNTERS.get(name)) is not None:
                counters[Count(label, labels[label], what)] += value
            elif name in _GAUGES:
                gauges[Count(label, labels[label], name)] = value
    return Scrape(at, counters, gauges, states, inputs)


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates between two samples; unknown with one."""

    before: Scrape | None
    now: Scrape

    @property
    def seconds(self) -> float:
        """Time between samples, 0 with one."""
        return 0.0 if self.before is None else self.now.at - self.before.at

    def gained(self, label: str, name: str, what: str) -> float | None:
        """Return a counter's growth per second, None if unknown. A restarted agent's counters begin at 0."""
        if self.seconds <= 0:
            return None
        key = Count(label, name, what)
        return (self.now.counters.get(key, 0.0) - self._earlier(key)) / self.seconds

    def backlog(self, cls: str) -> tuple[float | None, float | None]:
        """Return a class's unconfirmed messages and their growth per second."""
        key = Count("class", cls, "petiole_backlog_messages")
        now = self.now.gauges.get(key)
        before = None if self.before is None else self.before.gauges.get(key)
        if now is None or before is None or self.seconds <= 0:
            return now, None
        return now, (now - before) / self.seconds

    @property
    def classes(self) -> list[str]:
        return self._names("class")

    @property
    def inputs(self) -> list[str]:
        """Return inputs of the newer sample, and the agent."""
        return [name for name in self._names("input") if self.runs(name) is None or name in self.now.inputs]

    def runs(self, name: str) -> bool | None:
        """Return whether an input runs, None if not configured."""
        up = self.now.gauges.get(Count("input", name, "petiole_input_up"))
        return None if up is None else bool(up)

    def _names(self, label: str) -> list[str]:
        series = (*self.now.counters, *self.now.gauges)
        return sorted({count.name for count in series if count.label == label})

    def _earlier(self, key: Count) -> float:
        return 0.0 if self.before is None or self._begun_anew else self.before.counters.get(key, 0.0)

    @property
    def _begun_anew(self) -> bool:
        """Tell whether counters restarted at 0."""
        earlier = {} if self.before is None else self.before.counters
        return any(self.now.counters.get(key, 0.0) < value for key, value in earlier.items())


_CLASS_HEAD: Final = ("CLASS", "STATE", "STORED/S", "REFUSED/S", "BACKLOG", "BACKLOG/S", "TO LOSS")
_INPUT_HEAD: Final = ("INPUT", "ACCEPTED/S", "STORED/S", "REFUSED/S", "ERRORS/S", "RUNS")

_Row = tuple[Sequence[str], str]


def rate_lines(rates: Rates, width: int | None) -> list[TerminalLine]:
    """Return tables, or sentences on narrow terminals."""
    classes = [_class_row(rates, name) for name in rates.classes]
    inputs = [_input_row(rates, name) for name in rates.inputs]
    tables = [*table(_CLASS_HEAD, classes, range(2, 7)), *table(_INPUT_HEAD, inputs, range(1, 5))]
    if width is None or max(len(line.text) for line in tables) <= width:
        return tables
    sentences = [*_sentences(_CLASS_HEAD, classes), *_sentences(_INPUT_HEAD, inputs)]
    return [part for line in sentences for part in wrapped(line, width)]


def _sentences(head: Sequence[str], rows: Sequence[_Row]) -> list[TerminalLine]:
    """Return cells after their headings."""
    return [
        TerminalLine(
            ", ".join(f"{name.lower()} {cell}" for name, cell in zip(head, cells, strict=True)), style
        )
        for cells, style in rows
    ]


def _class_row(rates: Rates, name: str) -> _Row:
    refused = rates.gained("class", name, "refused")
    backlog, growth = rates.backlog(name)
    loss = rates.now.gauges.get(Count("class", name, "petiole_seconds_to_loss"))
    cells = (
        name,
        rates.now.states.get(name, "-"),
        per_second(rates.gained("class", name, "stored")),
        per_second(refused),
        "-" if backlog is None else f"{backlog:,.0f}",
        per_second(growth, signed=True),
        until(loss),
    )
    return cells, BAD if refused else ""


def _input_row(rates: Rates, name: str) -> _Row:
    refused, errors = (rates.gained("input", name, what) for what in ("refused", "errors"))
    runs = rates.runs(name)
    cells = (
        name,
        per_second(rates.gained("input", name, "accepted")),
        per_second(rates.gained("input", name, "stored")),
        per_second(refused),
        per_second(errors),
        "-" if runs is None else "yes" if runs else "no",
    )
    return cells, BAD if refused or errors or runs is False else DIM if runs is None else ""


def per_second(rate: float | None, *, signed: bool = False) -> str:
    """Format a rate; small ones are never shown as none."""
    if rate is None:
        return "-"
    sign = "-" if rate < 0 else "+" if signed and rate else ""
    size = abs(rate)
    if 0 < size < 0.05:
        return f"{sign}<0.1"
    return f"{sign}{size:,.{0 if size >= 1_000 else 1}f}"


_DEFAULT_SECONDS: Final = 2.0

Once = Annotated[bool, typer.Option("--once", help="Print once, the rates of one interval, and end.")]
Interval = Annotated[
    float, typer.Option("--interval", min=0.5, max=3600, help="Seconds between two looks at the agent.")
]


def command(config: ConfigFile, once: Once = False, interval: Interval = _DEFAULT_SECONDS) -> None:
    """Show live what a leaf does: readings, refusals, errors and the backlog, per second."""
    from agent.cli.query import AdminStatusError

    settings = configuration(config)
    quiet(settings)
    if settings.role != "leaf":
        end(["top shows one leaf; run it there, or look at all of them here with petiole fleet"])
    view = LeafView(settings)
    if not once:
        watch(view.shown, interval)
        raise typer.Exit(Exit.WELL)
    try:
        view.looked()
        time.sleep(interval)
        draw(view.looked())
    except AdminStatusError as error:
        end([str(error)], Exit.UNREACHABLE)


class LeafView:
    """A leaf observed repeatedly."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._before: Scrape | None = None

    def shown(self) -> list[TerminalLine]:
        """Return the next lines, or a sentence without agent, after which rates restart."""
        from agent.cli.query import AdminStatusError

        try:
            return self.looked()
        except AdminStatusError as error:
            self._before = None
            said = [TerminalLine(now_text()), TerminalLine(str(error), BAD)]
            return [part for line in said for part in wrapped(line, terminal_width())]

    def looked(self) -> list[TerminalLine]:
        """Return the next lines. Raises `AdminStatusError`."""
        from agent.cli.query import metrics_of, status_of

        status = status_of(self._config)
        now = sample(metrics_of(self._config), status["inputs"], time.monotonic())
        rates, width = Rates(self._before, now), terminal_width()
        self._before = now
        link = status["link"]
        style = BAD if link["attention"] else GOOD if link["state"] == "flowing" else WAITS
        over = f"; the last {rates.seconds:.1f} s" if rates.seconds else "; rates follow with the next look"
        head = [
            TerminalLine(f"{status['domain']}: {link['sentence']}", style),
            TerminalLine(now_text() + over),
        ]
        if not status.get("server", {}).get("stores", True):
            head.insert(1, TerminalLine(f"server: {status['server']['state']}", BAD))
        return [*(part for line in head for part in wrapped(line, width)), *rate_lines(rates, width)]
