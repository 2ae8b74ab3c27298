"""What an executor does for `refine` and `replay`: it decodes rows of `bronze` into files of `readings` and
`quarantine`, and names them to the driver, which commits all or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from agent.contract import Correction
from hub_jobs.refine.clocks import PLACED, Batch, Corrections, SealTime, errors_in, with_errors
from hub_jobs.refine.messages import QuarantineReason
from hub_jobs.refine.readings import Refiner, quarantine_table
from hub_jobs.tables.parquet import PartFile, PartWriter
from hub_jobs.tables.places import Place, parquet_file
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

_QUARANTINE_ROWS = 4096


@dataclass(frozen=True, slots=True)
class RefinePart:
    """Files of bronze, and which of their rows are to be refined: of one `history` sequences above `after` up
    to `to`, without `repeated`. Those in `other_content` go to quarantine, and so does nothing in `named`,
    (sequence, line) of what is there already. `corrections` are of clocks that were wrong. With `only` no
    other sequences are."""

    lake: Place
    paths: list[Place]
    history: History
    after: int
    to: int
    repeated: frozenset[int] = frozenset()
    other_content: Mapping[int, str] = field(default_factory=dict)
    named: frozenset[tuple[int, int | None]] = frozenset()
    corrections: Corrections = field(default_factory=dict)
    only: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Refined:
    """Files of both tables."""

    readings: list[PartFile]
    quarantine: list[PartFile]


@dataclass(frozen=True, slots=True)
class CorrectPart:
    """A file of readings, and the batches that may have times which these corrections are about."""

    lake: Place
    path: Place
    corrections: tuple[Correction, ...]
    sealed: Mapping[Batch, SealTime]


@dataclass(frozen=True, slots=True)
class Corrected:
    """The files that take its place, and how many rows are corrected in them; neither when none had to be."""

    files: list[PartFile]
    rows: int


def correct(part: CorrectPart) -> Corrected:
    """Write a file of readings again with its times corrected, if it has a wrong one."""
    with parquet_file(part.path) as file:
        groups = [file.read_row_group(at, columns=list(PLACED)) for at in range(file.num_row_groups)]
        found = [errors_in(group, part.corrections, part.sealed) for group in groups]
        count = sum(int(np.count_nonzero(one)) for one in found)
        if not count:
            return Corrected([], 0)
        with PartWriter(part.lake, "readings") as writer:
            for at, error in enumerate(found):
                writer.write(with_errors(file.read_row_group(at), error))
        return Corrected(writer.files, count)


def refine(part: RefinePart) -> Refined:
    """Decode rows of bronze and write what they hold."""
    refiner = Refiner(part.corrections)
    with PartWriter(part.lake, "readings") as readings, PartWriter(part.lake, "quarantine") as quarantine:

        def name_refused(least: int) -> None:
            if len(refiner.refused) >= least:
                kept = [one for one in refiner.refused if (one.message.seq, one.line) not in part.named]
                refiner.refused.clear()
                quarantine.write(quarantine_table(kept))

        for row in (row for path in part.paths for row in _rows(path, part)):
            if row["seq"] in part.other_content:
                refiner.refuse(row, QuarantineReason.OTHER_CONTENT, part.other_content[row["seq"]])
                continue
            if row["payload"] is None:
                refiner.refuse(
                    row, QuarantineReason.THINNED, "maintain dropped the payload before it was refined again"
                )
                continue
            for chunk in refiner.take(row):
                readings.write(chunk)
                name_refused(_QUARANTINE_ROWS)
            name_refused(_QUARANTINE_ROWS)
        readings.write(refiner.drain())
        name_refused(1)
    return Refined(readings.files, quarantine.files)


def _rows(path: Place, part: RefinePart) -> Any:
    """The rows to refine, a row group in memory at a time."""
    with parquet_file(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=list(_COLUMNS))
            table = table.set_column(
                table.column_names.index("arrived"), "arrived", table["arrived"].cast(pa.int64())
            )
            for row in table.to_pylist():
                if (row["stream"], row["created"]) == part.history and _is_wanted(row["seq"], part):
                    yield row


def _is_wanted(seq: int, part: RefinePart) -> bool:
    if part.only is not None and seq not in part.only:
        return False
    return part.after < seq <= part.to and seq not in part.repeated
