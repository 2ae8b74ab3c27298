"""The rounds as a part of the page of every fault. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.faults.mixed.covering import coverage, scenario

_COLUMNS: Final = (
    *("seed", "two faults, and when they meet", "what flows"),
    *("result", "sent", "acknowledged", "lost", "named", "doubled"),
)
_HEAD: Final = """\
## Faults that meet

Each round draws two faults that overlap, the moment at which the second meets the first, and what flows
meanwhile: the input, its level, the policy of the class, who runs the leaf's server, a rule, and headers that
somebody with the device key forges. A round follows from its seed: `make faults CASE=mixed ROUNDS=1 SEED=7`
plays one again. Within 200 seeds in a row any two values of two of these dimensions meet. `named` are
readings whose only copy the faults destroyed, and which the audit names.

The table has the newest play of each seed: they were played on a busy machine while faults were mended.

"""


def rounds_part(rows: Sequence[Mapping[str, Any]]) -> str:
    """The part that shows these rows of the report."""
    rows = sorted(rows, key=lambda row: int(row["seed"]))
    table = [f"| {' | '.join(_COLUMNS)} |\n", f"|{'---|' * len(_COLUMNS)}\n", *map(_row, rows)]
    broken = [_broken(row) for row in rows if not row["passed"]]
    return "".join([_HEAD, f"{summed(rows)}.\n\n", *table, *broken])


def summed(rows: Sequence[Mapping[str, Any]]) -> str:
    """What became of the rounds, in one line."""
    counts = {name: sum(row[name] or 0 for row in rows) for name in ("lost", "named", "duplicates")}
    failed = sum(not row["passed"] for row in rows)
    met = coverage([scenario(int(row["seed"])) for row in rows])
    return (
        f"{len(rows)} rounds: {len(rows) - failed} passed, {failed} failed; {counts['lost']} readings lost, "
        f"{counts['duplicates']} doubled, {counts['named']:,} named; {met}"
    )


def _row(row: Mapping[str, Any]) -> str:
    faults, _, flows = row["scenario"].partition(" | ")
    numbers = (row.get(name) for name in ("sent", "acknowledged", "lost", "named", "duplicates"))
    cells = [
        row["seed"],
        faults,
        flows,
        "passed" if row["passed"] else "**failed**",
        *("–" if value is None else f"{value:,}" for value in numbers),
    ]
    return f"| {' | '.join(map(str, cells))} |\n"


def _broken(row: Mapping[str, Any]) -> str:
    return f"\nSeed {row['seed']}:\n\n" + "".join(f"* {one}\n" for one in row["seen"][-3:])
