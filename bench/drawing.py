"""What pictures of results are made of: plain SVG without scripts or fonts of its own, readable on a light
and on a dark page, for each brings its own ground. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

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


def document(height: int, title: str, parts: Sequence[str]) -> str:
    """The whole picture, `WIDTH` wide."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">'
    )
    ground = f'<rect class="ground" width="{WIDTH}" height="{height}"/>'
    return "\n".join([head, f"<style>\n{_STYLE}\n</style>", ground, *parts, "</svg>"]) + "\n"
