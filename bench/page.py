"""docs/benchmarks.md from the kept results. Pure: every figure on the page is one of theirs, and what a
benchmark measures is said by the docstring of its module."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from bench import NAMES, module_name
from bench.kept import Kept, Line, figure

_FEW: Final = 16
"""More rows than these are folded."""
_ALIKE: Final = 1.1
_HEAD: Final = """\
# Benchmarks

Made by `make bench-report` from the results in `bench/results/`; every figure here is one of theirs.
`make bench NAME=ingest` runs a benchmark and writes `build/bench/ingest.json`; `make bench-report` keeps what
was run since, and makes this page and its pictures again.

Load, servers, Spark and what is measured share the cores of one machine, and often it had other work: *load*
is how many processes ran or waited, on average, in the minute before a benchmark began. So a ratio to what
was measured in the same run says more than a figure. Above one it is better than the alternative, whatever
the unit. A goal stays where it is missed.

![How many times as good as its alternatives each benchmark found Petiole](images/bench-ratios.svg)
"""


def page(results: Mapping[str, Kept], pictures: Iterable[str]) -> str:
    """The whole page. `pictures` are the benchmarks that have one."""
    drawn = set(pictures)
    parts = [_HEAD, _goals(results), _not_better(list(results.values())), _machines(list(results.values()))]
    parts += [_benchmark(results[name], name in drawn) for name in NAMES if name in results]
    return "\n".join(parts)


def _goals(results: Mapping[str, Kept]) -> str:
    rows: list[tuple[object, ...]] = []
    for name in NAMES:
        if (kept := results.get(name)) is None:
            rows.append((name, "not run", "", ""))
            continue
        with_goal = _once(line for line in kept.lines if line.met is not None)
        missed = sum(not line.met for line in with_goal)
        rows.append((f"[{name}](#{name})", kept.measured["date"][:10], len(with_goal) - missed, missed))
    return f"## Goals\n\n{_table(('benchmark', 'run', 'goals met', 'goals missed'), rows)}"


def _not_better(results: Sequence[Kept]) -> str:
    lines = [line for kept in results for line in kept.lines]
    missed = _once(line for line in lines if line.met is False)
    compared = [line for line in lines if line.ratio is not None]
    worse = [line for line in compared if line.ratio and line.ratio < 1]
    alike = [line for line in compared if line.ratio and 1 <= line.ratio < _ALIKE]
    parts = [
        "## What is not better",
        "### Goals missed",
        _list(f"{_named(line)}: {_valued(line)}, goal {figure(line.goal or 0)}" for line in missed),
        "### Worse than the alternative of the same run",
        _list(map(_compared, worse)),
        f"### Less than {100 * (_ALIKE - 1):.0f} % better, which one run on a shared machine cannot tell",
        _list(map(_compared, alike)),
    ]
    return "\n\n".join(parts) + "\n"


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
        parts.append(_table(("what", "which"), described))
    return "\n\n".join(parts)


def _benchmark(kept: Kept, drawn: bool) -> str:
    parts = [f"## {kept.benchmark}", described(kept.benchmark), _measured(kept)]
    if drawn:
        parts.append(f"![{kept.benchmark} beside its alternatives](images/bench-{kept.benchmark}.svg)")
    rows = (
        (
            line.what,
            figure(line.value),
            line.unit,
            "" if line.goal is None else figure(line.goal),
            {None: "", True: "met", False: "**missed**"}[line.met],
            line.beside_text(),
            "" if line.ratio is None else figure(line.ratio),
        )
        for line in kept.lines
    )
    table = _table(("what", "value", "unit", "goal", "", "in the same run", "ratio"), rows)
    if len(kept.lines) > _FEW:
        table = f"<details><summary>all {len(kept.lines)} rows</summary>\n\n{table}\n</details>\n"
    return "\n\n".join([*parts, table])


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
        f"load {of['load_before']} before and {of['load_after']} after",
        *([f"{100 * stolen:.1f} % of the cores taken by the host"] if stolen else []),
        *(f"{name} {value}" for name, value in kept.options.items()),
    ]
    return ", ".join(said) + "."


def _once(lines: Iterable[Line]) -> list[Line]:
    """The lines without those that differ only in their alternative."""
    return [next(group) for _, group in groupby(lines, key=lambda one: (one.benchmark, one.what, one.goal))]


def _named(line: Line) -> str:
    return f"[{line.benchmark}](#{line.benchmark}): {line.what}"


def _valued(line: Line) -> str:
    return f"{figure(line.value)} {line.unit}"


def _compared(line: Line) -> str:
    return f"{_named(line)}: {_valued(line)} ({line.beside_text()})"


def _list(entries: Iterable[str]) -> str:
    return "\n".join(f"- {entry}" for entry in entries) or "Nothing."


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )
