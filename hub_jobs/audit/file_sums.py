"""Computes content sums of one file: decoded payloads for bronze, rows for readings and quarantine.

Keeps only sums, for bounded memory. A secret per audit keys the hashes, so that no writer can choose contents
with equal sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.audit.rows.lookups import refinable
from hub_jobs.audit.rows.pieces import FileShare
from hub_jobs.refine.messages import QuarantineReason
from hub_jobs.tables.parquet_reading import parquet_file
from hub_jobs.tables.ranges import Numbers, marks
from hub_jobs.tables.schemas import BRONZE, TIME, digest
from hub_jobs.tables.spaces import BATCH, HISTORY, HUB_KEY, SOURCE, key_of, upto

_TEXTS: Final = ("device", "metric", "text")
_LARGE: Final = ("value_array", "value_bytes")

_NO_LINE: Final = -1

NAMES: Final = (*BATCH, *SOURCE, *HISTORY)
_AT_ONCE: Final = 256
_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
_FIELDS: Final = [pa.field(name, _TEXT) for name in NAMES]
MESSAGES: Final = pa.schema(
    [
        *_FIELDS,
        *((name, pa.int64()) for name in ("n", "source_seq", "seq", "content", "read", "named")),
        *((name, pa.bool_()) for name in ("refined", "known")),
    ]
)
"""One row per message of bronze: the expected sums of its readings and quarantine lines; `known` is False for
a dropped payload.
"""
READ: Final = pa.schema([*_FIELDS[:5], ("n", pa.int64()), ("source_seq", pa.int64()), ("sum", pa.int64())])
"""One row per batch or place and file: the sum of its readings."""
NAMED: Final = pa.schema([*_FIELDS[5:], ("seq", pa.int64()), ("sum", pa.int64()), ("other", pa.bool_())])
"""One row per row of quarantine; `other` marks a message with other content than an earlier one."""


@dataclass(slots=True)
class Contents:
    """The sums of a file, and messages whose payload does not match its digest."""

    rows: pa.Table
    changed: list[tuple[str, str, int]] = field(default_factory=list)


def of_file(piece: FileShare, secret: bytes) -> Contents:
    """Compute the sums of a file. Raises `UnreadableError`."""
    if piece.table == "bronze":
        return _bronze(piece, secret)
    parts = [_SMALL[piece.table](_shared(group, piece), secret) for group in _groups(piece)]
    schema = READ if piece.table == "readings" else NAMED
    return Contents(_compact([schema.empty_table(), *parts]))


def _groups(piece: FileShare) -> Iterator[pa.Table]:
    with parquet_file(piece.path) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, use_threads=False)


def _shared(rows: pa.Table, piece: FileShare) -> pa.Table:
    """Return the rows of the share; all rows for quarantine, which is small."""
    rows = piece.span.chosen(rows)
    if piece.share.of == 1 or piece.table == "quarantine":
        return rows
    numbers = pc.fill_null(pc.coalesce(rows["n"], rows["source_seq"]), 0).to_numpy()
    return rows.filter(pa.array(piece.share.holds(numbers)))


def _readings(rows: pa.Table, secret: bytes) -> pa.Table:
    return _coded(_summed(rows, secret), READ)


def _summed(rows: pa.Table, secret: bytes) -> pa.Table:
    texts = {name: rows[name].cast(pa.string()) for name in (*BATCH, *SOURCE)}
    numbers = {name: rows[name] for name in ("n", "source_seq")}
    found = pa.table({**texts, **numbers, "sum": of_readings(rows, secret)})
    keys = [*texts, *numbers]
    return found.group_by(keys).aggregate([("sum", "sum")]).rename_columns([*keys, "sum"])


def _quarantine(rows: pa.Table, secret: bytes) -> pa.Table:
    pairs = zip(rows["line"].to_pylist(), rows["excerpt"].to_pylist(), strict=True)
    found = {
        **{name: rows[name] for name in HUB_KEY},
        "sum": pa.array([of_line(line, text, secret) for line, text in pairs], pa.int64()),
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
    return Contents(_compact([MESSAGES.empty_table(), *rows]), changed)


def _compact(parts: list[pa.Table]) -> pa.Table:
    """Copy the parts into one table: a slice sent to the driver would carry its whole buffer."""
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()


def _changed(rows: pa.Table) -> list[tuple[str, str, int]]:
    columns = [rows[name].to_pylist() for name in (*HUB_KEY, "payload", "digest")]
    return [
        (stream, created, seq)
        for stream, created, seq, payload, given in zip(*columns, strict=True)
        if payload is not None and digest(payload) != given
    ]


def _messages(rows: pa.Table, piece: FileShare, secret: bytes) -> pa.Table:
    refined = upto(rows, piece.offsets)
    sums = _expected(refinable(rows), secret)
    contents = b"".join((row or b"")[:8].ljust(8, b"\0") for row in rows["digest"].to_pylist())
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
    if len({key_of(row) for row in rows}) < len(rows):
        # Two copies of one key: what is decoded does not say of which it came.
        return [sums for row in rows for sums in _decoded([row], secret)]
    return _decoded(rows, secret)


def _decoded(rows: list[dict[str, Any]], secret: bytes) -> list[tuple[int, int]]:
    from hub_jobs.refine.readings import Refiner

    refiner = Refiner()
    tables = [table for row in rows if row["payload"] is not None for table in refiner.add(row)]
    at = {key_of(row): number for number, row in enumerate(rows)}
    messages = {tuple(row[name] for name in HUB_KEY): number for number, row in enumerate(rows)}
    read: list[list[int]] = [[] for _ in rows]
    for table in [*tables, refiner.drain()]:
        for total_ in _summed(table, secret).to_pylist():
            read[at[key_of(total_)]].append(total_["sum"])
    named: list[list[int]] = [[] for _ in rows]
    for refused in refiner.quarantined:
        message = tuple(getattr(refused.message, name) for name in HUB_KEY)
        named[messages[message]].append(of_line(refused.line, refused.excerpt, secret))
    return [(total(some), total(others)) for some, others in zip(read, named, strict=True)]


def of_readings(rows: pa.Table, secret: bytes) -> Numbers:
    source = rows["ts_source"].cast(pa.string())
    ts = rows["ts"].cast(TIME)
    stamps = pc.coalesce(rows["ts_original"].cast(TIME), ts)
    found = marks(rows["index"].cast(pa.int64()).to_numpy())
    found = marks(found ^ stamps.cast(pa.int64()).to_numpy())
    found = marks(found ^ hashed(pc.if_else(pc.equal(source, "corrected"), "agent", source), secret))
    for name in _TEXTS:
        found = marks(found ^ hashed(rows[name].cast(pa.string()), secret))
    found = marks(found ^ _values(rows["value"]))
    found = marks(found ^ _tags(rows["tags"], secret))
    for name in _LARGE:
        if name in rows.column_names and rows[name].null_count < rows.num_rows:
            numbers = _large(rows[name], secret)
            found = np.where(rows[name].is_valid().to_numpy(), marks(found ^ numbers), found)
    # The day follows from the time; one that does not is no line's.
    day = pc.equal(ts.cast(pa.date32()), rows["event_date"]).to_numpy()
    return np.where(day, found, ~found)


def of_line(line: int | None, excerpt: bytes | None, secret: bytes) -> int:
    """Return the hash of a quarantined line or whole message."""
    place = str(_NO_LINE if line is None else line).encode()
    return _number(place + b" " + (excerpt or b""), secret)


def total(numbers: Iterable[int]) -> int:
    """Return the sum modulo 2^64."""
    found = sum(numbers) & 0xFFFFFFFFFFFFFFFF
    return found - (1 << 64) if found >> 63 else found


def _values(column: pa.ChunkedArray) -> Numbers:
    bits: Numbers = pc.fill_null(column, 0.0).to_numpy().view(np.int64)
    return np.where(pc.is_null(column).to_numpy(), _NO_LINE, bits)


def hashed(column: pa.ChunkedArray, secret: bytes) -> Numbers:
    """Return hashes of texts or bytes, 0 for null."""
    encoded = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = encoded.dictionary_encode()
    distinct = [_number(text, secret) for text in encoded.dictionary.cast(pa.binary()).to_pylist()]
    known: npt.NDArray[np.int64] = np.array([0, *distinct], dtype=np.int64)
    found: Numbers = known[pc.fill_null(encoded.indices, -1).to_numpy() + 1]
    return found


def _large(column: pa.ChunkedArray, secret: bytes) -> Numbers:
    found = np.zeros(len(column), np.int64)
    at = 0
    for chunk in column.chunks:
        for value in chunk:
            if value.is_valid:
                held = (
                    value.values.to_numpy().tobytes() if isinstance(value, pa.ListScalar) else value.as_py()
                )
                found[at] = _number(held, secret)
            at += 1
    return found


def _tags(column: pa.ChunkedArray, secret: bytes) -> Numbers:
    held = column.combine_chunks()
    if isinstance(held, pa.ChunkedArray):
        held = held.chunk(0) if held.num_chunks else pa.array([], column.type)
    pairs = marks(hashed(held.keys, secret) ^ marks(hashed(held.items, secret)))
    sums = np.concatenate(([0], np.cumsum(pairs)))
    ends = held.offsets.to_numpy()
    found: Numbers = sums[ends[1:]] - sums[ends[:-1]]
    return found


def _number(text: bytes, secret: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=secret).digest(), "little", signed=True)
