"""`python -m bench [NAME…]`: run benchmarks, write build/bench/NAME.json, show their rows; in a name `*`
stands for any text. One that fails is written with the rows that it has and why it has no more; the others
run all the same, and the exit code is 1."""

from __future__ import annotations

import fnmatch
import importlib
import os
import sys
import traceback

from rich.console import Console
from rich.table import Table

from bench import NAMES, module_name
from bench.measured import Measured
from bench.result import BUILT, Failed, Result, UnfinishedError, reason

# An installed program is compiled once. Where the environment says not to keep that, each process that is
# measured would compile the product again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def main(arguments: list[str]) -> int:
    """Run the named benchmarks, or all; names may be joined by commas. Returns the exit code."""
    asked = [name for argument in arguments for name in argument.split(",") if name]
    names = [name for pattern in asked for name in fnmatch.filter(NAMES, pattern)]
    if unknown := [pattern for pattern in asked if not fnmatch.filter(NAMES, pattern)]:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    console, failed = Console(), False
    for name in names or NAMES:
        measured = Measured()
        result = _run(name)
        path = result.write(BUILT, measured)
        console.print(_table(result))
        for part in result.failed:
            console.print(f"not measured: {part.what}: {part.why}", markup=False)
        console.print(f"written to {path}")
        failed |= bool(result.failed)
    return int(failed)


def _run(name: str) -> Result:
    try:
        result: Result = importlib.import_module(module_name(name)).run()
    except UnfinishedError as error:
        traceback.print_exc()
        return error.result
    except Exception as error:  # the others are still to be run
        traceback.print_exc()
        return Result(name, failed=[Failed("all of it", reason(error))])
    return result


def _table(result: Result) -> Table:
    table = Table(title=result.benchmark)
    for column in ("what", "value", "unit", "against", "times", "goal", "met"):
        table.add_column(column)
    for row in result.rows:
        cells = row.as_json()
        against = cells["against"]
        table.add_row(
            cells["what"],
            f"{cells['value']:,}",
            cells["unit"],
            f"{against['what']}: {against['value']:,}" if against else "",
            "" if cells["times"] is None else f"{cells['times']:,}",
            _goal(cells["goal"], cells["must"], row.least),
            {None: "", True: "yes", False: "no"}[cells["met"]],
        )
    return table


def _goal(goal: float | None, must: float | None, least: bool) -> str:
    if must is not None:
        return f"{must:,}"
    return "" if goal is None else f"{'at most' if least else 'at least'} {goal:,} times"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
