"""Decodes rows of `bronze` on an executor for `refine` and `replay`; the driver commits all files or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import Correction
from hub_jobs.refine.clocks import PLACED, Batch, Corrections, SealTime, errors_in, with_errors
from hub_jobs.refine.direct import DirectReadings
from hub_jobs.refine.messages import QuarantineReason
from hub_jobs.refine.readings import CHUNK_ROWS, Refiner, quarantine_table
from hub_jobs.tables.grouping import plain_texts
from hub_jobs.tables.parquet import PartFile, PartWriter
from hub_jobs.tables.parquet_reading import parquet_file
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import History

_COLUMNS = (
    "stream",
    "created",
    "seq",
    "arrived",
    "subject",
    "headers",
    "payload",
    "domain",
    "source_stream",
    "source_identity",
    "source_seq",
    "class",
    "run",
    "n",
    "count",
)

_CODED: Final = ("stream", "created", "subject", "domain", "source_stream", "source_identity", "class", "run")
"""Columns read as dictionaries, since their texts repeat."""

_QUARANTINE_ROWS = 4096


@dataclass(frozen=True, slots=True)
class RefinePart:
    """Files of bronze and the rows to refine."""

    lake: Place
    paths: list[Place]
    history: History
    """Only rows of this history,"""
    after: int
    """with sequences above this"""
    to: int
    """and up to this."""
    repeated: frozenset[int] = frozenset()
    """Dropped sequences of repeats."""
    other_content: Mapping[int, str] = field(default_factory=dict)
    """Sequences to quarantine whole, with the reason."""
    quarantined: frozenset[tuple[int, int | None]] = frozenset()
    """Sequences and lines already in quarantine."""
    corrections: Corrections = field(default_factory=dict)
    """Clock corrections."""
    only: frozenset[int] | None = None
    """If set, the only sequences to refine."""


@dataclass(frozen=True, slots=True)
class Refined:
    """Files of both tables."""

    readings: list[PartFile]
    quarantine: list[PartFile]


@dataclass(frozen=True, slots=True)
class CorrectPart:
    """A file of readings, and batches whose times may need correction."""

    lake: Place
    path: Place
    corrections: tuple[Correction, ...]
    sealed: Mapping[Batch, SealTime]


@dataclass(frozen=True, slots=True)
class Corrected:
    """Replacement files and the number of corrected rows; empty when none."""

    files: list[PartFile]
    rows: int


def correct(part: CorrectPart) -> Corrected:
    """Rewrite a file of readings if it has wrong times."""
    with parquet_file(part.path) as file:
        groups = [file.read_row_group(at, columns=list(PLACED)) for at in range(file.num_row_groups)]
        errors = [errors_in(group, part.corrections, part.sealed) for group in groups]
        count = sum(int(np.count_nonzero(of_group)) for of_group in errors)
        if not count:
            return Corrected([], 0)
        with PartWriter(part.lake, "readings") as writer:
            for at, error in enumerate(errors):
                writer.write(with_errors(file.read_row_group(at), error))
        return Corrected(writer.files, count)


def refine(part: RefinePart) -> Refined:
    """Decode rows of bronze and write the results."""
    refiner = Refiner(part.corrections)
    with PartWriter(part.lake, "readings") as readings, PartWriter(part.lake, "quarantine") as quarantine:

        def write_quarantine(least: int) -> None:
            if len(refiner.quarantined) >= least:
                entries = [
                    entry
                    for entry in refiner.quarantined
                    if (entry.message.seq, entry.line) not in part.quarantined
                ]
                refiner.quarantined.clear()
                quarantine.write(quarantine_table(entries))

        direct = DirectReadings()
        for rows in (rows for path in part.paths for rows in _rows(path, part)):
            for row in plain_texts(direct.add(rows)).to_pylist():
                if row["seq"] in part.other_content:
                    refiner.quarantine(row, QuarantineReason.OTHER_CONTENT, part.other_content[row["seq"]])
                    continue
                if row["payload"] is None:
                    refiner.quarantine(
                        row,
                        QuarantineReason.THINNED,
                        "maintain dropped the payload before it was refined again",
                    )
                    continue
                for chunk in refiner.add(row):
                    readings.write(chunk)
                    write_quarantine(_QUARANTINE_ROWS)
                write_quarantine(_QUARANTINE_ROWS)
            if direct.size >= CHUNK_ROWS:
                readings.write(direct.drain())
        readings.write(direct.drain())
        readings.write(refiner.drain())
        write_quarantine(1)
    return Refined(readings.files, quarantine.files)


def _rows(path: Place, part: RefinePart) -> Iterator[pa.Table]:
    """Yield the rows to refine, with `arrived` in microseconds, one row group at a time."""
    with parquet_file(path, read_dictionary=_CODED) as file:
        for group in range(file.num_row_groups):
            first, last = file.bounds(group, "seq") or (part.to, part.to)
            if first > part.to or last <= part.after:
                continue
            table = file.read_row_group(group, columns=list(_COLUMNS))
            arrived = table["arrived"].cast(pa.int64())
            table = table.set_column(table.column_names.index("arrived"), "arrived", arrived)
            wanted = _is_wanted(table, part)
            yield table if pc.all(wanted).as_py() else table.filter(wanted)


def _is_wanted(table: pa.Table, part: RefinePart) -> Any:
    seq, (stream, created) = table["seq"], part.history
    conditions = [
        _is_text(table["stream"], stream),
        _is_text(table["created"], created),
        pc.greater(seq, part.after),
        pc.less_equal(seq, part.to),
    ]
    if part.repeated:
        conditions.append(pc.invert(pc.is_in(seq, value_set=pa.array(sorted(part.repeated)))))
    if part.only is not None:
        conditions.append(pc.is_in(seq, value_set=pa.array(sorted(part.only), pa.int64())))
    return reduce(pc.and_, conditions)


def _is_text(coded: pa.ChunkedArray, text: str) -> pa.ChunkedArray:
    """Compare a dictionary column with a text, once per distinct value."""
    pieces = (pc.equal(piece.dictionary, text).take(piece.indices) for piece in coded.chunks)
    return pa.chunked_array(pieces, pa.bool_())
