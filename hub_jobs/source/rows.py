"""Converts records to Arrow rows of `format("nats")`, and filters to read limits. Pure.

Spark applies every filter again, so limits affect only speed. Time limits assume that the server's clock
never went back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.source.protocol import header_column, parse_headers
from hub_jobs.source.streams import SOURCE_HEADER, Columns, domain_of, parse_source

SCHEMA: Final = pa.schema(
    [
        pa.field("subject", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("stream", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("source_domain", pa.string()),
        pa.field("source_stream", pa.string()),
        pa.field("source_ident", pa.string()),
        pa.field("source_seq", pa.int64()),
        pa.field("source_subject", pa.string()),
        pa.field("msg_id", pa.string()),
        pa.field(
            "headers",
            pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ),
    ]
)
"""The row. `timestamp` is when this stream stored the record; source columns are null without source."""

_MSG_ID: Final = b"Nats-Msg-Id"


def to_batch(
    stream: str, columns: Columns, source_index: Mapping[str, str], include_headers: bool
) -> pa.RecordBatch:
    """Return a batch of SCHEMA. `source_index` maps sources to domains (`StreamInfo.source_index`).

    Invalid UTF-8 in subjects or ids is replaced; a malformed source header gives nulls.
    """
    count, headers = len(columns.seqs), columns.headers.to_pylist()
    arrays = [
        _text(columns.subjects),
        columns.payloads,
        pa.repeat(pa.scalar(stream), count),
        pa.array(columns.seqs),
        pc.divide(pa.array(columns.timestamps_ns), 1000).cast(pa.timestamp("us", tz="UTC")),
        *_sources(headers, source_index),
        _text(pa.array(header_column(headers, _MSG_ID), pa.binary())),
        _headers(headers) if include_headers else pa.nulls(count, SCHEMA.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _sources(headers: list[bytes], source_index: Mapping[str, str]) -> list[pa.Array]:
    values = header_column(headers, SOURCE_HEADER)
    try:
        return _well_formed_sources(pa.array(values, pa.binary()).cast(pa.string()), source_index)
    except pa.ArrowInvalid:
        return _any_sources(values, source_index)


def _well_formed_sources(values: pa.Array, source_index: Mapping[str, str]) -> list[pa.Array]:
    """Parse source columns without Python objects. Raises ArrowInvalid for a malformed value."""
    fields = pc.split_pattern(values, " ")
    if pc.min_max(pc.list_value_length(fields)).as_py() not in (
        {"min": 6, "max": 6},
        {"min": None, "max": None},
    ):
        raise pa.ArrowInvalid("not six fields")
    index, seq, subject, identity = (pc.list_element(fields, at) for at in (0, 1, 4, 5))
    encoded = index.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    domains = pa.array([domain_of(name, source_index) for name in names], pa.string())
    streams = pa.array([name.partition(":")[0] for name in names], pa.string())
    return [
        domains.take(encoded.indices),
        streams.take(encoded.indices),
        identity,
        seq.cast(pa.int64()),
        subject,
    ]


def _any_sources(values: list[bytes | None], source_index: Mapping[str, str]) -> list[pa.Array]:
    rows = [_source(value, source_index) for value in values]
    kinds = (pa.string(), pa.string(), pa.string(), pa.int64(), pa.string())
    return [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]


def _source(value: bytes | None, source_index: Mapping[str, str]) -> tuple[str | int | None, ...]:
    try:
        key = parse_source(value or b"")
    except ValueError:
        return (None,) * 5
    return domain_of(key.index, source_index), key.stream, key.identity or None, key.seq, key.subject


def _text(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode(errors="replace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())


def _headers(blocks: list[bytes]) -> pa.Array:
    parsed = [parse_headers(block) for block in blocks]
    offsets = [0]
    for pairs in parsed:
        offsets.append(offsets[-1] + len(pairs))
    flat = [pair for pairs in parsed for pair in pairs]
    kind = SCHEMA.field("headers").type
    entries = pa.StructArray.from_arrays(
        [
            pa.array([key for key, _ in flat], pa.string()),
            pa.array([value for _, value in flat], pa.binary()),
        ],
        fields=list(kind.value_type),
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), entries, type=kind)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LITERAL: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*\Z")
_MAX_SUBJECTS: Final = 64
"""Above this number, filtering subjects here is cheaper."""


@dataclass(frozen=True, slots=True)
class RangeFilter:
    """Sequences `first` to `last`, moments from `since` to before `until` (ns since 1970), None for
    unbounded; `subjects` empty for all.
    """

    first: int = 1
    last: int | None = None
    since: int | None = None
    until: int | None = None
    subjects: tuple[str, ...] = ()


def narrowed(limits: RangeFilter, operator: str, column: str, value: Any) -> RangeFilter:
    """Apply a filter to the limits; unusable filters change nothing. `operator` is `=`, `>`, `>=`, `<`, `<=`,
    `in` or `prefix`.
    """
    narrow = _BY_COLUMN.get(column)
    return limits if narrow is None else narrow(limits, operator, value)


def _by_sequence(limits: RangeFilter, operator: str, value: Any) -> RangeFilter:
    if not isinstance(value, int) or isinstance(value, bool):
        return limits
    if operator in ("=", ">", ">="):
        limits = replace(limits, first=max(limits.first, value + (operator == ">")))
    if operator in ("=", "<", "<="):
        last = value - (operator == "<")
        limits = replace(limits, last=last if limits.last is None else min(limits.last, last))
    return limits


def _by_time(limits: RangeFilter, operator: str, value: Any) -> RangeFilter:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return limits
    # A row shows its time cut to microseconds: it equals `value` for a thousand nanoseconds.
    start = (value - _EPOCH) // timedelta(microseconds=1) * 1000
    if operator in ("=", ">", ">="):
        since = start + 1000 * (operator == ">")
        limits = replace(limits, since=since if limits.since is None else max(limits.since, since))
    if operator in ("=", "<", "<="):
        until = start + 1000 * (operator != "<")
        limits = replace(limits, until=until if limits.until is None else min(limits.until, until))
    return limits


def _by_subject(limits: RangeFilter, operator: str, value: Any) -> RangeFilter:
    if limits.subjects:
        return limits  # one list is enough; Spark applies the other
    wanted: tuple[str, ...] = ()
    if operator == "=":
        wanted = (value,)
    elif operator == "in":
        wanted = tuple(value)
    elif operator == "prefix" and isinstance(value, str) and value.endswith("."):
        return replace(limits, subjects=(f"{value}>",)) if _LITERAL.match(value[:-1]) else limits
    usable = 0 < len(wanted) <= _MAX_SUBJECTS and all(
        isinstance(subject, str) and _LITERAL.match(subject) for subject in wanted
    )
    return replace(limits, subjects=tuple(dict.fromkeys(wanted))) if usable else limits


_BY_COLUMN: Final[dict[str, Callable[[RangeFilter, str, Any], RangeFilter]]] = {
    "seq": _by_sequence,
    "timestamp": _by_time,
    "subject": _by_subject,
}
