"""What a file of a table comes to when its contents are compared: of bronze what its payloads hold, decoded
as refine does, of readings and quarantine what is there. Sums only, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.audit import content_hash, count_rows
from hub_jobs.audit.count_rows import BATCH, HISTORY, SOURCE
from hub_jobs.audit.scan import FileShare
from hub_jobs.refine.messages import QuarantineReason
from hub_jobs.refine.readings import Refiner
from hub_jobs.tables.places import parquet_file
from hub_jobs.tables.schemas import BRONZE, digest

NAMES: Final = (*BATCH, *SOURCE, *HISTORY)
_AT_ONCE: Final = 256
_MESSAGE: Final = (*HISTORY, "seq")
_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
_FIELDS: Final = [pa.field(name, _TEXT) for name in NAMES]
MESSAGES: Final = pa.schema(
    [
        *_FIELDS,
        *((name, pa.int64()) for name in ("n", "source_seq", "seq", "content", "read", "named")),
        *((name, pa.bool_()) for name in ("refined", "known")),
    ]
)
"""A row a message of bronze: the sums of what its readings and its lines in quarantine should be; not `known`
where its payload was dropped."""
READ: Final = pa.schema([*_FIELDS[:5], ("n", pa.int64()), ("source_seq", pa.int64()), ("sum", pa.int64())])
"""A row a batch or place and file: the sum of its readings there."""
NAMED: Final = pa.schema([*_FIELDS[5:], ("seq", pa.int64()), ("sum", pa.int64()), ("other", pa.bool_())])
"""A row a row of quarantine; `other` for a message that came with other content than an earlier one."""


@dataclass(slots=True)
class Contents:
    """What a file comes to, and the messages of bronze whose payload is not that of their digest."""

    rows: pa.Table
    changed: list[tuple[str, str, int]] = field(default_factory=list)


def of_file(piece: FileShare, secret: bytes) -> Contents:
    """What a file comes to. Raises `UnreadableError`."""
    if piece.table == "bronze":
        return _bronze(piece, secret)
    parts = [_SMALL[piece.table](_shared(one, piece), secret) for one in _groups(piece)]
    schema = READ if piece.table == "readings" else NAMED
    return Contents(pa.concat_tables([schema.empty_table(), *parts]).unify_dictionaries())


def _groups(piece: FileShare) -> Iterator[pa.Table]:
    with parquet_file(piece.path) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, use_threads=False)


def _shared(rows: pa.Table, piece: FileShare) -> pa.Table:
    """The rows that are of the share; of quarantine, which is small and known by its messages, all."""
    if piece.share.of == 1 or piece.table == "quarantine":
        return rows
    numbers = pc.fill_null(pc.coalesce(rows["n"], rows["source_seq"]), 0).to_numpy()
    return rows.filter(pa.array(piece.share.holds(numbers)))


def _readings(rows: pa.Table, secret: bytes) -> pa.Table:
    return _coded(_summed(rows, secret), READ)


def _summed(rows: pa.Table, secret: bytes) -> pa.Table:
    """The sums of readings by the batch or the place that they name."""
    texts = {name: rows[name].cast(pa.string()) for name in (*BATCH, *SOURCE)}
    numbers = {name: rows[name] for name in ("n", "source_seq")}
    found = pa.table({**texts, **numbers, "sum": content_hash.of_readings(rows, secret)})
    keys = [*texts, *numbers]
    return found.group_by(keys).aggregate([("sum", "sum")]).rename_columns([*keys, "sum"])


def _quarantine(rows: pa.Table, secret: bytes) -> pa.Table:
    pairs = zip(rows["line"].to_pylist(), rows["excerpt"].to_pylist(), strict=True)
    found = {
        **{name: rows[name] for name in (*HISTORY, "seq")},
        "sum": pa.array([content_hash.of_line(line, text, secret) for line, text in pairs], pa.int64()),
        "other": pc.equal(rows["reason"], str(QuarantineReason.OTHER_CONTENT)),
    }
    return _coded(pa.table(found), NAMED)


_SMALL: Final = {"readings": _readings, "quarantine": _quarantine}


def _coded(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = {}
    for name, kind in zip(schema.names, schema.types, strict=True):
        column = rows[name]
        columns[name] = column.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else column
    return pa.table(columns, schema=schema)


def _bronze(piece: FileShare, secret: bytes) -> Contents:
    rows: list[pa.Table] = []
    changed: list[tuple[str, str, int]] = []
    with parquet_file(piece.path) as file:
        for group in range(file.num_row_groups):
            table = _shared(file.read_row_group(group, columns=BRONZE.names, use_threads=False), piece)
            for at in range(0, table.num_rows, _AT_ONCE):
                part = table.slice(at, _AT_ONCE)
                rows.append(_messages(part, piece, secret))
                changed += _changed(part)
    return Contents(pa.concat_tables([MESSAGES.empty_table(), *rows]).unify_dictionaries(), changed)


def _changed(rows: pa.Table) -> list[tuple[str, str, int]]:
    columns = [rows[name].to_pylist() for name in (*HISTORY, "seq", "payload", "digest")]
    return [
        (stream, created, seq)
        for stream, created, seq, payload, given in zip(*columns, strict=True)
        if payload is not None and digest(payload) != given
    ]


def _messages(rows: pa.Table, piece: FileShare, secret: bytes) -> pa.Table:
    arrived = rows.column_names.index("arrived")
    plain = rows.set_column(arrived, "arrived", rows["arrived"].cast(pa.int64()))
    refined = count_rows.upto(rows, piece.offsets)
    sums = _expected(plain.to_pylist(), secret)
    contents = b"".join((one or b"")[:8].ljust(8, b"\0") for one in rows["digest"].to_pylist())
    found = {
        **{name: rows[name] for name in (*NAMES, "seq")},
        "n": pc.fill_null(rows["n"], -1),
        "source_seq": pc.fill_null(rows["source_seq"], -1),
        "content": np.frombuffer(contents, np.int64),
        "read": pa.array([read for read, _ in sums], pa.int64()),
        "named": pa.array([named for _, named in sums], pa.int64()),
        "refined": refined,
        "known": pc.is_valid(rows["payload"]),
    }
    return _coded(pa.table(found), MESSAGES)


def _expected(rows: list[dict[str, Any]], secret: bytes) -> list[tuple[int, int]]:
    """Of each message the sums of the readings that it holds, and of its lines that are none."""
    if len({_key(row) for row in rows}) < len(rows):
        # Two copies of one key: what is decoded does not say of which it came.
        return [one for row in rows for one in _decoded([row], secret)]
    return _decoded(rows, secret)


def _decoded(rows: list[dict[str, Any]], secret: bytes) -> list[tuple[int, int]]:
    refiner = Refiner()
    tables = [table for row in rows if row["payload"] is not None for table in refiner.take(row)]
    at = {_key(row): number for number, row in enumerate(rows)}
    messages = {tuple(row[name] for name in _MESSAGE): number for number, row in enumerate(rows)}
    read: list[list[int]] = [[] for _ in rows]
    for table in [*tables, refiner.drain()]:
        for one in _summed(table, secret).to_pylist():
            read[at[_key(one)]].append(one["sum"])
    named: list[list[int]] = [[] for _ in rows]
    for refused in refiner.refused:
        message = tuple(getattr(refused.message, name) for name in _MESSAGE)
        named[messages[message]].append(content_hash.of_line(refused.line, refused.excerpt, secret))
    return [
        (content_hash.total(some), content_hash.total(others))
        for some, others in zip(read, named, strict=True)
    ]


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    """By which key a reading says of which message it came."""
    if row["n"] is not None:
        return tuple(row[name] for name in (*BATCH, "n"))
    return tuple(row[name] for name in (*SOURCE, "source_seq"))
