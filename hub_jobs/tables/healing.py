"""Files that another program wrote and that are read well, but slowly or by few readers: they are written
again as the jobs write them."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.tables.compaction import rewrite
from hub_jobs.tables.delta import Table
from hub_jobs.tables.histories import held
from hub_jobs.tables.parquet import PartFile, is_own
from hub_jobs.tables.places import Place, parquet_file
from hub_jobs.tables.scan import bounds, files
from hub_jobs.tables.schemas import STATISTICS
from hub_jobs.tables.types import usual


def ailing(table: Table) -> list[str]:
    """The files of other programs, by their paths below the table, of which the log does not say all bounds,
    whose types are unusual, or which hold rows of several histories."""
    found = files(table)
    paths, counts = found["path"].to_pylist(), bounds(found, "num_records")
    unbounded = set().union(*(_unbounded(found, name, counts) for name in STATISTICS[table.name]))
    several = _several(table)
    return [
        path
        for at, path in enumerate(paths)
        if not is_own(path) and (at in unbounded or path in several or _is_unusual(table.path / path))
    ]


def _unbounded(found: pa.Table, name: str, counts: list[int | None]) -> set[int]:
    """Which of some files hold values of a column, and the log does not say between which bounds."""
    least, nulls = bounds(found, f"min.{name}"), bounds(found, f"null_count.{name}")
    return {
        at for at, count in enumerate(counts) if least[at] is None and (count is None or nulls[at] != count)
    }


def healed(lake: Place, table: Table, path: str) -> list[PartFile]:
    """What is to take the place of a file: of bronze a file for each history."""
    if table.name != "bronze":
        return rewrite(lake, table, [path])
    histories = sorted(one.history for one in held(table) if one.path == path)
    return [file for one in histories for file in rewrite(lake, table, [path], partial(_of, one))]


def _of(history: tuple[str, str], rows: pa.Table) -> pa.Table:
    stream, created = history
    return rows.filter(pc.and_(pc.equal(rows["stream"], stream), pc.equal(rows["created"], created)))


def _several(table: Table) -> set[str]:
    if table.name != "bronze":
        return set()
    return {path for path, count in Counter(one.path for one in held(table)).items() if count > 1}


def _is_unusual(path: Place) -> bool:
    with parquet_file(path) as file:
        schema = file.schema
    return bool(usual(schema.empty_table()).schema != schema)
