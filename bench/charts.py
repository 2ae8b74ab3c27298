"""Results as pictures. Pure: the same results give the same bytes."""

from __future__ import annotations

from typing import Final

from bench.drawing import MARGIN, WIDTH, cut, document, text
from bench.kept import figure
from bench.summary import Answer

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
