"""A small lake in order, and what to do to a copy of it. Two ingests and two refines filled it, so that there
is an older version of each table; every table has two files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from agent.contract import Ledger, Letter, Readings, StreamState
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.scan import rows
from hub_jobs.tables.schemas import digest
from tests.spark.lakes import add_bronze, commit
from tests.unit.hub_jobs.refined import refine_all
from tests.unit.hub_jobs.rows import RUN, batch_row, dead_row, direct_row, ledger_row

Change = Callable[[pa.Table], pa.Table]

LINES = 10
SAID = Ledger(
    *("edge-1", "normal", RUN, 7, ((1, 7),)),
    Readings(accepted=62, stored=60, dead=2),
    StreamState("now", 1, 11),
    final=True,
)
LETTERS = b"".join(Letter(b"21,5", "/var/log/x:17", "not JSON").encode() + b"\n" for _ in range(2))


def _batch(n: int, bad: int | None = None) -> dict[str, Any]:
    """Ten readings that are all different; the line `bad` is none."""
    lines = [
        b'{"ts":"2026-11-21T00:%02d:%02dZ","device":"pump-%d","metric":"m%d","value":%d.5,"tags":{"at":"%d"}}\n'
        % (n, at, n, at, n * 100 + at, at)
        for at in range(LINES)
    ]
    if bad is not None:
        lines[bad] = b"bad\n"
    return batch_row(b"".join(lines), n=n)


def make(lake: Path, later: Sequence[dict[str, Any]] = ()) -> None:
    """Fill an empty lake, with other rows between its two parts. Batch 2 has a bad line, the payload of batch
    5 can't be unpacked, 6 holds texts, 7
    dead letters; the second message of a device is none."""
    texts = batch_row(b'{"metric":"state","value":"open","tags":{"a":"b"}}\n' * LINES, n=6)
    wrong = batch_row(b"", n=5, count=LINES) | {"payload": b"no zstd", "digest": digest(b"no zstd")}
    parts = [
        [_batch(1), _batch(2, bad=4), _batch(3), direct_row(b"21.5"), direct_row(b"no")],
        [_batch(4), wrong, texts, dead_row(LETTERS, 7), direct_row(b'"on"'), ledger_row(SAID)],
    ]
    for at, given in enumerate(parts):
        numbered = [row | {"source_seq": seq} for seq, row in enumerate(given, 5 * at + 1)]
        add_bronze(lake, numbered)
        refine_all(lake)
        if later and not at:
            add_bronze(lake, later)
            refine_all(lake)


def newest(lake: Path, table: str) -> Path:
    """The file of a table that was committed last."""
    return _files(lake, table)[-1]


def oldest(lake: Path, table: str) -> Path:
    """The file of a table that was committed first."""
    return _files(lake, table)[0]


def _files(lake: Path, table: str) -> list[Path]:
    return sorted((lake / table).glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)


def appended(lake: Path, table: str, choose: Change) -> None:
    """Add rows to a table, made from some that it holds."""
    at = ensure_table(lake, table)
    commit(lake, table, choose(rows(at, at.schema.names)).cast(at.schema))


def out_of_log(lake: Path, table: str) -> None:
    """Have the log no longer name the newest file, which stays on the disk."""
    ensure_table(lake, table).rewrite([], [newest(lake, table).name], changed=True)


def twice_in_log(lake: Path, table: str) -> None:
    """Have the log name the rows of the newest file a second time, under another file."""
    file = newest(lake, table)
    copy = file.with_name(f"copy-{file.name}")
    shutil.copy(file, copy)
    log = sorted((lake / table / "_delta_log").glob("*.json"))
    entries = [json.loads(line) for entry in log for line in entry.read_text().splitlines()]
    (add,) = [entry["add"] for entry in entries if entry.get("add", {}).get("path") == file.name]
    entry = {"add": {**add, "path": copy.name}}
    (lake / table / "_delta_log" / f"{len(log):020}.json").write_text(json.dumps(entry) + "\n")


def back_by_log(lake: Path, table: str) -> None:
    """Take the last entry away from a table's log: it is then what it was before."""
    sorted((lake / table / "_delta_log").glob("*.json"))[-1].unlink()


def restored(lake: Path, table: str) -> None:
    """Restore a table by delta-rs to its version 1."""
    DeltaTable(str(lake / table)).restore(1)


def deleted(lake: Path, table: str) -> None:
    """Delete a table, files and log."""
    shutil.rmtree(lake / table)
