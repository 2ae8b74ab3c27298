"""Finds each message's sender: domain, leaf stream place, and a batch's run and number. Pure.

Devices send many messages with server headers only, so these are parsed by column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import (
    H_COUNT,
    H_MESSAGE_ID,
    MAX_INT,
    MAX_UNPACKED_BYTES,
    ContractError,
    Subject,
    parse_message_id,
    parse_subject,
)
from hub_jobs.source.binary import content_of, slices
from hub_jobs.source.protocol import header, header_column
from hub_jobs.source.streams import SEQ_DIGITS, SOURCE_FIELDS, SOURCE_HEADER, domain_of, parse_source
from hub_jobs.tables.grouping import coded_column, different_rows
from hub_jobs.tables.ranges import Numbers
from hub_jobs.tables.schemas import BRONZE
from hub_jobs.tables.spaces import SOURCE

_COUNT_DIGITS: Final = 18
_SUBJECTS_KNOWN: Final = 65_536
_SOURCE_MARK: Final = b"\r\n%b:" % SOURCE_HEADER
_ID_MARK: Final = f"\r\n{H_MESSAGE_ID}:".encode()
_END: Final = b"\r\n\r\n"
_SAMPLE: Final = 64
_GOLDEN: Final = 0.6180339887
_MOST_LAYOUTS: Final = 4
_USED_FIELDS: Final = (0, 1, 5)
"""Used fields of a source: index, sequence, stream identity."""
_BLANK: Final = ord(" ")
_IDENTITY: Final = BRONZE.names[BRONZE.names.index("domain") :]
_CODED: Final = ("domain", "source_stream", "source_identity", "class", "run")


def identities(headers: pa.Array, subjects: pa.Array, domains: Mapping[str, str]) -> dict[str, pa.Array]:
    """Return the sender of each message: by column for devices, one by one for others. Subjects may
    be coded.
    """
    rest, places, found = np.arange(len(headers)), [], []
    for layout in _layouts(headers):
        at, fields = _in_layout(headers, layout, rest)
        if at.size:
            rest = np.setdiff1d(rest, at, assume_unique=True)
            places.append(at)
            found.append(_sent_by_devices(fields, _taken(subjects, at), domains))
    if rest.size:
        blocks, texts = (_taken(column, rest).to_pylist() for column in (headers, subjects))
        places.append(rest)
        alone = identities_one_by_one(blocks, texts, domains)
        found.append({**alone, **{name: alone[name].dictionary_encode() for name in _CODED}})
    if len(found) == 1:
        return found[0]
    order = pa.array(np.argsort(np.concatenate(places)))
    return {name: pa.concat_arrays([part[name] for part in found]).take(order) for name in _IDENTITY}


def as_first_created(
    columns: dict[str, pa.Array], made: Mapping[tuple[str, str], str]
) -> dict[str, pa.Array]:
    """Give all messages of a stream that its server recreated the first identity (`StreamInfo.made`)."""
    known = set(columns["source_identity"].dictionary.to_pylist())
    for (stream, given), first in made.items():
        if given in known:
            names, identity = (columns[name].cast(pa.string()) for name in SOURCE)
            is_same = pc.and_(pc.equal(names, stream), pc.equal(identity, given))
            identity = pc.if_else(is_same, first, identity)
            columns = {**columns, "source_identity": identity.dictionary_encode()}
    return columns


def _taken(column: pa.Array, rows: Numbers) -> pa.Array:
    return column if rows.size == len(column) else column.take(pa.array(rows))


def _layouts(headers: pa.Array) -> list[bytes]:
    """Return the header parts before the source in messages without id: nothing, or the server's MQTT
    headers.
    """
    # In no regular distance, for messages may alternate.
    sample = np.unique((np.arange(_SAMPLE) * _GOLDEN % 1 * len(headers)).astype(np.int64))
    counted = Counter(
        block[: at + len(_SOURCE_MARK)]
        for block in headers.take(pa.array(sample)).to_pylist()
        if (at := block.rfind(_SOURCE_MARK)) >= 0 and _ID_MARK not in block
    )
    return [layout for layout, _ in counted.most_common(_MOST_LAYOUTS)]


def _in_layout(headers: pa.Array, layout: bytes, rows: Numbers) -> tuple[Numbers, list[pa.Array]]:
    """Return which rows have a usual source after the layout, and its used fields."""
    alike = pc.and_(pc.starts_with(headers, layout), pc.ends_with(headers, _END))
    at = rows[alike.to_numpy(zero_copy_only=False)[rows]]
    if not at.size:
        return at, []
    content, edges = content_of(_taken(headers, at))
    letters = np.frombuffer(content, np.uint8)
    first, end = edges[:-1] + len(layout), edges[1:] - len(_END)
    # A blank stands before each of the fields, and nowhere else in the value.
    blanks = np.append(np.flatnonzero(letters == _BLANK), [letters.size] * SOURCE_FIELDS)
    before, behind = np.searchsorted(blanks, first), np.searchsorted(blanks, end)
    usual = (behind - before == SOURCE_FIELDS) & (blanks[before] == first)
    controls = _controls(layout) + len(_END)
    if np.count_nonzero(letters < _BLANK) != at.size * controls:
        usual &= np.add.reduceat(letters < _BLANK, edges[:-1], dtype=np.int64) == controls
    at, before, end = at[usual], before[usual], end[usual]
    begins = [blanks[before + field] + 1 for field in range(SOURCE_FIELDS)]
    ends = [*(begin - 1 for begin in begins[1:]), end]
    try:
        columns = [slices(content, begins[field], ends[field]).cast(pa.string()) for field in _USED_FIELDS]
    except pa.ArrowInvalid:
        return at[:0], []
    seq = columns[1]
    number = pc.and_(pc.ascii_is_decimal(seq), pc.less_equal(pc.binary_length(seq), SEQ_DIGITS))
    if pc.all(number).as_py():
        return at, columns
    return at[number.to_numpy(zero_copy_only=False)], [column.filter(number) for column in columns]


def _controls(text: bytes) -> int:
    return sum(letter < _BLANK for letter in text)


def _sent_by_devices(
    fields: list[pa.Array], subjects: pa.Array, domains: Mapping[str, str]
) -> dict[str, pa.Array]:
    source, seq, identity = fields
    index = source.dictionary_encode()
    names, of_name = index.dictionary.to_pylist(), index.indices.to_numpy()
    domain = coded_column(of_name, [domain_of(name, domains) for name in names])
    first, which = different_rows([pa.chunked_array([subjects]), pa.chunked_array([domain])])
    # A text of a dictionary is slow to make an object of.
    pairs = zip(
        *(column.take(pa.array(first)).cast(pa.string()).to_pylist() for column in (subjects, domain)),
        strict=True,
    )
    size = len(subjects)
    return {
        "domain": domain,
        "source_stream": coded_column(of_name, [name.partition(":")[0] for name in names]),
        "source_identity": identity.dictionary_encode(),
        "source_seq": seq.cast(pa.int64()),
        "message_id": pa.nulls(size, pa.string()),
        "class": coded_column(which, [_class(text, of) for text, of in pairs]),
        "run": pa.nulls(size, pa.string()).dictionary_encode(),
        "n": pa.nulls(size, pa.int64()),
        "count": pa.nulls(size, pa.int64()),
    }


def identities_one_by_one(
    blocks: list[bytes], subjects: list[str], domains: Mapping[str, str]
) -> dict[str, pa.Array]:
    """Return the senders as columns of bronze."""
    ids = [_text(value) for value in header_column(blocks, H_MESSAGE_ID.encode())]
    sources = [_source(value, domains) for value in header_column(blocks, SOURCE_HEADER)]
    batches = [
        _batch(subject, source.domain, ident, block)
        for subject, source, ident, block in zip(subjects, sources, ids, blocks, strict=True)
    ]
    columns: dict[str, list[Any]] = {
        "domain": [source.domain for source in sources],
        "source_stream": [source.stream for source in sources],
        "source_identity": [source.identity for source in sources],
        "source_seq": [source.seq for source in sources],
        "message_id": ids,
        "class": [batch.cls for batch in batches],
        "run": [batch.run for batch in batches],
        "n": [batch.n for batch in batches],
        "count": [batch.count for batch in batches],
    }
    return {name: pa.array(values, BRONZE.field(name).type) for name, values in columns.items()}


@dataclass(frozen=True, slots=True)
class _Source:
    domain: str | None = None
    stream: str | None = None
    identity: str | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    cls: str | None = None
    run: str | None = None
    n: int | None = None
    count: int | None = None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _source(value: bytes | None, domains: Mapping[str, str]) -> _Source:
    if value is None:
        return _Source()
    try:
        key = parse_source(value)
    except ValueError:
        return _Source()
    if key.seq > MAX_INT:
        return _Source()
    return _Source(domain_of(key.index, domains), key.stream, key.identity, key.seq)


def _batch(subject: str, domain: str | None, ident: str | None, headers: bytes) -> _Batch:
    """Return a batch's identity if subject, source and message id agree."""
    parsed = _subject(subject)
    if parsed is None or parsed.domain != domain:
        return _Batch()
    if parsed.kind not in ("batch", "dead") or ident is None:
        return _Batch(parsed.cls)
    try:
        message = parse_message_id(ident)
    except ContractError:
        return _Batch(parsed.cls)
    if message.cls != parsed.cls:
        return _Batch(parsed.cls)
    return _Batch(parsed.cls, message.run, message.n, _count(header(headers, H_COUNT.encode())))


@lru_cache(_SUBJECTS_KNOWN)
def _class(subject: str, domain: str | None) -> str | None:
    """Return the class of a message without id."""
    return _batch(subject, domain, None, b"").cls


@lru_cache(_SUBJECTS_KNOWN)
def _subject(subject: str) -> Subject | None:
    try:
        return parse_subject(subject)
    except ContractError:
        return None


def _count(value: bytes | None) -> int | None:
    if value is None or not value.isdigit() or len(value) > _COUNT_DIGITS:
        return None
    # A line has a byte at least; sums of what lies larger would pass what a column holds.
    return count if (count := int(value)) <= MAX_UNPACKED_BYTES else None
