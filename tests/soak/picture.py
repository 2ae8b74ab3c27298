"""A soak test as one picture: a panel for each measure, a line for each process, a stroke for each fault.
Plain SVG; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from tests.soak.sampling import Series

_WIDTH, _LEFT, _RIGHT, _PANEL, _GAP, _TOP = 860, 60, 840, 120, 44, 40
_COLOURS = ("#3d7a22", "#0969da", "#b0562a", "#8250df", "#57606a", "#bf8700")
_STYLE = "svg{font:12px system-ui,sans-serif}.g{fill:#fff}.t{fill:#24292f}.s{fill:#57606a}.l{stroke:#d0d7de}"


def picture(
    title: str, series: Sequence[Series], faults: Sequence[float], measures: Mapping[str, str]
) -> str:
    """`faults` are seconds since the begin; `measures` those to show, with what stands above each."""
    names = sorted({one.who for one in series})
    end = max((one.points[-1][0] for one in series if one.points), default=1.0)
    parts = [_text(16, 22, title, "t")]
    top = _TOP
    for measure, above in measures.items():
        shown = [one for one in series if one.measure == measure]
        parts += _panel(above, shown, [names.index(one.who) for one in shown], faults, end, top)
        top += _PANEL + _GAP
    for number, name in enumerate(names):
        x, y = 16 + number % 4 * 210, top + number // 4 * 18
        parts.append(f'<rect x="{x}" y="{y - 9}" width="12" height="4" fill="{_colour(number)}"/>')
        parts.append(_text(x + 18, y, name, "s"))
    height = top + (len(names) // 4 + 1) * 18
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
    ground = f'<rect class="g" width="{_WIDTH}" height="{height}"/>'
    return "\n".join(
        [f'{head} aria-label="{escape(title)}">', f"<style>{_STYLE}</style>", ground, *parts, "</svg>", ""]
    )


def _panel(
    above: str,
    shown: Sequence[Series],
    colours: Sequence[int],
    faults: Sequence[float],
    end: float,
    top: int,
) -> list[str]:
    most = max((value for one in shown for _, value in one.points), default=1.0) * 1.05 or 1.0
    bottom = top + _PANEL

    def across(at: float) -> float:
        return _LEFT + at / end * (_RIGHT - _LEFT)

    parts = [_text(_LEFT, top - 6, above, "t")]
    parts += [f'<path class="l" d="M{across(at):.1f} {top}V{bottom}"/>' for at in faults]
    parts.append(f'<path class="l" d="M{_LEFT} {bottom}H{_RIGHT}M{_LEFT} {top}H{_RIGHT}"/>')
    parts += [_text(_LEFT - 6, top + 4, f"{most:.0f}", "s", "end"), _text(_LEFT - 6, bottom, "0", "s", "end")]
    parts.append(_text(_RIGHT, bottom + 14, f"{end / 60:.0f} min", "s", "end"))
    for one, colour in zip(shown, colours, strict=True):
        for points in one.lives.values():
            line = " ".join(f"{across(at):.1f},{bottom - value / most * _PANEL:.1f}" for at, value in points)
            parts.append(
                f'<polyline fill="none" stroke="{_colour(colour)}" stroke-width="1.5" points="{line}"/>'
            )
    return parts


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
