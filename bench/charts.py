"""Results as pictures. Pure: the same results give the same bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from bench.drawing import MARGIN, WIDTH, cut, document, text
from bench.kept import Kept, Line, figure

_BAR_LEFT: Final = 300
_BAR_RIGHT: Final = 700
_STEP: Final = 22
_MOST_GROUPS: Final = 14


def bars(kept: Kept) -> str | None:
    """A result's rows beside their alternatives and goals, each on a scale of its own; nothing where no row
    has either."""
    groups = _groups(kept.lines)
    shown = groups[:_MOST_GROUPS]
    if not shown:
        return None
    title = f"{kept.benchmark}: a row's bars share one scale; a stroke is the goal"
    if len(shown) < len(groups):
        title += f" ({len(shown)} of {len(groups)} rows)"
    parts, top = [text(MARGIN, 24, title, "text", bold=True)], 48
    for group in shown:
        parts.append(text(MARGIN, top, cut(f"{group[0].what} ({group[0].unit})"), "text"))
        drawn, top = _bars(group, top + 8)
        parts += drawn
        top += 22
    return document(top - 6, title, parts)


def ratios(results: Iterable[Kept]) -> str:
    """How many times as good as its alternatives each benchmark found the product: the least, the middle and
    the greatest ratio of its rows, on a scale of powers of ten."""
    found = {one.benchmark: _ratios(one.lines) for one in results}
    found = {name: values for name, values in found.items() if values}
    every = [value for values in found.values() for value in values] or [1.0]
    low = min(-1, math.floor(math.log10(min(every))))
    high = max(1, math.ceil(math.log10(max(every))))

    def across(value: float) -> float:
        return 150 + (math.log10(value) - low) / (high - low) * (WIDTH - 150 - 110)

    title = "How many times as good as the alternatives of the same run: least, middle, greatest"
    bottom = 60 + len(found) * 30
    parts = [text(MARGIN, 24, title, "text", bold=True)]
    for power in range(low, high + 1):
        x = across(10.0**power)
        parts.append(f'<path class="{"goal" if power == 0 else "line"}" d="M{x:.1f} 40V{bottom}"/>')
        parts.append(text(x, bottom + 18, figure(10.0**power), "small", "middle"))
    for number, (name, values) in enumerate(found.items()):
        y, least, most = 60 + number * 30, values[0], values[-1]
        middle = values[len(values) // 2]
        parts.append(text(MARGIN, y + 4, name, "text"))
        width = max(across(most) - across(least), 2)
        kind = "under" if least < 1 else "ours"
        parts.append(
            f'<rect class="other" x="{across(least):.1f}" y="{y - 3}" width="{width:.1f}" height="6"/>'
        )
        parts.append(f'<circle class="{kind}" cx="{across(least):.1f}" cy="{y}" r="4"/>')
        parts.append(f'<circle class="ours" cx="{across(most):.1f}" cy="{y}" r="4"/>')
        parts.append(f'<circle class="text" cx="{across(middle):.1f}" cy="{y}" r="3"/>')
        span = figure(least) if least == most else f"{figure(least)} to {figure(most)}"
        parts.append(text(across(most) + 10, y + 4, span, "small"))
    return document(bottom + 32, title, parts)


def _groups(lines: Sequence[Line]) -> list[list[Line]]:
    """Rows of one thing together, those left out that have nothing to be seen beside."""
    groups = [list(group) for _, group in groupby(lines, key=lambda line: (line.what, line.unit))]
    return [group for group in groups if max(_values(group)) > 0 and _beside(group)]


def _beside(group: list[Line]) -> bool:
    return any(line.other is not None for line in group)


def _values(group: list[Line]) -> list[float]:
    first = group[0]
    others = [line.other for line in group if line.other is not None]
    return [first.value, *others, *([] if first.aim is None else [first.aim])]


def _bars(group: list[Line], top: int) -> tuple[list[str], int]:
    """The bars of a row, and where the next begins."""
    first, scale = group[0], (_BAR_RIGHT - _BAR_LEFT) / max(_values(group))
    named = [("Petiole", first.value, "ours")]
    named += [(line.beside, line.other, "other") for line in group if line.other is not None]
    parts = []
    for number, (name, value, kind) in enumerate(named):
        y, width = top + number * _STEP, max(value * scale, 1)
        parts.append(text(_BAR_LEFT - 8, y + 12, cut(name, 46), "small", "end"))
        parts.append(f'<rect class="{kind}" x="{_BAR_LEFT}" y="{y}" width="{width:.1f}" height="16"/>')
        ratio = "" if kind == "ours" else _ratio_text(group[number - 1].ratio)
        parts.append(text(_BAR_RIGHT + 12, y + 12, figure(value) + ratio, "text"))
    end = top + len(named) * _STEP
    if first.aim:
        x = _BAR_LEFT + first.aim * scale
        parts.append(f'<path class="goal" d="M{x:.1f} {top - 3}V{end - 3}"/>')
    return parts, end


def _ratio_text(ratio: float | None) -> str:
    return "" if ratio is None else f" (×{figure(ratio)})"


def _ratios(lines: Sequence[Line]) -> list[float]:
    return sorted(line.ratio for line in lines if line.ratio and line.ratio > 0)
