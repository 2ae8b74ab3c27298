"""The faults as a picture: a row for each kind of fault, a mark for each case at the time that it took to
recover. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.charts import MARGIN, WIDTH, cut, document, text

_LEFT: Final = 470
_RIGHT: Final = WIDTH - 40
_STEP: Final = 20
_TOP: Final = 72
_SECONDS: Final = (0.1, 1.0, 10.0, 100.0)
_LONGEST: Final = 62


def picture(themes: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Cases by what they have in common. One without a time, because nothing had to recover or nobody
    measured it, is counted beside."""
    rows = [row for some in themes.values() for row in some]
    lost, doubled = (sum(row.get(name) or 0 for row in rows) for name in ("lost", "duplicates"))
    bad = sum(not row["passed"] for row in rows)
    title = f"{len(rows)} cases: {lost} readings lost, {doubled} doubled; {bad} did not pass"
    bottom = _TOP + len(themes) * _STEP
    parts = [
        text(MARGIN, 24, title, "text", bold=True),
        text(
            MARGIN, 44, "how long after the fault, or its mending, all flowed and the hub held all", "small"
        ),
    ]
    for seconds in _SECONDS:
        x = _across(seconds)
        parts.append(f'<path class="line" d="M{x:.1f} {_TOP - 12}V{bottom - 8}"/>')
        parts.append(text(x, bottom + 8, f"{seconds:g} s", "small", "middle"))
    for number, (theme, some) in enumerate(themes.items()):
        parts += _row(_TOP + number * _STEP, theme, some)
    return document(bottom + 24, title, parts)


def _row(y: int, theme: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    told = cut(theme.partition(":")[0].rstrip("."), _LONGEST)
    parts = [text(MARGIN, y + 4, told, "text"), text(_LEFT - 14, y + 4, str(len(rows)), "small", "end")]
    for row in rows:
        seconds, kind = row.get("recover_seconds"), "ours" if row["passed"] else "under"
        if seconds is not None:
            at = f'cx="{_across(seconds):.1f}" cy="{y}"'
            parts.append(f'<circle class="{kind}" {at} r="5" fill-opacity="0.75"/>')
    return parts


def _across(seconds: float) -> float:
    low, high = math.log10(_SECONDS[0]), math.log10(_SECONDS[-1]) + 0.4
    part = (math.log10(max(seconds, _SECONDS[0])) - low) / (high - low)
    return _LEFT + min(part, 1.0) * (_RIGHT - _LEFT)
