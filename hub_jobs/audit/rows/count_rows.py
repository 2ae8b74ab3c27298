"""Counts rows of a table for an audit, piece by piece. Pure.

For bronze it gathers identities; for readings and quarantine the taken places of each batch, with sums that
only the places 0 to the last yield. Text is dictionary-encoded, because a million rows name few runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.audit.rows.hours import moments
from hub_jobs.audit.rows.place_sums import Integers, sums_of
from hub_jobs.refine.messages import QuarantineReason
from hub_jobs.source.binary import content_of
from hub_jobs.tables.grouping import changes
from hub_jobs.tables.ranges import Mask, Numbers, marks
from hub_jobs.tables.spaces import BATCH, BATCH_KEY, HISTORY, HUB_KEY, SOURCE, SOURCE_KEY, upto

BRONZE_COLUMNS: Final = (
    *(*HUB_KEY, "arrived", "subject", "headers", "digest"),
    *("domain", *SOURCE_KEY, "class", "run", "n", "count"),
)
READINGS_COLUMNS: Final = (*BATCH_KEY, "index", *SOURCE_KEY)
QUARANTINE_COLUMNS: Final = (*HUB_KEY, "line", *BATCH_KEY, "reason")
TEXTS: Final = (*HISTORY, *BATCH, *SOURCE, "subject", "reason")
"""Columns to read as dictionaries."""

_KIND_TOKEN: Final = 3
_FEW_ROWS: Final = 8
"""Mean adjacent rows per batch below which rows are grouped first."""
_BLOCK_BITS: Final = 8
_POSITIVE: Final = np.int64(2**63 - 1)

Offsets = Mapping[tuple[str, str], int]
"""Refined hub sequence per history."""


class Share(NamedTuple):
    """A part of all rows, to bound memory: about every `of`-th block of 256 numbers, by a hash."""

    which: int = 0
    of: int = 1

    def holds(self, numbers: Numbers) -> Mask:
        """Tell which numbers belong to the share."""
        if self.of == 1:
            return np.ones(numbers.size, dtype=np.bool_)
        mine: Mask = (marks(numbers >> _BLOCK_BITS) & _POSITIVE) % self.of == self.which
        return mine


class RowCounts(NamedTuple):
    """Counts of rows, by batch in `batches` and by message in `direct`.

    For quarantine, `named` are messages without batch; `other` are messages with other content under one
    number.
    """

    batches: pa.Table
    direct: pa.Table
    named: pa.Table
    other: pa.Table


_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
_TEXTS_OF: Final = {name: pa.field(name, _TEXT) for name in TEXTS}


def _schema(*columns: str, **numbers: pa.DataType) -> pa.Schema:
    plain = [pa.field(name, kind) for name, kind in numbers.items()]
    return pa.schema([*(_TEXTS_OF[name] for name in columns), *plain])


_WHOLE, _TRUTH = pa.int64(), pa.bool_()
HELD: Final = _schema(
    *(*BATCH, *HISTORY),
    seq=_WHOLE,
    n=_WHOLE,
    count=_WHOLE,
    refined=_TRUTH,
    dead=_TRUTH,
    moment=_WHOLE,
    late=_TRUTH,
    arrived=_WHOLE,
    old=_TRUTH,
)
"""One row per batch of bronze; `moment` and `arrived` in microseconds since 1970. `old` rows may
be settled.
"""
DIRECT: Final = _schema(
    *("domain", "class", *SOURCE, *HISTORY),
    seq=_WHOLE,
    source_seq=_WHOLE,
    content=_WHOLE,
    refined=_TRUTH,
    moment=_WHOLE,
    old=_TRUTH,
)
"""One row per message without batch; `content` is from its digest."""
PLACED: Final = _schema(
    *BATCH, n=_WHOLE, places=_WHOLE, total=_WHOLE, squares=_WHOLE, marks=_WHOLE, whole=_TRUTH, old=_TRUTH
)
"""Taken places of a batch, in several rows: count, sum, sum of squares and sum of `marks`; `whole` for a
batch quarantined whole.
"""
STOOD: Final = _schema(*SOURCE, source_seq=_WHOLE, old=_TRUTH)
"""One row per reading without batch; without source when it has no message."""
MESSAGES: Final = _schema(*HISTORY, seq=_WHOLE)
_NO_MESSAGES: Final = MESSAGES.empty_table()


def bronze(rows: pa.Table, offsets: Offsets, share: Share, old: Mask | None = None) -> RowCounts:
    """Count rows of bronze (`BRONZE_COLUMNS`) as `HELD` batches and `DIRECT` messages; `old` marks
    old rows.
    """
    old = _none(rows) if old is None else old
    numbered = pc.is_valid(rows["n"]).to_numpy() & share.holds(_numbers(rows["n"]))
    batches = rows.filter(pa.array(numbered))
    own = is_direct(rows) & share.holds(_numbers(rows["source_seq"]))
    direct = rows.filter(pa.array(own))
    moment, late = moments(batches)
    held = {
        **{name: batches[name] for name in (*BATCH_KEY, *HUB_KEY)},
        "count": pc.fill_null(batches["count"], 0),
        "refined": upto(batches, offsets),
        "dead": _kinds(batches["subject"]) == "_dead",
        "moment": moment,
        "late": late,
        "arrived": batches["arrived"].cast(pa.int64()),
        "old": old[numbered],
    }
    messages = {
        **{name: direct[name] for name in ("domain", "class", *SOURCE, *HUB_KEY)},
        "source_seq": pc.fill_null(direct["source_seq"], 0),
        "content": _beginnings(direct["digest"]),
        "refined": upto(direct, offsets),
        "moment": direct["arrived"].cast(pa.int64()),
        "old": old[own],
    }
    return RowCounts(
        pa.table(held, schema=HELD), pa.table(messages, schema=DIRECT), _NO_MESSAGES, _NO_MESSAGES
    )


def _beginnings(digests: pa.ChunkedArray) -> Numbers:
    """Return the first eight bytes of each digest, zero-padded."""
    padded = pc.binary_join_element_wise(digests, bytes(8), b"")
    return np.frombuffer(content_of(pc.binary_slice(padded, 0, 8).combine_chunks())[0], np.int64)


def is_direct(rows: pa.Table) -> Mask:
    """Tell which rows of bronze, with `n` and `subject`, are neither batches nor agent records."""
    agents = np.isin(_kinds(rows["subject"]), ("_ledger", "_clock", "_dead"))
    found: Mask = pc.is_null(rows["n"]).to_numpy() & ~agents
    return found


def readings(rows: pa.Table, share: Share, old: Mask | None = None) -> RowCounts:
    """Count rows of readings (`READINGS_COLUMNS`) as `PLACED` and `STOOD`; `old` marks old rows.

    The message's place may be missing when all rows name their batch.
    """
    old = _none(rows) if old is None else old
    placed, stood = rows, STOOD.empty_table()
    if rows["n"].null_count:
        numbered = pc.is_valid(rows["n"]).to_numpy()
        stood = _stood(*_chosen(rows, old, ~numbered & share.holds(_numbers(rows["source_seq"]))))
        placed, old = _chosen(rows, old, numbered)
    placed = _placed(*_chosen(placed, old, share.holds(_numbers(placed["n"]))))
    return RowCounts(placed, stood, _NO_MESSAGES, _NO_MESSAGES)


def _placed(rows: pa.Table, old: Mask) -> pa.Table:
    starts = _starts(rows, old)
    if starts.size * _FEW_ROWS > rows.num_rows:  # maintain has sorted them by device
        order = np.lexsort((old, *reversed(_key(rows))))
        rows, old = rows.take(pa.array(order)), old[order]
        starts = _starts(rows, old)
    sizes = np.diff(starts, append=rows.num_rows)
    sums = sums_of(_whole(rows["index"], -1), starts, sizes)
    found = {
        **{name: rows[name].take(starts) for name in BATCH_KEY},
        "places": sizes,
        "total": sums[0],
        "squares": sums[1],
        "marks": sums[2],
        "whole": np.zeros(starts.size, dtype=np.bool_),
        "old": old[starts],
    }
    return pa.table(found, schema=PLACED)


def _stood(rows: pa.Table, old: Mask) -> pa.Table:
    found = {
        **{name: rows[name] for name in SOURCE},
        "source_seq": pc.fill_null(rows["source_seq"], 0),
        "old": old,
    }
    return pa.table(found, schema=STOOD)


def quarantine(
    rows: pa.Table, offsets: Offsets, begun: Offsets, share: Share, old: Mask | None = None
) -> RowCounts:
    """Count rows of quarantine (`QUARANTINE_COLUMNS`) as `PLACED` and messages; ignores an unfinished refine
    (`begun`).
    """
    counts = upto(rows, offsets) | ~upto(rows, begun)
    old = (_none(rows) if old is None else old)[counts]
    rows = rows.filter(pa.array(counts))
    numbered = pc.is_valid(rows["n"]).to_numpy()
    clash = pc.equal(rows["reason"].cast(pa.string()), str(QuarantineReason.OTHER_CONTENT)).to_numpy()
    named_lines = numbered & ~clash & share.holds(_numbers(rows["n"]))
    lines = rows.filter(pa.array(named_lines))
    line = _numbers(lines["line"])
    whole = pc.is_null(lines["line"]).to_numpy()
    placed = {
        **{name: lines[name] for name in BATCH_KEY},
        "places": (~whole).astype(np.int64),
        "total": line,
        "squares": line * line,
        "marks": np.where(whole, 0, marks(line)),
        "whole": whole,
        "old": old[named_lines],
    }
    named = rows.filter(pa.array(~numbered)).select(MESSAGES.names).cast(MESSAGES)
    other = rows.filter(pa.array(numbered & clash)).select(MESSAGES.names).cast(MESSAGES)
    return RowCounts(pa.table(placed, schema=PLACED), STOOD.empty_table(), named, other)


def merged(table: str, parts: Iterable[RowCounts]) -> RowCounts:
    """Merge counts of a table."""
    schemas = (HELD, DIRECT) if table == "bronze" else (PLACED, STOOD)
    nothing = (*(schema.empty_table() for schema in schemas), _NO_MESSAGES, _NO_MESSAGES)
    together = zip(nothing, *parts, strict=True)
    return RowCounts(*(pa.concat_tables(tables).unify_dictionaries() for tables in together))


def _none(rows: pa.Table) -> Mask:
    return np.zeros(rows.num_rows, np.bool_)


def _chosen(rows: pa.Table, old: Mask, mask: Mask) -> tuple[pa.Table, Mask]:
    return (rows, old) if mask.all() else (rows.filter(pa.array(mask)), old[mask])


def _numbers(column: pa.Array | pa.ChunkedArray, absent: int = 0) -> Numbers:
    found: Numbers = _whole(column, absent).astype(np.int64, copy=False)
    return found


def _whole(column: pa.Array | pa.ChunkedArray, absent: int) -> Integers:
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    found: Integers = (pc.fill_null(column, absent) if column.null_count else column).to_numpy()
    return found


def _starts(rows: pa.Table, old: Mask) -> Numbers:
    """Return where a batch or a section of old rows begins."""
    return np.flatnonzero(changes(*_key(rows), old))


def _key(rows: pa.Table) -> list[Integers]:
    texts = (rows[name] for name in BATCH)
    chunks = [text.chunk(0) if text.num_chunks == 1 else text.combine_chunks() for text in texts]
    return [*(_whole(chunk.indices, -1) for chunk in chunks), _whole(rows["n"], 0)]


def _kinds(subjects: pa.ChunkedArray) -> npt.NDArray[np.object_]:
    """Return the subject token with an agent message's kind or a direct message's device."""
    column = subjects.combine_chunks()
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    tokens = [subject.split(".") for subject in column.dictionary.to_pylist()]
    kinds = np.array([token[_KIND_TOKEN] if len(token) > _KIND_TOKEN else "" for token in tokens] or [""])
    found: npt.NDArray[np.object_] = kinds[_numbers(column.indices)]
    return found
