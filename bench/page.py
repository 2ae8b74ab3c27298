"""The page of all benchmarks, which `make docs` makes of the kept results: every row, and how each was
measured. Pure: every figure on the page is a kept figure, and the docstring of its module describes a
benchmark."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench import NAMES, module_name
from bench.kept import QUIET_LOAD, QUIET_STOLEN, Kept, Line, figure

_FEW: Final = 16
"""More rows than these are folded."""
ALL: Final = "benchmarks-all.md"
ALIKE: Final = 1.1
"""A smaller difference cannot be seen on a shared machine."""
_SWEEPS: Final = "spark-scale-"
"""So begin benchmarks whose rows stand beside another step of theirs, which is no alternative."""
_HEAD: Final = f"""\
# All rows of the benchmarks

The ten that matter most are in [Proof](proof.md#benchmarks). `make docs` makes this page from the results in
`bench/results/`; every figure here is a kept figure.
`make bench NAME=ingest` runs a benchmark and writes `build/bench/ingest.json`; `make bench KEEP=1` keeps each
newer result and writes the table of Proof. `ROUNDS=2 make bench NAME=small,peers` plays fewer
rounds than five.

A figure depends on the machine, and on what else it does. So a goal is a ratio to an alternative or a
yardstick that was measured in the same run, in turns with what stands beside it: *times* is the figure by
that of the alternative. Each is the median of its rounds, with the least and the greatest in parentheses; the
ratio is taken round by round. A goal stays where it is missed. Only counts that hold on any machine, such as
no reading lost, are goals by themselves.

Load, servers, Spark and what is measured share the cores of one machine. *Load* is how many processes of
others ran or waited for a core in the seconds before a benchmark began and after it ended. A machine is
*quiet* where both are at most {QUIET_LOAD} and its host took at most {100 * QUIET_STOLEN:.0f} % of its cores;
other results are *under load*, and none of them takes the place of one from a quiet machine.
"""


def page(results: Mapping[str, Kept], missed: str = "") -> str:
    """Return the page; `missed` is the part about goals that were missed."""
    parts = [
        _HEAD,
        _goals(results),
        missed,
        _not_better(list(results.values())),
        _machines(list(results.values())),
    ]
    parts += [_benchmark(results[name]) for name in NAMES if name in results]
    return "\n".join(parts)


def _goals(results: Mapping[str, Kept]) -> str:
    rows: list[tuple[object, ...]] = []
    for name in NAMES:
        if (kept := results.get(name)) is None:
            rows.append((name, "not run", "", "", ""))
            continue
        with_goal = _once(line for line in kept.lines if line.met is not None)
        missed = sum(not line.met for line in with_goal)
        run = kept.measured["date"][:10]
        rows.append((f"[{name}](#{name})", run, _machine_was(kept), len(with_goal) - missed, missed))
    return f"## Goals\n\n{table(('benchmark', 'run', 'machine', 'goals met', 'goals missed'), rows)}"


def _not_better(results: Sequence[Kept]) -> str:
    lines = [line for kept in results if not kept.benchmark.startswith(_SWEEPS) for line in kept.lines]
    shown = {(line.benchmark, line.what) for line in lines if line.met is False}
    left = (line for line in lines if (line.benchmark, line.what) not in shown)
    compared = _worst(line for line in left if line.ratio is not None and line.ratio < ALIKE)
    parts = [
        "## What is not better",
        "Each value once, beside its best alternative, and no [goal missed](#goals-missed).",
        "### Worse than the alternative of the same run",
        listed(_compared(line) for line in compared if line.ratio and line.ratio < 1),
        f"### Less than {100 * (ALIKE - 1):.0f} % better, which a shared machine cannot tell",
        listed(_compared(line) for line in compared if line.ratio and line.ratio >= 1),
    ]
    return "\n\n".join(parts) + "\n"


def goals_of(results: Mapping[str, Kept]) -> Iterator[tuple[str, int, int]]:
    """Each benchmark with its goals: how many, and how many were missed."""
    for name, kept in results.items():
        if with_goal := _once(line for line in kept.lines if line.met is not None):
            yield name, len(with_goal), sum(not line.met for line in with_goal)


def missed_goals(lines: Iterable[Line], cause: Callable[[Line], str]) -> list[str]:
    """Each goal that was missed, in a line, and why."""
    return [
        f"[{line.benchmark}](#{line.benchmark}): {_missed(line)}. *Why:* {cause(line)}"
        for line in _once(line for line in lines if line.met is False)
    ]


def _worst(lines: Iterable[Line]) -> list[Line]:
    """Of lines of one benchmark with one value (p50 and p95 of a single round, several alternatives) the
    one whose alternative is best."""
    found: dict[tuple[str, str, float], Line] = {}
    for line in lines:
        key = (line.benchmark, line.unit, line.value)
        if key not in found or (line.ratio or 0) < (found[key].ratio or 0):
            found[key] = line
    return list(found.values())


def _machines(results: Sequence[Kept]) -> str:
    """Each machine with its versions once, and what was measured there."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for kept in results:
        of_machine = {
            "machine": f"{kept.machine['processor']}, {kept.machine['cores']} cores, "
            f"{kept.machine['memory_bytes'] / 1e9:.0f} GB, {kept.machine['system']}",
            **kept.versions,
        }
        found.setdefault(tuple(of_machine.items()), []).append(kept.benchmark)
    parts = ["## Machine and versions"]
    for described, names in found.items():
        parts.append(", ".join(names))
        parts.append(table(("what", "which"), described))
    return "\n\n".join(parts)


def _benchmark(kept: Kept) -> str:
    parts = [f"## {kept.benchmark}", described(kept.benchmark), _measured(kept)]
    is_matrix = kept.benchmark.startswith((_SWEEPS, "lines"))
    text = _matrix(kept.lines) if is_matrix else _rows(kept.lines)
    return "\n\n".join([*parts, text]) + not_measured(kept)


def _matrix(lines: Iterable[Line]) -> str:
    """Rows named *case: figure*, as a line a case and a column a figure."""
    cases: dict[str, dict[str, Line]] = {}
    for line in lines:
        case, _, what = line.what.partition(": ")
        cases.setdefault(case, {})[f"{what} ({line.unit})"] = line
    columns = list(dict.fromkeys(column for found in cases.values() for column in found))
    rows = (
        (case, *(found[column].value_text() if column in found else "" for column in columns))
        for case, found in cases.items()
    )
    return table(("", *columns), rows)


def _rows(lines: Sequence[Line]) -> str:
    rows = (
        (
            line.what,
            line.value_text(),
            line.unit,
            line.beside_text(),
            line.times_text(),
            line.goal_text() if first else "",
            {None: "", True: "met", False: "**missed**"}[line.met] if first else "",
        )
        for line, first in _with_goal_once(lines)
    )
    text = table(("what", "value", "unit", "in the same run", "times", "goal", ""), rows)
    if len(lines) > _FEW:
        text = f"<details><summary>all {len(lines)} rows</summary>\n\n{text}\n</details>\n"
    return text


def described(benchmark: str) -> str:
    """What the module of a benchmark says that it measures."""
    path = Path(__file__).parent / (module_name(benchmark).rpartition(".")[2] + ".py")
    text = ast.get_docstring(ast.parse(path.read_text()))
    if text is None:
        raise ValueError(f"{path} does not say what it measures")
    return text


def _measured(kept: Kept) -> str:
    of, stolen = kept.measured, kept.measured["stolen"]
    said = [
        f"Measured {of['date'][:16].replace('T', ' ')} UTC",
        f"at commit {of['commit'].rstrip('+')}" + (", with changes" if of["commit"].endswith("+") else ""),
        f"in {of['seconds']} s",
        _machine_was(kept),
        f"load {of['load_before']} before and {of['load_after']} after",
        *([f"{100 * stolen:.1f} % of the cores taken by the host"] if stolen else []),
        *(f"{name} {value}" for name, value in kept.options.items()),
    ]
    return ", ".join(said) + "."


def _machine_was(kept: Kept) -> str:
    return "quiet" if kept.quiet else "**under load**"


def _once(lines: Iterable[Line]) -> list[Line]:
    """The lines without those that have the same goal beside the same alternative."""
    return [line for line, first in _with_goal_once(lines) if first]


def _with_goal_once(lines: Iterable[Line]) -> Iterator[tuple[Line, bool]]:
    """The lines, and whether each is the first with its goal: a count stands beside several alternatives,
    and is one goal."""
    said = set()
    for line in lines:
        key = (line.benchmark, line.what, line.must, line.goal, None if line.goal is None else line.beside)
        yield line, key not in said
        said.add(key)


def _missed(line: Line) -> str:
    if line.must is not None:
        return f"{line.what}: {_valued(line)}, goal {figure(line.must)}"
    return f"{_beside(line)}: {figure(line.times or 0)} times, goal {line.goal_text()}"


def _valued(line: Line) -> str:
    return f"{figure(line.value)} {line.unit}"


def _beside(line: Line) -> str:
    return f"{line.what}: {_valued(line)} ({line.beside_text()})"


def _compared(line: Line) -> str:
    return f"[{line.benchmark}](#{line.benchmark}): {_beside(line)}"


def not_measured(kept: Kept) -> str:
    """The parts that failed, empty where none did."""
    entries = [f"{part.what}: {part.why}" for part in kept.failed]
    return f"\nNot measured:\n\n{listed(entries)}\n" if entries else ""


def listed(entries: Iterable[str]) -> str:
    """A list, or that there is nothing."""
    return "\n".join(f"- {entry}" for entry in entries) or "Nothing."


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )
