"""The table of faults in docs/proof.md. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from tests.faults.mixed.page import summed

KINDS: Final = {
    "The power goes, at a leaf or at the hub": ("The power of *",),
    "The link is cut, flaps, stalls or loses packets, for seconds or long": (
        "The link *",
        "A leaf that was cut off*",
    ),
    "An agent, a server or the registrar is killed, ended or stopped": ("A process *",),
    "A disk or a stream is full": ("There is no room*",),
    "A store is lost, restored, damaged or purged": (
        "A store *",
        "The stream of the hub *",
        "A leaf's disk *",
    ),
    "A machine of a hub of three goes": ("A hub of three *",),
    "More comes than is taken; requests are repeated": ("More than *", "Requests *"),
    "A job is killed; others write the tables; the object store fails": (
        *("The driver *", "An executor *", "A lake *", "Another program *", "What `rollup`*"),
    ),
    "A clock is wrong or jumps": ("The clock *",),
    "Keys, fleets, commands, mirrors and programs": ("*",),
}
"""What befalls, in the words of a person who asks, and the themes of it; the first that fits counts."""


def table(themes: Mapping[str, Sequence[Mapping[str, Any]]], rounds: Sequence[Mapping[str, Any]]) -> str:
    """The sums of the kinds of faults, then what did not pass."""
    kinds: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in KINDS}
    for theme, rows in themes.items():
        kinds[kind_of(theme)] += rows
    everything = [row for rows in themes.values() for row in rows]
    parts = [
        f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}\n",
        *(_line(kind, rows) for kind, rows in kinds.items() if rows),
        _line("**Together**", everything),
        f"\nTwo faults that meet, drawn at random: {summed(rounds)}.\n" if rounds else "",
        f"\n{_bad(everything)}",
    ]
    return "".join(parts)


def kind_of(theme: str) -> str:
    """The kind of faults that a theme is of."""
    return next(kind for kind, themes in KINDS.items() if any(fnmatchcase(theme, one) for one in themes))


def _line(kind: str, rows: Sequence[Mapping[str, Any]]) -> str:
    passed = sum(bool(row["passed"]) for row in rows)
    counts = [f"{sum(row.get(name) or 0 for row in rows):,}" for name in _COUNTED]
    slowest = max((row.get("recover_seconds") or 0.0 for row in rows), default=0.0)
    cells = [kind, f"{passed} of {len(rows)}", *counts, f"{slowest:.0f} s" if slowest else "–"]
    return f"| {' | '.join(cells)} |\n"


_COLUMNS: Final = (
    *("fault", "cases passed", "readings acknowledged", "lost", "named", "doubled"),
    "at the hub again within",
)
_COUNTED: Final = ("acknowledged", "lost", "named", "duplicates")


def _bad(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [row["case"] for row in rows if not row["passed"]]
    return f"Not passed, or not run: {', '.join(names)}.\n" if names else "No case failed or was left out.\n"
