"""`python -m bench [NAME…]`: run benchmarks, write build/bench/NAME.json, show their rows. One that fails is
written with the rows that it has; the others run all the same, and the exit code is 1."""

from __future__ import annotations

import importlib
import sys
import traceback

from rich.console import Console
from rich.table import Table

from bench import NAMES, module_name
from bench.result import BUILT, Measured, Result, UnfinishedError


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; returns the exit code."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    console, failed = Console(), False
    for name in names or NAMES:
        measured = Measured()
        try:
            result: Result = importlib.import_module(module_name(name)).run()
        except UnfinishedError as error:
            traceback.print_exc()
            result, failed = error.result, True
        except Exception:  # nothing is known of it, and the others are still to be run
            traceback.print_exc()
            failed = True
            continue
        path = result.write(BUILT, measured)
        console.print(_table(result))
        console.print(f"written to {path}")
    return int(failed)


def _table(result: Result) -> Table:
    table = Table(title=result.benchmark)
    for column in ("what", "value", "unit", "goal", "met", "against", "ratio"):
        table.add_column(column)
    for row in result.rows:
        cells = row.as_json()
        against = cells["against"]
        beside = f"{against['what']}: {against['value']:,}" if against else ""
        met = {None: "", True: "yes", False: "no"}[cells["met"]]
        table.add_row(
            cells["what"],
            f"{cells['value']:,}",
            cells["unit"],
            "" if cells["goal"] is None else f"{cells['goal']:,}",
            met,
            beside,
            "" if cells["ratio"] is None else f"{cells['ratio']:,}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
