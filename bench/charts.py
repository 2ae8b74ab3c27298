"""Results as pictures: plain SVG without scripts or fonts of its own, readable on a light and on a dark page,
for each brings its own ground. Pure: the same results give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from bench.kept import figure
from bench.summary import Answer

WIDTH: Final = 860
MARGIN: Final = 16
_LONGEST: Final = 118
_STYLE: Final = """\
svg { font: 12px system-ui, sans-serif; }
.ground { fill: #ffffff; } .text { fill: #24292f; } .small { fill: #57606a; }
.ours { fill: #3d7a22; } .other { fill: #8c959f; } .goal { stroke: #b0562a; stroke-width: 2; }
.line { stroke: #d0d7de; } .under { fill: #b0562a; }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117; } .text { fill: #e6edf3; } .small { fill: #9198a1; }
.ours { fill: #7cc35a; } .other { fill: #6e7681; } .goal { stroke: #f0a070; }
.line { stroke: #3d444d; } .under { fill: #f0a070; }
}"""


def cut(words: str, longest: int = _LONGEST) -> str:
    """A text that has room."""
    return words if len(words) <= longest else words[: longest - 1] + "…"


def text(x: float, y: float, words: str, kind: str, anchor: str = "start", *, bold: bool = False) -> str:
    """A line of text, `text` or `small`."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'


def document(height: int, title: str, parts: Sequence[str], style: str = "") -> str:
    """A picture of these parts; `style` is for what only this kind of picture has."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">'
    )
    ground = f'<rect class="ground" width="{WIDTH}" height="{height}"/>'
    return "\n".join([head, f"<style>\n{_STYLE}{style}\n</style>", ground, *parts, "</svg>"]) + "\n"


_LEFT: Final = 330
_RIGHT: Final = WIDTH - 190
_STEP: Final = 26
_TOP: Final = 44
_BAR: Final = 18


def beside(answer: Answer) -> str:
    """A question with two bars on one scale that begins at 0: Petiole, and the one alternative."""
    line = answer.line
    other = line.other or 0.0
    scale = (_RIGHT - _LEFT) / (max(line.value, other) or 1.0)
    parts = [text(MARGIN, 24, cut(answer.question.asks), "text", bold=True)]
    bars = (
        ("Petiole", line.value, line.value_text(), "ours"),
        (answer.beside, other, figure(other), "other"),
    )
    for number, (name, value, label, kind) in enumerate(bars):
        y, width = _TOP + number * _STEP, max(value * scale, 1)
        parts.append(text(_LEFT - 8, y + 13, cut(name, 52), "small", "end"))
        parts.append(f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}"/>')
        parts.append(text(_LEFT + width + 8, y + 13, f"{label} {line.unit}", "text"))
    end = _TOP + len(bars) * _STEP
    if not answer.quiet:
        parts.append(text(MARGIN, end + 12, "measured under load", "small"))
        end += 18
    return document(end + 8, answer.question.asks, parts)
