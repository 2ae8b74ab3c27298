"""Lakes as tests fill and read them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from agent.contract import Exit
from hub_jobs.audit import run as audit
from hub_jobs.tables.delta import ensure_table, open_table
from hub_jobs.tables.parquet import write_rows
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import rows
from hub_jobs.tables.schemas import BRONZE, SCHEMAS
from hub_jobs.tables.stream_history import StreamHistory

JOB_SECONDS = 300

DRIVER = """
import os, signal, sys
from types import SimpleNamespace
from hub_jobs.spark import session
session.session = lambda _: SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
session.run_tasks = lambda _, task, work: [task(part) for part in work]
from hub_jobs.tables.delta import Table
"""
"""How a driver begins that does its tasks itself: what is tested is its end, and no Java machine has to start
on a busy machine."""


def contents(lake: Place, name: str, *columns: str) -> list[Any]:
    """The rows of a table as tuples of some columns (bare values for one), sorted; none without a table."""
    table = open_table(lake, name)
    if table is None:
        return []
    found = rows(table, columns or SCHEMAS[name].names)
    return sorted(_tuples(found, columns), key=str)


def _tuples(found: pa.Table, columns: Sequence[str]) -> list[Any]:
    lists = [found[name].to_pylist() for name in found.column_names]
    return lists[0] if len(columns) == 1 else list(zip(*lists, strict=True))


def commit(lake: Path, name: str, given: pa.Table | list[dict[str, Any]], *, replace: bool = False) -> None:
    """Add rows to a table as any writer may, or put them in the place of all that it holds."""
    table = ensure_table(lake, name)
    added = pa.Table.from_pylist(given, SCHEMAS[name]) if isinstance(given, list) else given
    table.commit(write_rows(lake, name, added), {}, replace=replace)


def replaced(lake: Path, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Plant a fault: other rows in the place of all that a table holds, behind the jobs' back."""
    commit(lake, name, change(rows(ensure_table(lake, name), SCHEMAS[name].names)), replace=True)


def audited(lake: Path, *options: str) -> tuple[Exit, dict[str, Any]]:
    """The exit code of an audit, and its report."""
    file = lake.with_suffix(".json")
    code = audit.main(["--lake", str(lake), "--json", str(file), *options])
    return code, json.loads(file.read_text())


def told(lake: Path, *options: str) -> tuple[Exit, dict[str | None, dict[str, Any]], str]:
    """The exit code of an audit, its accounts by run, and all its findings."""
    code, report = audited(lake, *options)
    return code, {row["run"]: row for row in report["rows"]}, "\n".join(report["findings"])


def orphans(lake: Path, name: str) -> int:
    """How many Parquet files of a table no commit names."""
    table = open_table(lake, name)
    assert table is not None
    return len(list((lake / name).glob("*.parquet"))) - len(table.delta.file_uris())


def killed(script: Path, program: str, seconds: float = JOB_SECONDS) -> None:
    """Run a program of its own that ends itself by SIGKILL, and wait until it has."""
    code, said = run_program(script, program, seconds)
    assert code == -signal.SIGKILL, (code, said)


def run_program(script: Path, program: str, seconds: float = JOB_SECONDS) -> tuple[int, str]:
    """Run a program of its own; how it ended, and what it said on standard error."""
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    return done.returncode, done.stderr


def add_bronze(
    lake: Place, given: Sequence[dict[str, Any]], files: int = 1, *, numbered: bool = False
) -> None:
    """Commit rows as `ingest` does, in so many files; their sequences follow on the last one of their
    stream and incarnation, unless they are `numbered`."""
    for name in sorted({(row["stream"], row["created"]) for row in given}):
        table = ensure_table(lake, "bronze")
        history = StreamHistory(*name)
        last = table.offset(history.ingested) or 0
        chosen = [row for row in given if (row["stream"], row["created"]) == name]
        if not numbered:
            chosen = [{**row, "seq": last + at} for at, row in enumerate(chosen, 1)]
        written = []
        for part in range(files):
            written += write_rows(lake, "bronze", pa.Table.from_pylist(chosen[part::files], BRONZE))
        table.commit(written, {history.ingested: max(row["seq"] for row in chosen)})
