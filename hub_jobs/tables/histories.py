"""What each file of `bronze` holds of which history of a stream.

A file that the jobs wrote holds rows of one history, and the log says which. Other programs write rows of
several histories together, and may leave bounds out or shorten them: such a file is looked into.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.tables.delta import Table
from hub_jobs.tables.places import Place, parquet_columns
from hub_jobs.tables.scan import bounds, files

_BOUNDS: Final = (
    "min.stream",
    "max.stream",
    "min.created",
    "max.created",
    "min.seq",
    "max.seq",
    "max.arrived",
)


class FileHistory(NamedTuple):
    """What a file holds of one history, by stream and `created`: its first and last sequence, its latest
    arrival, its rows, and its share of the file's bytes. `path` is below the table."""

    history: tuple[str, str]
    path: str
    first: int
    last: int
    arrived: datetime
    rows: int
    size: int


def held(bronze: Table) -> list[FileHistory]:
    """All that the files of a snapshot hold."""
    found = files(bronze)
    columns = [bounds(found, name) for name in (*_BOUNDS, "num_records", "path", "size_bytes")]
    return [one for row in zip(*columns, strict=True) for one in _of_file(bronze, *row)]


def _of_file(bronze: Table, *row: Any) -> Iterator[FileHistory]:
    stream, stream_to, created, created_to, first, last, arrived, rows, path, size = row
    is_one = stream == stream_to and created == created_to
    if is_one and None not in (stream, created, first, last, arrived, rows):
        yield FileHistory((stream, created), path, first, last, arrived, rows, size)
        return
    parts = _looked_into(bronze.path / path)
    total = sum(part["seq_count"] for part in parts)
    for part in parts:
        yield FileHistory(
            (part["stream"], part["created"]),
            path,
            part["seq_min"],
            part["seq_max"],
            part["arrived_max"],
            part["seq_count"],
            size * part["seq_count"] // total,
        )


@lru_cache(maxsize=10_000)
def _looked_into(path: Place) -> list[dict[str, Any]]:
    """A file is never changed, so it is looked into once."""
    rows: pa.Table = parquet_columns(path, ["stream", "created", "seq", "arrived"])
    grouped = rows.group_by(["stream", "created"]).aggregate(
        [("seq", "min"), ("seq", "max"), ("seq", "count"), ("arrived", "max")]
    )
    found: list[dict[str, Any]] = grouped.filter(pc.is_valid(grouped["stream"])).to_pylist()
    return found
