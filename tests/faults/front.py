"""docs/faults.md: ten lines before docs/faults-all.md, from the same rows. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

_ALL: Final = "faults-all.md"
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
    "Keys, fleets, commands, mirrors, programs and upgrades": ("*",),
}
"""What befalls, in the words of a person who asks, and the themes of it; the first that fits counts."""
_HEAD: Final = f"""\
# The faults that were tested

Real processes under load; a fault is injected, and an oracle compares every acknowledged reading with the
tables. *Lost* is what is in no table and named by nobody; *named* is what the audit names with a reason,
because its only copy was destroyed. [Each case]({_ALL}), how it was played, what was expected and seen.

## In ten lines

"""


def front(themes: Mapping[str, Sequence[Mapping[str, Any]]], rounds: str) -> str:
    """The page. `rounds` is the part of the long one about faults that meet."""
    kinds: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in KINDS}
    for theme, rows in themes.items():
        kinds[kind_of(theme)] += rows
    everything = [row for rows in themes.values() for row in rows]
    told = re.search(r"^\d+ rounds: .*$", rounds, re.MULTILINE)
    parts = [
        _HEAD,
        *(f"* **{kind}**: {_line(rows)}\n" for kind, rows in kinds.items() if rows),
        f"\nTogether: {_line(everything)}\n",
        f"\nTwo faults that meet, drawn at random: {told[0]}\n" if told else "",
        f"\n{_bad(everything)}",
        "\n## How long until all is at the hub again\n",
        "\n![Each case at the time that it took to recover](images/faults.svg)\n",
    ]
    return "".join(parts)


def kind_of(theme: str) -> str:
    """The kind of faults that a theme is of."""
    return next(kind for kind, themes in KINDS.items() if any(fnmatchcase(theme, one) for one in themes))


def _line(rows: Sequence[Mapping[str, Any]]) -> str:
    passed = sum(bool(row["passed"]) for row in rows)
    counts = {name: sum(row.get(name) or 0 for row in rows) for name in _COUNTED}
    slowest = max((row.get("recover_seconds") or 0.0 for row in rows), default=0.0)
    named = [f"*{row['case']}*" for row in rows if row.get("named")]
    where = f" ({' and '.join(named) if len(named) <= _FEW else f'in {len(named)} cases'})" if named else ""
    within = f"; all at the hub again within {slowest:.0f} s" if slowest else ""
    return (
        f"{passed} of {len(rows)} cases passed; {counts['acknowledged']:,} readings acknowledged, "
        f"{counts['lost']:,} lost, {counts['named']:,} named{where}, "
        f"{counts['duplicates']:,} doubled{within}."
    )


_FEW: Final = 2
"""So many cases are named where the audit named readings."""
_COUNTED: Final = ("acknowledged", "lost", "named", "duplicates")


def _bad(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [row["case"] for row in rows if not row["passed"]]
    return f"Not passed, or not run: {', '.join(names)}.\n" if names else "No case failed or was left out.\n"
