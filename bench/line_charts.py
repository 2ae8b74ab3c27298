"""A sweep as a picture: a line a job over the steps, on axes that begin at 0 or go by decades. Made as the
others (`charts`), and as pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.charts import MARGIN, WIDTH, document, text
from bench.kept import figure

_LEFT: Final = 84.0
_RIGHT: Final = WIDTH - 190.0
_TOP: Final = 44.0
_BOTTOM: Final = 304.0
_HEIGHT: Final = 352
_APART: Final = 16.0
"""From one label to the next."""
_TICKS: Final = 5
_LIGHT: Final = ("#3d7a22", "#0969da", "#b0562a", "#8250df", "#57606a")
_DARK: Final = ("#7cc35a", "#58a6ff", "#f0a070", "#bc8cff", "#9198a1")
_POINT: Final = 3.5

Line = Sequence[tuple[float, float]]


def _coloured(colours: Sequence[str]) -> str:
    return "\n".join(
        f".line-{number} {{ stroke: {colour}; }} .point-{number} {{ fill: {colour}; }}"
        for number, colour in enumerate(colours)
    )


_STYLE: Final = f"""
.drawn {{ fill: none; stroke-width: 2; }}
{_coloured(_LIGHT)}
@media (prefers-color-scheme: dark) {{
{_coloured(_DARK)}
}}"""


@dataclass(frozen=True, slots=True)
class Axis:
    """From a value to a place, by the value or by its logarithm."""

    low: float
    high: float
    begin: float
    end: float
    decades: bool

    def at(self, value: float) -> float:
        low, high, value = map(self._scaled, (self.low, self.high, value))
        return self.begin + (value - low) / (high - low or 1.0) * (self.end - self.begin)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.decades else value


def lines_over(
    title: str, along: str, lines: Mapping[str, Line], *, decades: tuple[bool, bool], quiet: bool
) -> str:
    """Lines by name over the steps that `along` names; `decades` says of either axis, the steps' first,
    whether it goes by them."""
    steps = sorted({x for line in lines.values() for x, _ in line})
    values = [y for line in lines.values() for _, y in line]
    ticks = _decades(min(values), max(values)) if decades[1] else _even(max(values))
    first = steps[0] if decades[0] else 0.0
    across = Axis(first, steps[-1], _LEFT, _RIGHT, decades[0])
    upward = Axis(ticks[0], ticks[-1], _BOTTOM, _TOP, decades[1])
    parts = [text(MARGIN, 24, title, "text", bold=True), *_grid(across, upward, steps, ticks)]
    parts.append(text((_LEFT + _RIGHT) / 2, _BOTTOM + 38, along, "small", "middle"))
    if not quiet:
        parts.append(text(MARGIN, _BOTTOM + 38, "measured under load", "small"))
    ends = _apart([upward.at(line[-1][1]) for line in lines.values()])
    for number, ((name, line), label) in enumerate(zip(lines.items(), ends, strict=True)):
        colour = number % len(_LIGHT)
        parts += _line(colour, [(across.at(x), upward.at(y)) for x, y in line])
        parts.append(f'<path class="drawn line-{colour}" d="M{_RIGHT + 12:.1f} {label:.1f}h14"/>')
        parts.append(text(_RIGHT + 32, round(label + 4, 1), f"{name} {figure(line[-1][1])}", "text"))
    return document(_HEIGHT, title, parts, _STYLE)


def _grid(across: Axis, upward: Axis, steps: Sequence[float], ticks: Sequence[float]) -> Iterator[str]:
    for tick in ticks:
        y = upward.at(tick)
        yield f'<path class="line" d="M{_LEFT:.1f} {y:.1f}H{_RIGHT:.1f}"/>'
        yield text(_LEFT - 8, round(y + 4, 1), figure(tick), "small", "end")
    for step in steps:
        x = across.at(step)
        yield f'<path class="line" d="M{x:.1f} {_BOTTOM:.1f}v5"/>'
        yield text(x, _BOTTOM + 20, f"{step:,g}", "small", "middle")


def _line(colour: int, places: Sequence[tuple[float, float]]) -> Iterator[str]:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    yield f'<path class="drawn line-{colour}" d="M{path}"/>'
    for x, y in places:
        yield f'<circle class="point-{colour}" cx="{x:.1f}" cy="{y:.1f}" r="{_POINT}"/>'


def _decades(least: float, most: float) -> list[float]:
    """Whole decades that hold all values."""
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _even(most: float) -> list[float]:
    """From 0 on, at even distances that are round figures, until above all values."""
    rough = (most or 1.0) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    width = next(times * power for times in (1, 2, 5, 10) if times * power >= rough)
    return [width * number for number in range(math.ceil(most / width - 1e-9) + 1)]


def _apart(places: Sequence[float]) -> list[float]:
    """Where the labels of these places stand, so that none covers another and none is below the axis."""
    order = sorted(range(len(places)), key=lambda number: (places[number], number))
    found, last = [0.0] * len(places), -math.inf
    for number in order:
        found[number] = last = max(places[number], last + _APART)
    last = _BOTTOM + _APART
    for number in reversed(order):
        found[number] = last = min(found[number], last - _APART)
    return found
