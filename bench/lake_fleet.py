"""What the driver of `refine` does for the lake of a large fleet, without Spark and without payloads: the
decision which rows of a pass are repeats, also where every row comes again as after a hub was restored, and
the table `seen` after a year.

`LEAVES=1000 python -m bench lake-fleet` for another number of leaves than 10,000.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from agent.contract import aggregate
from bench.result import Against, Result, Row, rounds
from hub_jobs.refine import dedup, plan
from hub_jobs.refine.dedup import EarlierRows, Wanted
from hub_jobs.tables import seen, seen_files
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.ranges import Numbers
from hub_jobs.tables.schemas import BRONZE, SEEN
from hub_jobs.tables.seen import SeenTable
from hub_jobs.tables.spaces import ID_COLUMNS, Places, batch_space
from hub_jobs.tables.stream_history import StreamHistory

_LEAVES: Final = 10_000
_CLASSES: Final = 5
_PASS: Final = plan.MAX_ROWS
_PASSES: Final = 4
_FILE_ROWS: Final = 250_000
_RUNS_A_YEAR: Final = 52
_HISTORY: Final = StreamHistory(aggregate(0), "2026-11-21T00:00:00Z")


@dataclass(frozen=True, slots=True)
class Fleet:
    """Spaces of a fleet, each the run of one class of one leaf."""

    leaves: int
    classes: int

    def rows(self, first: int, last: int, different: int) -> pa.Table:
        """Rows of bronze with these hub sequences: the next batch of each run in turns. After so many
        different ones the first batch comes again."""
        seqs = np.arange(first, last + 1)
        batch = (seqs - 1) % different
        space, n = batch % (self.leaves * self.classes), batch // (self.leaves * self.classes) + 1
        leaf, cls = space // self.classes, space % self.classes
        constant = np.zeros(seqs.size, dtype=np.int64)
        known = {
            "stream": _texts([_HISTORY.stream], constant),
            "created": _texts([_HISTORY.created], constant),
            "seq": pa.array(seqs),
            "payload": _texts(["{}"], constant).cast(pa.binary()),
            "digest": _digests(batch),
            "domain": _texts([f"edge-{number:05d}" for number in range(self.leaves)], leaf),
            "source_stream": _texts([f"TEL_edge-{number:05d}" for number in range(self.leaves)], leaf),
            "source_identity": _texts([f"{number:08x}" for number in range(self.classes)], cls),
            "source_seq": pa.array(n),
            "class": _texts([f"class-{number}" for number in range(self.classes)], cls),
            "run": _texts([_run(number, 0) for number in range(self.leaves)], leaf),
            "n": pa.array(n),
        }
        empty = pa.nulls(seqs.size)
        columns = [
            known[name] if name in known else empty.cast(BRONZE.field(name).type) for name in BRONZE.names
        ]
        return pa.table(columns, schema=BRONZE)


def _texts(names: list[str], codes: Numbers) -> pa.Array:
    return pa.array(names).take(pa.array(codes))


def _digests(numbers: Numbers) -> pa.Array:
    content = np.zeros((numbers.size, 2), dtype=">u8")
    content[:, 0] = numbers
    return pa.Array.from_buffers(pa.binary(16), numbers.size, [None, pa.py_buffer(content.tobytes())]).cast(
        pa.binary()
    )


def _run(leaf: int, number: int) -> str:
    return f"0192a{number:03x}-0000-7000-8000-{leaf:012x}"


def run() -> Result:
    """Measure all parts, each in a process of its own."""
    leaves = int(os.environ.get("LEAVES", _LEAVES))
    result = Result("lake-fleet", options={"leaves": str(leaves)})
    context = get_context("spawn")
    for part in (_decision, _all_again, _year):
        with result.part(part.__name__), ProcessPoolExecutor(1, context) as process:
            result.rows += process.submit(part, leaves).result()
    return result


def _decision(leaves: int) -> list[Row]:
    """Which rows of one pass are repeats, where none is one."""
    fleet = Fleet(leaves, _CLASSES)
    spaces = leaves * _CLASSES
    known = fleet.rows(1, spaces, spaces)
    rows = fleet.rows(spaces + 1, spaces + _PASS, spaces + _PASS).select(ID_COLUMNS)
    shuffled = rows.take(pa.array(np.random.default_rng(1).permutation(rows.num_rows)))
    seconds, yardstick = [], []
    for _ in range(rounds()):
        table = SeenTable()
        table.add(known)
        began = time.monotonic()
        places = Places.of(shuffled)
        decision = dedup.decide(shuffled, places, table.ranges, _nothing)
        table.add_placed(places)
        seconds.append(time.monotonic() - began)
        began = time.monotonic()
        shuffled.select(["domain", "class", "n"]).sort_by(
            [(name, "ascending") for name in ("domain", "class", "n")]
        )
        yardstick.append(time.monotonic() - began)
    if decision.repeated or decision.other_content:
        raise RuntimeError("rows that came once were taken for repeats")
    return [
        Row(
            f"refine decides on {_PASS:,} rows in {spaces:,} spaces",
            seconds,
            "s",
            2.0,
            Against("Arrow sorts them by domain, class and number", yardstick),
            least=True,
        )
    ]


def _nothing(_: Wanted) -> EarlierRows:
    return EarlierRows(np.zeros(0, dtype=np.int64), pa.array([], pa.binary()))


def _all_again(leaves: int) -> list[Row]:
    """Passes in which every row comes again."""
    fleet = Fleet(leaves, 1)
    different = _PASSES * _PASS
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory:
        lake = Path(directory)
        table = SeenTable()
        ensure_table(lake, "bronze")
        with PartWriter(lake, "bronze", 1) as writer:
            for first in range(1, 2 * different + 1, _FILE_ROWS):
                rows = fleet.rows(first, first + _FILE_ROWS - 1, different)
                writer.write(rows)
                if first <= different:
                    table.add(rows)
        ensure_table(lake, "bronze").commit(writer.files, {_HISTORY.ingested: 2 * different})
        ensure_table(lake, "readings").commit([], {_HISTORY.refined: different})
        table.save(lake, [StreamHistory(_HISTORY.stream, _HISTORY.created, different)])
        repeated, seconds = 0, []
        while repeated < different:
            bronze = ensure_table(lake, "bronze")
            tables = plan.RefineTables(
                bronze, ensure_table(lake, "readings"), ensure_table(lake, "quarantine")
            )
            began = time.monotonic()
            planned = plan.plan(tables)
            if planned is None:
                raise RuntimeError(f"{repeated:,} of {different:,} rows were taken for repeats")
            planned = plan.bounded(planned, 2)
            known = seen.load(lake, bronze, planned.before)
            decision = plan.decide(bronze, planned, known)
            plan.parts(lake, planned, decision, {}, {}, 2)
            known.save(lake, planned.after)
            seconds.append(time.monotonic() - began)
            tables.quarantine.commit([], planned.offsets)
            tables.readings.commit([], planned.offsets)
            repeated += sum(map(len, decision.repeated.values()))
    what = f"{leaves:,} leaves send {different:,} messages again: refine decides"
    return [
        Row(what, sum(seconds), "s", least=True),
        Row(f"{what}, the most memory", _megabytes(), "MB", least=True),
    ]


def _year(leaves: int) -> list[Row]:
    """The table `seen` with a run a leaf, class and week of a year."""
    fleet = Fleet(leaves, _CLASSES)
    spaces = leaves * _CLASSES
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory:
        lake = Path(directory)
        bronze = ensure_table(lake, "bronze")
        begun = [StreamHistory(_HISTORY.stream, _HISTORY.created, 0)]
        table = ensure_table(lake, "seen")
        with PartWriter(lake, "seen") as writer:
            for number in range(1, _RUNS_A_YEAR + 1):
                names = [
                    batch_space(f"edge-{leaf:05d}", f"class-{cls}", _run(leaf, number))
                    for leaf in range(leaves)
                    for cls in range(_CLASSES)
                ]
                ones, most = np.ones(spaces, dtype=np.int64), np.full(spaces, 600_000)
                known = pa.table(
                    [pa.array(names), pa.array(ones), pa.array(most), pa.nulls(spaces, pa.string())],
                    schema=SEEN,
                )
                writer.write(seen_files.sorted_rows(known))
        table.commit(writer.files, {})
        rows = fleet.rows(1, _PASS, _PASS).select(ID_COLUMNS)
        names = [
            batch_space(
                f"edge-{space // _CLASSES:05d}", f"class-{space % _CLASSES}", _run(space // _CLASSES, 0)
            )
            for space in range(spaces)
        ]
        before = _megabytes()
        loaded, saved = [], []
        for _ in range(rounds()):
            began = time.monotonic()
            known = seen.load(lake, bronze, begun)
            known.ranges(names)
            loaded.append(time.monotonic() - began)
            known.add(rows)
            began = time.monotonic()
            known.save(lake, begun)
            saved.append(time.monotonic() - began)
        after = _megabytes()
        began = time.monotonic()
        known.numbers()
        whole = time.monotonic() - began
    what = f"`seen` of {_RUNS_A_YEAR * spaces:,} runs"
    return [
        Row(
            f"{what}: what a pass of {spaces:,} spaces needs of it",
            loaded,
            "s",
            0.1,
            Against("all of it as a dictionary", [whole] * len(loaded)),
            least=True,
        ),
        Row(
            f"{what}: saved after a pass",
            saved,
            "s",
            0.05,
            Against("all of it as a dictionary", [whole] * len(saved)),
            least=True,
        ),
        Row(f"{what}: what a pass adds to the most memory", after - before, "MB", least=True),
    ]


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
